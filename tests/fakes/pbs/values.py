"""The value types of PBS's `pbs` module, with their odd comparisons and quoting.

Written from what OpenPBS (master, April 2026) was seen to do; nothing of it is PBS's own text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any


class UnsetResourceNameError(Exception): ...


class UnsetAttributeNameError(Exception): ...


class BadAttributeValueError(Exception): ...


class BadResourceValueTypeError(Exception): ...


class EventIncompatibleError(Exception): ...


class Value:
    """A value that compares by identity, as most of PBS's do: only its text is of use."""

    def __init__(self, value: object) -> None:
        self._value = str(value)

    def __str__(self) -> str:
        return self._value


class select(Value): ...


class place(Value): ...


class name(Value): ...


class exec_vnode(Value): ...


class hold_types(Value):
    def __init__(self, value: str) -> None:
        if not re.fullmatch(r"[uosnp]+", str(value)):
            raise BadAttributeValueError(f"hold_types: bad value {value!r}")
        super().__init__(value)


class duration(int):
    """Seconds that read as `HH:MM:SS`."""

    def __new__(cls, value: object) -> duration:
        seconds = 0
        for part in str(value).split(":"):
            seconds = seconds * 60 + int(part)
        return super().__new__(cls, seconds)

    def __str__(self) -> str:
        return f"{self // 3600:02d}:{self // 60 % 60:02d}:{self % 60:02d}"


class size(Value): ...


SPECIAL = (",", "'", '"', "\\")
READ_ONLY = {"PBS_ENVIRONMENT", "PBS_JOBDIR", "PBS_JOBID", "PBS_JOBNAME", "PBS_NODEFILE", "TMPDIR", "PBS_QUEUE"}


class pbs_env(dict[str, str]):
    """A list of variables. Values are held escaped: `a,b` reads as `a\\,b`."""

    def __init__(self, value: str | dict[str, str] = "", generic: bool = False) -> None:
        self._generic = generic
        super().__init__(_parsed(value) if isinstance(value, str) else value)

    def __setitem__(self, key: str, value: Any) -> None:
        if not self._generic and (key in READ_ONLY or key.startswith("PBS_O_")):
            raise BadAttributeValueError(f"env variable '{key}' is readonly")
        super().__setitem__(key, _doubled(value) if isinstance(value, str) else value)

    def __str__(self) -> str:
        return "".join(f"{key}={value}," for key, value in self.items() if value is not None).rstrip(",")


def _parsed(text: str) -> dict[str, str]:
    parts = text.replace("\\\\", "\x02\x02").replace("\\,", "\x03\x03").split(",")
    pairs = [part.replace("\x03\x03", "\\,").replace("\x02\x02", "\\\\").split("=", 1) for part in parts]
    return {pair[0]: _doubled(pair[1]) for pair in pairs if len(pair) == 2}


def _doubled(text: str) -> str:
    """Each backslash that escapes nothing, twice."""
    out = []
    for place_, char in enumerate(text):
        after = text[place_ + 1 : place_ + 2]
        before = text[place_ - 1 : place_]
        escapes = (after and after in SPECIAL) or before == "\\"
        out.append("\\\\" if char == "\\" and not escapes else char)
    return "".join(out)


def given_to_the_job(text: str) -> dict[str, str]:
    """What the job finds in its environment for the text of a list, cut at commas as PBS cuts it."""
    found: dict[str, str] = {}
    for part in _cut(text):
        key, equals, value = part.partition("=")
        if equals:
            found[re.sub(r"\\(.)", r"\1", key)] = re.sub(r"\\([\\,'\"])", r"\1", value)
    return found


def _cut(text: str) -> Iterator[str]:
    part, place_ = "", 0
    while place_ < len(text):
        if text.startswith("\\\\\\,", place_):
            # Seen on a real one: a backslash before a comma ends the value.
            part, place_ = part + "\\\\", place_ + 3
        elif text[place_] == "\\" and place_ + 1 < len(text):
            part, place_ = part + text[place_ : place_ + 2], place_ + 2
        elif text[place_] == ",":
            yield part
            part, place_ = "", place_ + 1
        else:
            part, place_ = part + text[place_], place_ + 1
    yield part


# Types by resource name; what is not here PBS does not know.
BUILT_IN: dict[str, type] = {
    "select": select, "place": place, "ncpus": int, "mem": size, "walltime": duration, "nodect": int, "nodes": Value,
}  # fmt: skip


class Resources:
    """A Resource_List: unknown names are refused (names are case-insensitive), and types are checked.

    One that is `lazy` has no keys until somebody asked for an item.
    """

    def __init__(self, known: dict[str, type], values: dict[str, Any] | None = None, lazy: bool = False) -> None:
        self._known, self.lazy = {**BUILT_IN, **known}, lazy
        self._values = {key: self._typed(key, value) for key, value in (values or {}).items()}
        self.written: dict[str, Any] = {}

    def _typed(self, key: str, value: Any) -> Any:
        kind = self._known[key]
        return value if value is None or isinstance(value, kind) else kind(value)

    def _name(self, key: str) -> str:
        found = next((known for known in self._known if known.lower() == key.lower()), None)
        if found is None:
            raise UnsetResourceNameError(f"resource attribute '{key}' not found")
        return found

    def __getitem__(self, key: str) -> Any:
        found = next((known for known in self._known if known == key), None)
        self.lazy = False
        if found is None:
            raise AttributeError(key)
        return self._values.get(found)

    def __setitem__(self, key: str, value: Any) -> None:
        found = self._name(key)
        kind = self._known[found]
        good = isinstance(value, kind) or (kind in (duration, size, str, Value) and isinstance(value, str | int))
        if value is not None and (not good or (kind is str and not isinstance(value, str))):
            raise BadResourceValueTypeError(f"value for <{found}> must be None or {kind.__name__}")
        self._values[found] = self.written[found] = None if value is None else self._typed(found, value)

    def keys(self) -> list[str]:
        return [] if self.lazy else [key for key, value in self._values.items() if value is not None]

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __str__(self) -> str:
        texts = ((key, str(self._values[key])) for key in self._values if self._values[key] is not None)
        return ",".join(f'{key}="{text}"' if "," in text else f"{key}={text}" for key, text in texts)
