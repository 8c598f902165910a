"""TOML out of the models of the configuration: what is in force, and a commented example."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from qtandem.core.settings import Settings

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PASSWORD = re.compile(r"(?<=:)[^:/@]+(?=@)")
_WIDTH = 110

# Names and values that make a table of the example speak; every key must be one of its model.
_NAMES = {
    "resources": "ibm_fez",
    "managers": "slurm",
    "secrets": "QRMI_IBM_QCS_IAM_APIKEY",
    "observe_secrets": "QRMI_IBM_QCS_IAM_APIKEY",
}
_SHOWN: Mapping[str, Mapping[str, Any]] = {
    "resources": {
        "slots": 1,
        "max_queue": 20,
        "max_wait": "40m",
        "reachable_from.partitions": ["quantum"],
        "reachable_from.nodes": "c[1-4]",
        "allow.accounts": ["qc"],
        "price": 1.6,
        "currency": "USD",
        "qubits": 156,
        "max_shots": 100_000,
        "poll_s": 30,
        "effects": {"paused": "open"},
    },
    "secrets": {"file": "/etc/qtandem/secrets/fez"},
    "observe_secrets": {"command": ["/usr/bin/vault", "kv", "get", "-field=key", "secret/fez"]},
    "managers": {"cluster": "mycluster", "service_users": ["slurm"]},
}
_CLASSES = {"big": "any:qubits=100", "ibm": "ibm_fez/ibm_torino"}


def plain(settings: Settings) -> dict[str, Any]:
    """The settings as plain values, without the password of a database URL."""
    values = settings.model_dump(mode="json", exclude_none=True)
    values["daemon"]["database"] = _PASSWORD.sub("***", values["daemon"]["database"])
    return values


def document(values: Mapping[str, Any], path: str = "") -> str:
    """TOML text of nested plain values; empty tables are left out."""
    lines = [f"{key(name)} = {value(item)}" for name, item in values.items() if not isinstance(item, Mapping)]
    parts = [f"\n[{path}]\n" if path and lines else "", *(f"{line}\n" for line in lines)]
    for name, item in values.items():
        if isinstance(item, Mapping):
            parts.append(document(item, f"{path}.{key(name)}" if path else key(name)))
    return "".join(parts)


def key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def value(item: Any) -> str:
    if isinstance(item, bool):
        return str(item).lower()
    if isinstance(item, int | float):
        return f"{item:g}" if isinstance(item, float) and item.is_integer() else repr(item)
    if isinstance(item, list | tuple):
        return "[" + ", ".join(value(part) for part in item) + "]"
    if isinstance(item, Mapping):
        pairs = ", ".join(f"{key(name)} = {value(part)}" for name, part in item.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    # JSON's escapes are TOML's, but for DEL.
    return json.dumps(str(item), ensure_ascii=False).replace("\x7f", "\\u007f")


def example() -> str:
    """Every key of `qtandem.toml`, commented out at its default, with what it means."""
    lines = [
        "# qtandem.toml: all keys. A line that is commented out shows the default, or an example in its place.",
        "# Check the file with: qtandem config check",
        "",
    ]
    lines += _section(Settings, "", {})
    return "\n".join(lines).rstrip() + "\n"


def _section(model: type[BaseModel], path: str, shown: Mapping[str, Any]) -> Iterator[str]:
    inner: list[tuple[str, FieldInfo, type[BaseModel], bool]] = []
    for name, info in model.model_fields.items():
        nested, table = _nested(info)
        if nested is not None:
            inner.append((name, info, nested, table))
        elif path == "" and name == "classes":
            continue
        else:
            yield from _entry(name, info, shown)
    for name, _, nested, table in inner:
        yield from _table(name, nested, table, path, shown)
    if path == "":
        yield from _classes(model.model_fields["classes"])


def _table(name: str, model: type[BaseModel], table: bool, path: str, shown: Mapping[str, Any]) -> Iterator[str]:
    title = f"{path}{name}" + (f".{_NAMES[name]}" if table else "")
    chosen = _SHOWN.get(name, {}) if table else _below(shown, name)
    yield ""
    yield f"# {(model.__doc__ or '').strip().splitlines()[0]}"
    optional = table or "." in title
    yield f"{'# ' if optional else ''}[{title}]"
    yield from _section(model, f"{title}.", chosen)


def _entry(name: str, info: FieldInfo, shown: Mapping[str, Any]) -> Iterator[str]:
    default = info.get_default(call_default_factory=True)
    item = shown.get(name, default)
    text = f"# {name} = {'' if item is None else value(_simple(item))}".rstrip()
    meaning = " ".join(filter(None, [info.description, _choices(info)]))
    comment = f"  # {meaning}" if meaning else ""
    if len(text) + len(comment) <= _WIDTH:
        yield text + comment
    else:
        yield f"#   {meaning}:"
        yield text


def _classes(info: FieldInfo) -> Iterator[str]:
    yield ""
    yield f"# {(info.description or '').capitalize()}."
    yield "[classes]"
    for name, request in _CLASSES.items():
        yield f"# {name} = {value(request)}"


def _nested(info: FieldInfo) -> tuple[type[BaseModel] | None, bool]:
    """The model below a key, and whether it is a table of names."""
    kinds = [info.annotation, *get_args(info.annotation)]
    models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return (models[0] if models else None), get_origin(info.annotation) is dict


def _choices(info: FieldInfo) -> str:
    if get_origin(info.annotation) is not Literal:
        return ""
    words = [str(word) for word in get_args(info.annotation)]
    return f"({', '.join(words)})" if len(words) > 1 else ""


def _simple(item: Any) -> Any:
    if isinstance(item, bool | int | float | str | list | tuple | Mapping):
        return item
    return str(item)


def _below(shown: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {rest: item for path, item in shown.items() for head, _, rest in [path.partition(".")] if head == name}
