from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from qtandem.daemons import cli
from tests.fakes.daemon import FakeDaemon, resource


class Ran(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDaemon]:
    for name in ("QTANDEM_RUN", "SLURM_JOB_ID", "LOCAL_JOB_ID", "QTANDEM_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    fake = FakeDaemon({"GET /resources": {"resources": [resource("fez"), resource("ibm-x", queue=None)]}})
    monkeypatch.setenv("QTANDEM_SOCKET", str(fake.path))
    yield fake.start()
    fake.close()


@pytest.fixture
def qtandem(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def run(*words: str) -> Ran:
        status = cli.run(words)
        return Ran(status, *capsys.readouterr())

    return run
