"""The dead-man of one manager: closes its sensors when the daemon's heartbeat stays away.

`python -m qtandem.daemons.deadman --manager slurm` runs on the manager's host, needs neither daemon nor relay,
and opens nothing: that is the daemon's. A heartbeat counts when its `at` changes, and its age is measured on
the monotonic clock of this host, so no clock jump anywhere can close a sensor.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from qtandem.core.config import Configuration, load
from qtandem.core.errors import EXIT_LATER, QtandemError
from qtandem.core.files import write_atomic
from qtandem.core.managers import Manager, Published, SensorValue
from qtandem.core.settings import ManagerSettings
from qtandem.daemons import logs, registry
from qtandem.daemons.heartbeat import Beat, NameRow, read_beat, read_names
from qtandem.daemons.logs import log
from qtandem.daemons.notify import Notifier

LOOK_S = 1.0
RETRY_FIRST_S, RETRY_MAX_S = 1.0, 30.0
PUBLISH_DEADLINE_S = 60.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Watch:
    """What was seen: the last healthy beat's `at`, when (monotonic) it first showed, and what was closed since."""

    at: float | None
    since: float
    closed: bool = False

    def look(self, beat: Beat | None, monotonic: float) -> Watch:
        """The watch after a look at the heartbeat; a new healthy beat ends an outage."""
        if beat is not None and beat.healthy and beat.at != self.at:
            return Watch(beat.at, monotonic)
        return self

    def overdue(self, monotonic: float, limit_s: float) -> bool:
        return monotonic - self.since > limit_s


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be closed, and by whom. `slots` maps native names to their number."""

    manager: Manager
    slots: Mapping[str, int]


@dataclass(slots=True)
class DeadMan:
    """One manager's dead-man. `target` is asked at each outage, so that it knows the newest configuration.

    `state` is a file that lets a restarted dead-man go on counting; it holds until the next boot.
    """

    name: str
    runtime_dir: Path
    limit_s: float
    target: Callable[[], Target]
    state: Path
    monotonic: Callable[[], float] = time.monotonic
    boot: str = ""
    watch: Watch = field(init=False)
    _kept: Watch | None = None
    _open: dict[str, int] | None = None
    _tries: int = 0

    def __post_init__(self) -> None:
        self._kept = self._recall()
        self.watch = self._kept or Watch(None, self.monotonic())

    async def step(self) -> float:
        """Look once, and close if it must be; returns the seconds until the next look makes sense."""
        before, now = self.watch, self.monotonic()
        self._remember(before.look(read_beat(self.runtime_dir, self.name), now))
        if self.watch.at != before.at:
            self._open, self._tries = None, 0
            if before.closed:
                log("deadman").info("heartbeat back", manager=self.name)
        if self.watch.closed or not self.watch.overdue(now, self.limit_s):
            return LOOK_S
        if await self._close():
            self._remember(Watch(self.watch.at, self.watch.since, closed=True))
            return LOOK_S
        self._tries += 1
        return float(min(RETRY_FIRST_S * 2 ** (self._tries - 1), RETRY_MAX_S))

    @property
    def pending(self) -> bool:
        """True while sensors should be closed and are not confirmed to be."""
        return not self.watch.closed and self.watch.overdue(self.monotonic(), self.limit_s)

    async def _close(self) -> bool:
        try:
            target = self.target()
            if self._open is None:
                self._open = dict(target.slots)
                age = round(self.monotonic() - self.watch.since, 1)
                log("deadman").warning("closing", manager=self.name, natives=sorted(self._open), silent_s=age)
            outcome = await _publish(target.manager, self._open)
        except (QtandemError, TimeoutError) as error:
            why = error.one_line() if isinstance(error, QtandemError) else "the manager did not answer"
            log("deadman").warning("not closed", manager=self.name, why=why, tries=self._tries + 1)
            return False
        self._open = {native: slots for native, slots in self._open.items() if native not in outcome.confirmed}
        if self._open:
            reasons = {native: outcome.failed.get(native, "was not confirmed") for native in self._open}
            log("deadman").warning("not closed", manager=self.name, natives=reasons, tries=self._tries + 1)
            return False
        log("deadman").warning("closed", manager=self.name)
        return True

    def _remember(self, watch: Watch) -> None:
        self.watch = watch
        if watch == self._kept:
            return
        text = json.dumps({"boot": self.boot, **asdict(watch)})
        try:
            write_atomic(self.state, text.encode() + b"\n")
            self._kept = watch
        except OSError as error:
            # It only shortens what a restart has to count anew.
            log("deadman").warning("state not kept", path=str(self.state), cause=str(error))

    def _recall(self) -> Watch | None:
        try:
            kept = json.loads(self.state.read_bytes())
            watch = Watch(None if kept["at"] is None else float(kept["at"]), float(kept["since"]), bool(kept["closed"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return watch if kept.get("boot") == self.boot and watch.since <= self.monotonic() else None


def find_target(name: str, runtime_dir: Path, configuration: Callable[[], Configuration]) -> Target:
    """The manager and its natives, from the configuration here and the names mirrored from the daemon.

    Either may be missing: a manager's host needs no list of resources, and a boot empties the mirror. Raises
    `bad-config` when both are, since then it is not known what to close.
    """
    mirrored = {row.name: (row.native, row.slots) for row in _mirrored(runtime_dir)}
    try:
        settings = configuration()
    except QtandemError as error:
        if not mirrored:
            raise
        log("deadman").warning("configuration unusable", why=error.one_line())
        settings = None
    own = {one.name: (one.native, one.slots) for one in settings.catalog.resources.values()} if settings else {}
    known = {**mirrored, **own}
    if not known:
        raise QtandemError("bad-config", "No resource is known here", remedy="Start the relay once, or set resources.")
    options = settings.settings.managers.get(name) if settings else None
    natives = {resource: native for resource, (native, _) in known.items()}
    manager = registry.build(name, options or ManagerSettings(), natives)
    return Target(manager, dict(known.values()))


async def watch_forever(deadman: DeadMan, notifier: Notifier, stop: asyncio.Event) -> None:
    """Step until `stop`."""
    notifier.ready(f"Watching for {deadman.name}")
    while not stop.is_set():
        notifier.alive()
        pause = await deadman.step()
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), pause)
    notifier.stopping()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="qtandem-deadman", description="Close a manager's sensors while qtandemd is silent."
    )
    made.add_argument("--manager", required=True, help="the manager, for example slurm")
    made.add_argument("--once", action="store_true", help="look once; for a timer or cron")
    made.add_argument("--config", metavar="FILE", type=Path, help="qtandem.toml; default: the site's")
    return made


def main(argv: list[str] | None = None) -> int:
    """Run in a loop, or one step with `--once` (exit status 4: something is still to be closed)."""
    arguments = parser().parse_args(argv)
    try:
        settings = load(arguments.config).settings
        logs.setup(settings.daemon.log_level)
        if arguments.manager not in registry.names():
            raise QtandemError("bad-config", f"There is no manager {arguments.manager!r}")
        runtime_dir = settings.daemon.runtime_dir
        deadman = DeadMan(
            name=arguments.manager,
            runtime_dir=runtime_dir,
            limit_s=settings.timing.deadman_s,
            target=lambda: find_target(arguments.manager, runtime_dir, lambda: load(arguments.config)),
            # systemd's RuntimeDirectory= of a user who may not write to ours.
            state=Path(os.environ.get("RUNTIME_DIRECTORY") or runtime_dir) / f"deadman-{arguments.manager}.json",
            boot=_boot_id(),
        )
        if arguments.once:
            return asyncio.run(_once(deadman))
        asyncio.run(_serve(deadman))
    except QtandemError as error:
        return logs.ended("qtandem-deadman", error)
    return 0


async def _publish(manager: Manager, slots: Mapping[str, int]) -> Published:
    values = [SensorValue(native, total, total) for native, total in slots.items()]
    async with asyncio.timeout(PUBLISH_DEADLINE_S):
        return await manager.publish(values)


async def _once(deadman: DeadMan) -> int:
    await deadman.step()
    return EXIT_LATER if deadman.pending else 0


async def _serve(deadman: DeadMan) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await watch_forever(deadman, Notifier(), stop)


def _mirrored(runtime_dir: Path) -> tuple[NameRow, ...]:
    try:
        return read_names(runtime_dir)
    except (QtandemError, OSError) as error:
        log("deadman").warning("names unusable", why=str(error))
        return ()


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
