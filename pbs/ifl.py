"""libpbs by cffi, with typed results and PBS's own error texts. Calls block: the daemon makes them in a child.

Never in a server hook: pbs_server would wait for itself.
"""

from __future__ import annotations

import ctypes.util
from collections.abc import Iterable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from qtandem.pbs._ifl_abi import ffi
from qtandem.pbs.records import Record

PREFIXES = ("/opt/pbs/lib", "/usr/lib", "/usr/lib64", "/usr/local/lib")
# PBS's numbers for errors that callers tell apart.
UNKNOWN_JOB, BAD_REQUEST, NO_SERVER, UNKNOWN_RESOURCE, FINISHED = 15001, 15004, 15034, 15035, 15139


class PbsError(Exception):
    """A call that PBS refused, or could not be asked: its number and its text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code, self.text = code, text


class Command(IntEnum):
    CREATE, DELETE, SET, UNSET = 0, 1, 2, 3


class Object(IntEnum):
    SERVER, QUEUE, JOB, NODE, RESERVATION, RESOURCE, SCHEDULER = 0, 1, 2, 3, 4, 5, 6


class Op(IntEnum):
    SET, UNSET, INCR, DECR, EQ, NE, GE, GT, LE, LT = range(10)


class Attribute(NamedTuple):
    """One attribute in a call; `resource` for `Resource_List` and the like."""

    name: str
    value: str = ""
    resource: str = ""
    op: Op = Op.SET


def find(prefix: str = "") -> Path | None:
    """The library below `prefix` (PBS_EXEC), or where it usually is; None where there is none."""
    places = [Path(prefix) / "lib"] if prefix else [Path(place) for place in PREFIXES]
    for place in places:
        for name in ("libpbs.so.0", "libpbs.so"):
            if (place / name).exists():
                return place / name
    known = None if prefix else ctypes.util.find_library("pbs")
    return Path(known) if known else None


class Library:
    """libpbs at a path; raises OSError where it cannot be loaded."""

    def __init__(self, path: Path) -> None:
        self.calls: Any = ffi.dlopen(str(path))
        # By its name as a text: in a class, Python would change a name with two underscores.
        self._place = getattr(self.calls, "__pbs_errno_location")

    def connect(self, server: str = "") -> Connection:
        """A connection to a server (default: the site's); raises `PbsError`."""
        number = self.calls.pbs_connect(_text(server) if server else ffi.NULL)
        if number <= 0:
            raise PbsError(self.errno() or NO_SERVER, f"cannot connect to {server or 'the PBS server'}")
        return Connection(self, number)

    def default(self) -> str:
        return _read(self.calls.pbs_default())

    def errno(self) -> int:
        return int(self._place()[0])

    def clear(self) -> None:
        self._place()[0] = 0


class Connection:
    """One connection; one thread. After `close`, or with a name that is missing, a call raises `PbsError`."""

    def __init__(self, library: Library, number: int) -> None:
        self._library, self._calls, self._number = library, library.calls, number

    def close(self) -> None:
        if self._number > 0:
            number, self._number = self._number, 0
            self._calls.pbs_disconnect(number)

    def server(self, wanted: Iterable[str] | None = None) -> Record:
        found = self._status(self._calls.pbs_statserver, _List(map(Attribute, wanted or ())).first, ffi.NULL)
        if not found:
            raise PbsError(NO_SERVER, "the server tells nothing of itself")
        return found[0]

    def vnodes(self, name: str | None = None) -> list[Record]:
        return self._status(self._calls.pbs_statvnode, _text(name or ""), ffi.NULL, ffi.NULL)

    def jobs(
        self, id: str | None = None, wanted: Iterable[str] | None = None, extend: str | None = None
    ) -> list[Record]:
        """One job, or all; `extend` "x" has finished ones too, "t" the elements of arrays."""
        names = _List(map(Attribute, wanted or ()))
        id_, more = _text(id) if id else ffi.NULL, _optional(extend)
        return self._status(self._calls.pbs_statjob, id_, names.first, more)

    def select(
        self, chosen: Sequence[Attribute], wanted: Iterable[str] | None = None, extend: str | None = None
    ) -> list[Record]:
        """The jobs that meet all of `chosen`; `extend` "T" has the elements of arrays too."""
        criteria, names, more = _List(chosen), _List(map(Attribute, wanted or ())), _optional(extend)
        return self._status(self._calls.pbs_selstat, criteria.first, names.first, more)

    def hold(self, id: str, kinds: str = "u") -> None:
        self._do(self._calls.pbs_holdjob, _required(id), _required(kinds), ffi.NULL)

    def release(self, id: str, kinds: str = "u") -> None:
        self._do(self._calls.pbs_rlsjob, _required(id), _required(kinds), ffi.NULL)

    def alter(self, id: str, attributes: Sequence[Attribute]) -> None:
        values = _List(attributes)
        self._do(self._calls.pbs_alterjob, _required(id), values.first, ffi.NULL)

    def manage(self, command: Command, object: Object, name: str | None, attributes: Sequence[Attribute]) -> None:
        """What qmgr does. libpbs dies of a name that is NULL: no name is the empty text."""
        values = _List(attributes)
        self._do(self._calls.pbs_manager, int(command), int(object), _text(name or ""), values.first, ffi.NULL)

    def run(self, id: str, location: str | None = None) -> None:
        self._do(self._calls.pbs_runjob, _required(id), _optional(location), ffi.NULL)

    def rerun(self, id: str) -> None:
        self._do(self._calls.pbs_rerunjob, _required(id), ffi.NULL)

    def submit(self, attributes: Sequence[Attribute], script: str | None = None, queue: str | None = None) -> str:
        """The id of the new job; `script` is a path."""
        values = _List(attributes)
        script_, queue_ = _optional(script), _optional(queue)
        made = self._calls.pbs_submit(self._open(), values.first, script_, queue_, ffi.NULL)
        if made == ffi.NULL:
            raise self._error()
        try:
            return _read(made)
        finally:
            self._free(made)

    def delete(self, id: str, extend: str | None = None) -> None:
        self._do(self._calls.pbs_deljob, _required(id), _optional(extend))

    def _open(self) -> int:
        if self._number <= 0:
            raise PbsError(NO_SERVER, "the connection is closed")
        return self._number

    def _do(self, call: Any, *arguments: Any) -> None:
        if call(self._open(), *arguments) != 0:
            raise self._error()

    def _status(self, call: Any, *arguments: Any) -> list[Record]:
        """NULL is the answer for no objects as well as for an error; only the error's number tells."""
        self._library.clear()
        first = call(self._open(), *arguments)
        if first == ffi.NULL:
            if self._library.errno():
                raise self._error()
            return []
        try:
            return [Record(_read(each.name), _values(each.attribs)) for each in _chain(first)]
        finally:
            self._calls.pbs_statfree(first)

    def _error(self) -> PbsError:
        code = self._library.errno()
        return PbsError(code, _read(self._calls.pbs_geterrmsg(self._number)) or f"PBS error {code}")

    def _free(self, memory: Any) -> None:
        _libc().free(memory)


class _List:
    """A linked list of attributes for C; `first` is valid as long as this object."""

    def __init__(self, attributes: Iterable[Attribute]) -> None:
        self._kept: list[Any] = []
        self.first = ffi.NULL
        for attribute in reversed(list(attributes)):
            item = ffi.new("struct attrl *")
            texts = [_text(text) for text in (attribute.name, attribute.value, attribute.resource)]
            item.name, item.value = texts[0], texts[1]
            item.resource = texts[2] if attribute.resource else ffi.NULL
            item.op, item.next = int(attribute.op), self.first
            self._kept += [item, *texts]
            self.first = item


_LIBC: list[Any] = []


def _libc() -> Any:
    if not _LIBC:
        _LIBC.append(ffi.dlopen(None))
    return _LIBC[0]


def _chain(item: Any) -> Iterable[Any]:
    while item != ffi.NULL:
        yield item
        item = item.next


def _values(first: Any) -> dict[str, str]:
    pairs = ((_read(each.name), _read(each.resource), _read(each.value)) for each in _chain(first))
    return {f"{name}.{resource}" if resource else name: value for name, resource, value in pairs}


def _read(text: Any) -> str:
    return "" if text == ffi.NULL else ffi.string(text).decode("utf-8", "replace")


def _text(text: str) -> Any:
    if not isinstance(text, str) or "\x00" in text:
        raise PbsError(BAD_REQUEST, f"{text!r} is no text that PBS can take")
    return ffi.new("char[]", text.encode("utf-8", "surrogateescape"))


def _optional(text: str | None) -> Any:
    return ffi.NULL if text is None else _text(text)


def _required(text: str | None) -> Any:
    if not text:
        raise PbsError(BAD_REQUEST, "a name is missing")
    return _text(text)
