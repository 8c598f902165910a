"""Is Grid Engine's side of qtandem as it must be on this host? Reads and asks only."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from qtandem.core.errors import QtandemError
from qtandem.core.installing import ChangeState, Check, digest
from qtandem.core.resources import Catalog
from qtandem.core.settings import Settings
from qtandem.gridengine import complexes
from qtandem.gridengine.install import Installer
from qtandem.gridengine.records import parsed

INSTALL = "qtandem install gridengine --apply"
ANSWER_S = 3.0


def check(settings: Settings, catalog: Catalog) -> list[Check]:
    """All checks for this host, in the order in which an admin would mend them."""
    doctor = _Doctor(settings, catalog)
    out: list[Check] = []
    for question in doctor.questions():
        try:
            out.extend(question())
        except QtandemError as error:
            out.append(Check(question.__name__.strip("_"), False, error.one_line(), error.remedy))
    return out


class _Doctor:
    def __init__(self, settings: Settings, catalog: Catalog) -> None:
        self._settings, self._catalog = settings, catalog
        self._installer = Installer(settings, catalog)
        self._client = self._installer.client

    def questions(self) -> list[Callable[[], Iterator[Check]]]:
        everywhere = [self._version, self._hooks, self._daemon]
        return [*everywhere, self._cell, self._jsv, self._sensors] if self._installer.is_master() else everywhere

    def _version(self) -> Iterator[Check]:
        text = self._client.run_sync("qconf", "-help").stdout.splitlines()
        yield Check("version", bool(text), text[0].strip() if text else "qconf says nothing", "Install the client.")

    def _hooks(self) -> Iterator[Check]:
        for path, (data, mode) in self._installer.hook_texts().items():
            fault = _file_fault(path, hashlib.sha256(data).hexdigest(), mode)
            yield Check(f"hook {path.name}", not fault, fault or str(path), INSTALL if fault else "")

    def _daemon(self) -> Iterator[Check]:
        path = self._settings.daemon.socket
        fault = _silence(path)
        fix = "systemctl start qtandemd, or qtandem-relay on another host" if fault else ""
        yield Check("daemon", not fault, fault or f"{path} answers", fix)

    def _cell(self) -> Iterator[Check]:
        """What the installer would still do, as faults."""
        for change in self._installer.changes():
            if change.id.startswith("file:"):
                continue
            ok = change.state is ChangeState.DONE
            detail = "" if ok else change.detail
            yield Check(change.title, ok, detail, "" if ok else INSTALL)

    def _jsv(self) -> Iterator[Check]:
        shown = complexes.attributes(self._client.run_sync("qconf", "-sconf").stdout)
        letters = {letter.strip() for letter in shown.get("jsv_allowed_mod", "").split(",")}
        open_ones = sorted(letters & {"l", "l_hard", "v", "V", "q", "jsv"})
        detail = (
            f"qalter may change {', '.join(open_ones)} of a job, which no JSV sees" if open_ones else "closed to -l"
        )
        yield Check("jsv_allowed_mod", not open_ones, detail, "Take them out of jsv_allowed_mod." if open_ones else "")

    def _sensors(self) -> Iterator[Check]:
        names = [complexes.name(one.native) for one in self._catalog.resources.values()]
        if not names:
            return
        root = parsed(self._client.run_sync("qhost", "-F", ",".join(names), "-xml").stdout)
        shown = {value.get("name") for value in root.iterfind("host[@name='global']/resourcevalue")}
        missing = sorted(set(names) - shown)
        detail = f"not published: {', '.join(missing)}" if missing else f"{len(names)} QPUs are published"
        yield Check("capacities", not missing, detail, "See `qtandem resources` and qtandemd's log." if missing else "")
        interval = complexes.attributes(self._client.run_sync("qconf", "-sconf").stdout).get("load_report_time", "")
        yield Check("load_report_time", None, f"{interval}: hosts close within two of these when the daemon is gone")


def _file_fault(path: Path, wanted: str, mode: int) -> str:
    if digest(path) is None:
        return f"{path} is missing"
    if digest(path) != wanted:
        return f"{path} is not what this version installs for this configuration"
    found = path.stat()
    if stat.S_IMODE(found.st_mode) != mode:
        return f"{path} has the mode {stat.S_IMODE(found.st_mode):o}, not {mode:o}"
    open_places = [place for place in (path, *path.parents) if _others_write(place)]
    return f"{open_places[0]} can be written by others than root" if open_places else ""


def _others_write(path: Path) -> bool:
    found = path.stat()
    sticky = bool(found.st_mode & stat.S_ISVTX)
    return bool(found.st_mode & 0o022) and not sticky


def _silence(path: Path) -> str:
    """Why the daemon does not answer on this host; empty if it does."""

    class Connection(http.client.HTTPConnection):
        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(ANSWER_S)
            self.sock.connect(str(path))

    connection = Connection("qtandem", timeout=ANSWER_S)
    try:
        connection.request("GET", "/v1/healthz")
        body = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError) as error:
        return re.sub(r"\s+", " ", f"{path}: {error}")
    finally:
        connection.close()
    return "" if body.get("healthy") else f"it answers, but is not healthy: {body.get('problems') or body}"
