from pathlib import Path

import pytest

from qtandem.core.installing import assembled, with_constants
from qtandem.lsf import install


class Hooks:
    """Hook files as they are installed, with the constants that a test wants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.values: dict[str, object] = {
            "CLUSTER": "lab", "SOCKET": str(folder / "none.sock"), "NAMES": str(folder / "names"), "DEADLINE_MS": 2000,
            "PROFILE": "", "DURATIONS": 1, "SITE_ESUB": "", "RUNTIME": str(folder), "KNOWN": ("fez", "ibm_x"),
            "BEAT": str(folder / "heartbeat.lsf"), "SENSORS": str(folder / "sensors.lsf"), "LIMIT": 5,
            "PYTHON": "/usr/bin/python3", "HOOKS": str(folder), "TICK": 0.1, "TICKS": 3, "STUCK": 4,
            "CALL_S": 2, "DAEMON_DOWN_S": 1, "REFUSED_PAUSE_S": 0, "TOTAL_S": 5, "PAUSE": 0,
        }  # fmt: skip

    def write(self, name: str, **values: object) -> Path:
        language = next(language for known, language, _ in install.HOOK_FILES if known == name)
        source = install.SOURCE / "hooks"
        text = assembled((source / name).read_text(), source)
        path = self.folder / name
        path.write_text(with_constants(text, {**self.values, **values}, language))  # type: ignore[dict-item]
        path.chmod(0o755)
        return path


@pytest.fixture
def hooks(tmp_path: Path) -> Hooks:
    return Hooks(tmp_path)
