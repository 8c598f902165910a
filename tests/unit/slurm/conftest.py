from pathlib import Path

import pytest

from qtandem.core.settings import ManagerSettings
from qtandem.slurm.manager import SlurmManager
from tests.fakes.slurm.cluster import FakeSlurm


@pytest.fixture
def fake(tmp_path: Path) -> FakeSlurm:
    return FakeSlurm(tmp_path / "slurm")


@pytest.fixture
def settings(fake: FakeSlurm) -> ManagerSettings:
    return ManagerSettings(cluster="lab", bin_dir=str(fake.bin))


@pytest.fixture
def manager(settings: ManagerSettings) -> SlurmManager:
    return SlurmManager(settings, {"fez": "fez", "ibm-x": "ibm_x", "many": "many"})
