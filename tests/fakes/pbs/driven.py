"""The process that speaks libpbs, with calls by which tests drive the jobs of its library."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from qtandem.core.processes import Process, start_child
from qtandem.pbs import child
from qtandem.pbs.apart import PROGRAM, Apart
from qtandem.pbs.ifl import Attribute, Library
from qtandem.pbs.speaker import ByLibrary
from tests.fakes.pbs.standin import libpbs


class Driven(ByLibrary):
    """`Port` and what a user would do."""

    async def submit(self, attributes: list[list[str]]) -> str:
        given = [Attribute(name, value, resource) for name, resource, value in attributes]
        return self._connected().submit(given)

    async def run(self, id: str) -> None:
        self._connected().run(self._full(id))

    async def delete(self, id: str) -> None:
        self._connected().delete(self._full(id))


async def start(argv: Sequence[str], _env: Mapping[str, str], cwd: Path | None) -> Process:
    """Start this module in the place of the process that `argv` means."""
    assert argv[0] == PROGRAM
    path = os.pathsep.join(filter(None, sys.path))
    return await start_child([sys.executable, "-m", __name__, argv[-1]], {"PYTHONPATH": path}, cwd)


def driven(library: Path | None = None) -> Apart:
    return Apart(child.LIBRARY, str(library or libpbs()), launch=start)


def main(library: str) -> None:
    def anything(_value: object) -> bool:
        return True

    child.CALLS = {
        **child.CALLS, "submit": {"attributes": anything}, "run": {"id": anything}, "delete": {"id": anything},
    }  # fmt: skip
    child.port = lambda _how, place: Driven(Library(Path(place)))
    child.main((child.LIBRARY, library))


if __name__ == "__main__":
    main(sys.argv[1])
