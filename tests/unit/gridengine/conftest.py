from pathlib import Path

import pytest

from qtandem.core.installing import assembled, with_constants
from qtandem.core.settings import ManagerSettings
from qtandem.gridengine import install
from qtandem.gridengine.manager import GridEngineManager
from tests.fakes.gridengine.cell import FakeCell

NATIVES = {"fez": "fez", "ibm-x": "ibm_x"}


@pytest.fixture
def cell(tmp_path: Path) -> FakeCell:
    return FakeCell(tmp_path)


@pytest.fixture
def settings(cell: FakeCell, tmp_path: Path) -> ManagerSettings:
    options = {"state": str(tmp_path / "holds.json")}
    return ManagerSettings(cluster="lab", bin_dir=str(cell.bin_dir), options=options)


@pytest.fixture
def manager(settings: ManagerSettings) -> GridEngineManager:
    return GridEngineManager(settings, NATIVES)


class Hooks:
    """Hook files as they are installed, with the constants that a test wants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.values: dict[str, object] = {
            "CLUSTER": "lab", "SOCKET": str(folder / "none.sock"), "NAMES": str(folder / "names"), "DEADLINE_MS": 2000,
            "SITE_JSV": "", "RUNTIME": str(folder), "BEAT": str(folder / "heartbeat.gridengine"), "LIMIT": 5,
            "KNOWN": ("fez", "ibm_x"), "PYTHON": "/bin/false", "HOOKS": str(folder), "RUNS": str(folder / "runs"),
            "qtandem_hooks": str(folder), "qtandem_python": "/bin/false", "qtandem_runs": str(folder / "runs"),
            "qtandem_site": "", "CALL_S": 2, "DAEMON_DOWN_S": 1, "REFUSED_PAUSE_S": 0, "TOTAL_S": 5, "PAUSE": 0,
            "SHEPHERDS": (), "ROOT": "/sge", "CELL": "cell", "QDEL": str(folder / "qdel"),
        }  # fmt: skip

    def write(self, name: str, **values: object) -> Path:
        language = next(language for known, language, _ in install.HOOK_FILES if known == name)
        text = assembled((install.SOURCE / "hooks" / name).read_text())
        path = self.folder / name
        path.write_text(with_constants(text, {**self.values, **values}, language))  # type: ignore[dict-item]
        path.chmod(0o755)
        return path


@pytest.fixture
def hooks(tmp_path: Path) -> Hooks:
    return Hooks(tmp_path)
