"""PBS's hooks as pbs_server runs them, in one interpreter, against a real daemon; the peer is a hook that accepts.

Of pbs_server itself nothing is in the figures: it is what a hook adds to a call. Besides the
scripts that pbs_sched may ask.
"""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.bench.rows import Row
from tests.fakes.pbs.hooks import RESOURCES, Site
from tests.fakes.pbs.module import Event, FakePbs
from tests.fakes.qtandemd import Qtandemd, simulator

CALLS = 300
SCRIPTS = 50
ADDED_MS, HUNG_MS, SCRIPT_MS = 5.0, 45.0, 20.0
FEZ = {"qpu_fez": 1}


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="qt") as folder:
        site = Site(FakePbs(RESOURCES), Path(folder))
        qtandemd = Qtandemd({"fez": simulator(Path(folder) / "device", slots=4)})
        qtandemd.write(f'[managers.pbs]\ncluster = "lab"\nbin_dir = "{folder}"\n')
        try:
            qtandemd.start()
            yield from _scripts(site, Path(folder), qtandemd.folder / "q.sock")
            bare = _median(site, "import pbs\npbs.event().accept()\n", "QUEUEJOB", {"qpu": "fez"})
            code = _code(site, qtandemd.folder / "q.sock")
            yield _row("queuejob, a job with a QPU", _median(site, code, "QUEUEJOB", {"qpu": "fez"}), bare, ADDED_MS)
            yield _row("queuejob, a job without", _median(site, code, "QUEUEJOB", {"software": "x"}), bare, ADDED_MS)
            yield _row("runjob, a repeated one", _median(site, code, "RUNJOB", FEZ), bare, None)
            yield _row("jobobit", _median(site, code, "JOBOBIT", FEZ), bare, None)
        finally:
            qtandemd.close()
        with _Silent(Path(folder) / "silent") as path:
            hung = _median(site, _code(site, path), "QUEUEJOB", {"qpu": "fez"}, calls=20)
        yield _row("queuejob, a daemon that hangs", hung, bare, HUNG_MS)


def _scripts(site: Site, folder: Path, path: Path) -> Iterator[Row]:
    """The alternative to pushed numbers, as pbs_sched runs it: one process a QPU in each cycle, one after another."""
    script, bare = folder / "server_dyn_res", folder / "bare"
    script.write_text(site.hook("server_dyn_res", SOCKET=str(path), DEADLINE_MS=1000))
    bare.write_text("#!/usr/bin/python3 -IS\nprint(4)\n")
    for file in (script, bare):
        file.chmod(0o755)
    least = statistics.median(_printed(bare) for _ in range(SCRIPTS))
    one = statistics.median(_printed(script) for _ in range(SCRIPTS))
    peer = "an interpreter that prints a number"
    yield Row("server_dyn_res, one QPU: median", one, "ms", SCRIPT_MS, "most", "value", "target", peer, least)
    spent = sum(_asked(script) for _ in range(100))
    yield Row("server_dyn_res, a cycle of pbs_sched with 100 QPUs", spent, "s", peer=peer, peer_value=least / 10)


def _asked(script: Path) -> float:
    """Seconds that pbs_sched takes for one: if it has the number before the script has ended, it sleeps."""
    began = time.perf_counter()
    with subprocess.Popen(["/bin/sh", "-c", f"{script} fez"], stdout=subprocess.PIPE, process_group=0) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"4\n"
        os.killpg(process.pid, signal.SIGTERM)
        if process.poll() is None:
            time.sleep(0.25)
    return time.perf_counter() - began


def _printed(script: Path) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    done = subprocess.run([script, "fez"], capture_output=True, text=True, check=True, process_group=0)
    spent = (time.perf_counter() - began) * 1000
    assert done.stdout.strip() == "4", done
    return spent


def _code(site: Site, path: Path) -> Any:
    return compile(site.hook("server.py", SOCKET=str(path), DEADLINE_MS=40), "<hook>", "exec")


def _median(site: Site, hook: Any, event: str, resources: dict[str, Any], calls: int = CALLS) -> float:
    code = compile(hook, "<hook>", "exec") if isinstance(hook, str) else hook
    outcomes = [site.pbs.run(code, _event(site, event, resources)) for _ in range(calls)]
    assert all(outcome.accepted for outcome in outcomes), f"{event}: {outcomes[0].message}, {outcomes[0].log}"
    return statistics.median(outcome.seconds for outcome in outcomes) * 1000


def _event(site: Site, event: str, resources: dict[str, Any]) -> Event:
    return Event(event, site.job(resources, "7.pbs", run_version=1), requestor="root")


def _row(name: str, value: float, bare: float, bound: float | None) -> Row:
    kind: Any = "required" if bound is not None else "info"
    return Row(f"{name}: added median", value - bare, "ms", bound, "most", "value", kind, "a hook that accepts", bare)


class _Silent:
    """A socket that takes calls and never answers."""

    def __init__(self, path: Path) -> None:
        self._path, self._server = path, socket.socket(socket.AF_UNIX)

    def __enter__(self) -> Path:
        self._server.bind(str(self._path))
        self._server.listen(256)
        return self._path

    def __exit__(self, *_: object) -> None:
        self._server.close()
