"""The models of the configuration as rows, for every page that lists them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pydantic import BaseModel


class Row(NamedTuple):
    key: str
    default: str
    meaning: str


def sections(path: str, model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel], list[Row]]]:
    """Path, model and rows of each table of the file, outer ones first."""
    inner: list[tuple[str, type[BaseModel]]] = []
    rows: list[Row] = []
    for name, info in model.model_fields.items():
        kinds = [info.annotation, *getattr(info.annotation, "__args__", ())]
        models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if models:
            table = getattr(info.annotation, "__origin__", None) is dict
            inner.append((f"{path}{name}" + (".NAME" if table else ""), models[0]))
        else:
            shown = "" if info.is_required() else _toml(info.get_default(call_default_factory=True))
            rows.append(Row(name, shown, info.description or ""))
    yield path.rstrip("."), model, rows
    for name, kind in inner:
        yield from sections(f"{name}.", kind)


def _toml(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:g}"
    if isinstance(value, tuple | list):
        return "[]"
    return "{}" if isinstance(value, dict) else f'"{value}"'
