"""The files in the runtime directory that must speak when the daemon cannot: names, and a heartbeat a manager.

`names` has one `NAME<TAB>NATIVE<TAB>SLOTS` a line; submit hooks fall back to it. `heartbeat.MANAGER` is JSON
`{"at": ..., "healthy": ...}`; that manager's dead-man watches it. `at` is the daemon's own time of its last health
and is only ever compared with an earlier `at`, so clocks need not agree. The file's mtime is when this host last
learnt of a new healthy `at`: it does not move while the daemon answers but stands still. `sensors.MANAGER` has one
`NATIVE OPEN` a line, for sensors that are programs on this host.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from qtandem.core.errors import QtandemError
from qtandem.core.files import write_atomic
from qtandem.core.resources import NATIVE, Resource
from qtandem.core.wire import Health
from qtandem.daemons.logs import log

NAMES, HEARTBEAT, SENSORS = "names", "heartbeat", "sensors"
# Names change with a configuration only; asking each time would load the daemon of a large cluster.
NAMES_EVERY = 12


@dataclass(frozen=True, slots=True)
class Beat:
    """What the heartbeat file says: when the daemon wrote it (Unix time), and whether its publishers work."""

    at: float
    healthy: bool


@dataclass(frozen=True, slots=True)
class NameRow:
    """One line of the table of names."""

    name: str
    native: str
    slots: int


def names_text(resources: Iterable[Resource]) -> str:
    """The body of `GET /v1/names`, in configuration order."""
    return "".join(f"{one.name}\t{one.native}\t{one.slots}\n" for one in resources)


def parse_names(text: str) -> tuple[NameRow, ...]:
    """The rows of a names text; raises `bad-request` for any line of another form."""
    rows = []
    for line in text.splitlines():
        name, _, rest = line.partition("\t")
        native, _, slots = rest.partition("\t")
        if not name or not native or not slots.isdigit():
            raise QtandemError("bad-request", f"{line[:80]!r} is not a line of names")
        rows.append(NameRow(name, native, int(slots)))
    return tuple(rows)


def read_names(runtime_dir: Path) -> tuple[NameRow, ...]:
    """The mirrored names; none when they were never mirrored."""
    try:
        return parse_names((runtime_dir / NAMES).read_text(errors="replace"))
    except FileNotFoundError:
        return ()


def write_names(runtime_dir: Path, text: str) -> None:
    """Mirror a names text if it is one and differs from what is there; raises `bad-request`, `OSError`."""
    parse_names(text)
    path = runtime_dir / NAMES
    with suppress(FileNotFoundError):
        if path.read_bytes() == text.encode():
            return
    write_atomic(path, text.encode())


def beat_file(runtime_dir: Path, manager: str) -> Path:
    return _file_of(runtime_dir, HEARTBEAT, manager)


def _file_of(runtime_dir: Path, kind: str, manager: str) -> Path:
    """Raises `bad-request` for what cannot be a manager's name: it came over the network."""
    if not (manager.isascii() and manager.isalpha()):
        raise QtandemError("bad-request", f"{manager[:80]!r} is not a manager")
    return runtime_dir / f"{kind}.{manager}"


def write_sensors(runtime_dir: Path, manager: str, values: Mapping[str, int]) -> None:
    """Mirror what a manager's sensors are to show; nothing is known yet where `values` is empty.

    Raises `bad-request` for names that are none, `OSError`.
    """
    path = _file_of(runtime_dir, SENSORS, manager)
    if any(not NATIVE.fullmatch(native) or value < 0 for native, value in values.items()):
        raise QtandemError("bad-request", f"The sensors of {manager} have another form")
    text = "".join(f"{native} {value}\n" for native, value in sorted(values.items()))
    with suppress(FileNotFoundError):
        if not values or path.read_bytes() == text.encode():
            return
    write_atomic(path, text.encode())


def read_beat(runtime_dir: Path, manager: str) -> Beat | None:
    """The manager's last beat; None when there is none that can be read."""
    try:
        body = json.loads(beat_file(runtime_dir, manager).read_bytes())
        return Beat(float(body["at"]), body["healthy"] is True)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def write_beat(runtime_dir: Path, manager: str, beat: Beat) -> bool:
    """Mirror a beat; True if it is a new healthy one. Everything else leaves the file's mtime as it was."""
    path, last = beat_file(runtime_dir, manager), read_beat(runtime_dir, manager)
    if beat.healthy and (last is None or beat.at != last.at):
        write_atomic(path, _encode(beat))
        return True
    if last is not None and not beat.healthy and last.healthy:
        # Readers of the mtime must not take the bad news for a beat.
        write_atomic(path, _encode(Beat(last.at, False)), mtime_ns=path.stat().st_mtime_ns)
    return False


async def mirror(
    runtime_dir: Path,
    health: Callable[[], Awaitable[Health]],
    names: Callable[[], Awaitable[str]],
    period_s: float,
    stop: asyncio.Event,
    *,
    failed: Callable[[], None] = lambda: None,
) -> None:
    """Keep both files until `stop`. `health` and `names` raise `QtandemError`; `failed` is called then.

    The daemon gives its own state, the relay what the daemon answers. Names stay as they are while the daemon
    is away, which is when they are needed.
    """
    round_number = 0
    away: str | None = None
    while not stop.is_set():
        try:
            state = await health()
            # Before the beat: values of before an outage must never stand beside a beat of after it.
            for manager, values in state.sensors.items():
                write_sensors(runtime_dir, manager, values)
            for manager in state.publishers:
                write_beat(runtime_dir, manager, Beat(state.at, manager not in state.silent))
            if round_number % NAMES_EVERY == 0:
                write_names(runtime_dir, await names())
            round_number += 1
            if away is not None:
                log("heartbeat").info("daemon back")
                away = None
        except QtandemError as error:
            round_number = 0
            failed()
            if away != error.code:
                log("heartbeat").warning("daemon away", code=error.code, message=error.message, cause=error.cause)
                away = error.code
        except OSError as error:
            log("heartbeat").error("cannot mirror", directory=str(runtime_dir), cause=str(error))
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), period_s)


def _encode(beat: Beat) -> bytes:
    return json.dumps({"at": beat.at, "healthy": beat.healthy}).encode() + b"\n"
