"""What a job asks for, in one grammar.

    request = item {"+" item}          all of
    item    = choice [":" slots] {":" key op value}
    choice  = name {"/" name} | "any" | class

Read as synonyms: `|` for `/`, a comma for `+`, `>=` and `<=` where a key has that direction, and QRMI's
filters (`num_qubits=127&status=online`). The canonical form is `str(request)`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from qtandem.core.errors import QtandemError

Op = Literal[">=", "<=", "="]
Value = int | float | str | bool

ANY = "any"
RESERVED = frozenset({ANY, "claim"})
# What users type for a request, with {} in its place, where their manager has no form of its own.
SPELLING = "--qpu={}"
RANKINGS = ("queue", "cost", "score")
MAX_LENGTH = 2000
MAX_SLOTS = 10_000

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")
_KEY = re.compile(r"(?P<key>[a-z_]+)(?P<op>>=|<=|=)(?P<value>.*)", re.DOTALL)
_WORD = re.compile(r"[A-Za-z0-9_*?][A-Za-z0-9_.*?\-]*")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Constraint:
    """One condition on a resource. `op` is the key's fixed direction."""

    key: str
    op: Op
    value: Value

    def __str__(self) -> str:
        return f"{self.key}{self.op}{_show(self.value)}"

    def met_by(self, value: Value | None) -> bool | None:
        """Whether a resource's value satisfies this; None where the resource's value is not known."""
        if value is None:
            return None
        if self.op == "=":
            if isinstance(self.value, str):
                return fnmatch.fnmatchcase(str(value), self.value)
            return value == self.value
        have, want = float(value), float(self.value)
        return have >= want if self.op == ">=" else have <= want


@dataclass(frozen=True, slots=True)
class Item:
    """One needed resource: one of `choices` (a single `any`, a class or names), with `slots` of it."""

    choices: tuple[str, ...]
    slots: int = 1
    constraints: tuple[Constraint, ...] = ()
    by: str | None = None

    @property
    def loop(self) -> bool:
        """Whether its program sends each task in the light of the results before it."""
        return any(constraint.key == "loop" and constraint.value is True for constraint in self.constraints)

    def __str__(self) -> str:
        out = "/".join(self.choices)
        if self.slots != 1:
            out += f":{self.slots}"
        out += "".join(f":{constraint}" for constraint in self.constraints)
        return out + (f":by={self.by}" if self.by else "")


@dataclass(frozen=True, slots=True)
class Request:
    """All items must be granted together."""

    items: tuple[Item, ...]

    def __str__(self) -> str:
        return "+".join(str(item) for item in self.items)


def parse(text: str) -> Request:
    """Read a request; raises `bad-request` that quotes the part and says what to write instead."""
    text = text.strip()
    if not text:
        raise _bad("The request is empty")
    if len(text) > MAX_LENGTH:
        raise _bad(f"The request has {len(text)} characters; at most {MAX_LENGTH} are read")
    if not text.isprintable():
        raise _bad("The request holds a control character")
    items = tuple(_item(part) for part in re.split(r"[+,]", text))
    named = [name for item in items for name in item.choices if name != ANY]
    for name in named:
        if named.count(name) > 1:
            raise _bad(f"{name!r} is named more than once in {text!r}", f"For two slots write {name}:2.")
    return Request(items)


def _item(text: str) -> Item:
    head, *rest = (part.strip() for part in re.split(r"[:&]", text))
    choices = tuple(name.strip() for name in re.split(r"[/|]", head))
    for name in choices:
        if not NAME.fullmatch(name):
            raise _bad(f"{name!r} is not a name, in {text!r}" if name else f"A name is missing in {text!r}")
        if name == "claim":
            id = rest[0] if rest else "ID"
            remedy = f"Leave --qpu out, and pass QTANDEM_CLAIM={id} to the job: it then executes on the claim."
            raise _bad("'claim' is a reserved word", remedy)
    if ANY in choices and len(choices) > 1:
        raise _bad(f"'any' stands alone, not beside names, in {text!r}", "Write any, or the names only.")
    slots = 1
    if rest and rest[0].isascii() and rest[0].isdigit():
        slots = int(rest.pop(0))
        if not 1 <= slots <= MAX_SLOTS:
            raise _bad(f"{slots} slots in {text!r}", f"Ask for 1 to {MAX_SLOTS} slots.")
    return _with_keys(Item(choices, slots), rest, text)


def _with_keys(item: Item, parts: list[str], text: str) -> Item:
    constraints: dict[str, Constraint] = {}
    by: str | None = None
    for part in parts:
        match = _KEY.fullmatch(part)
        if match is None:
            raise _bad(f"{part!r} in {text!r} is not key=value", f"The keys are {', '.join(sorted(_KEYS))} and by.")
        key, value = _FILTERS.get(match["key"], match["key"]), match["value"].strip()
        if not value:
            raise _bad(f"{key!r} has no value in {text!r}")
        if key == "status":
            if value != "online":
                raise _bad(f"status={value} in {text!r}", "A job always waits for an online resource; leave it out.")
        elif key == "by":
            if value not in RANKINGS:
                raise _bad(f"by={value} in {text!r}", f"Rank by one of {', '.join(RANKINGS)}.")
            by = value
        elif key in constraints:
            raise _bad(f"{key!r} is given twice in {text!r}")
        else:
            constraints[key] = _constraint(key, match["op"], value, text)
    return Item(item.choices, item.slots, tuple(constraints[key] for key in sorted(constraints)), by)


def _constraint(key: str, op: str, value: str, text: str) -> Constraint:
    if key not in _KEYS:
        raise _bad(f"{key!r} is not a key, in {text!r}", f"The keys are {', '.join(sorted(_KEYS))} and by.")
    direction, read = _KEYS[key]
    if op not in ("=", direction):
        raise _bad(f"{key}{op}{value} in {text!r}", f"{key} has one direction only: {key}{direction}{value}.")
    try:
        return Constraint(key, direction, read(value))
    except ValueError as error:
        raise _bad(f"{key}={value} in {text!r}: {error}") from None


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise ValueError("a whole number is needed")
    return int(text)


def _amount(text: str) -> float:
    if not re.fullmatch(r"\d{1,12}(\.\d{1,12})?(e-?\d{1,2})?", text, re.IGNORECASE):
        raise ValueError("a number is needed, for example 0.01")
    return float(text)


def seconds(text: str) -> float:
    """Read a duration: `90`, `90s`, `40m`, `2h`; raises ValueError."""
    unit = _SECONDS.get(text[-1:])
    return _amount(text[:-1] if unit else text) * (unit or 1.0)


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("true or false is needed")
    return text == "true"


def _word(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise ValueError("letters, digits, '_', '.', '-' and the wildcards * and ? only")
    return text


_KEYS: dict[str, tuple[Op, Callable[[str], Value]]] = {
    "qubits": (">=", _count),
    "shots": (">=", _count),
    "queue": ("<=", _count),
    "cost": ("<=", _amount),
    "wait": ("<=", seconds),
    "error": ("<=", _amount),
    "vendor": ("=", _word),
    "name": ("=", _word),
    "simulator": ("=", _flag),
    "loop": ("=", _flag),
}
_FILTERS = {"num_qubits": "qubits", "max_shots": "shots", "is_simulator": "simulator"}


def _show(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _bad(message: str, remedy: str | None = None) -> QtandemError:
    return QtandemError("bad-request", message, remedy=remedy)
