"""What verbs print: tables on a terminal, tab-separated lines elsewhere, JSON where it is asked for."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from qtandem.core.client.transport import Daemon

WORDS = 24


def api(deadline_s: float = 30.0) -> Daemon:
    return Daemon(deadline_s=deadline_s)


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2 if sys.stdout.isatty() else None, ensure_ascii=False))


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "", aligned: bool | None = None
) -> None:
    """Cells that are None show as `-`. Aligned (default: on a terminal), `empty` is said where there are no rows."""
    texts = [[_cell(cell) for cell in row] for row in rows]
    if not (sys.stdout.isatty() if aligned is None else aligned):
        for line in [[name.lower().replace(" ", "_") for name in columns], *texts]:
            print("\t".join(line))
        return
    if not texts:
        print(empty or "none")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    numeric = [all(_numeric(row[number]) for row in texts) for number in range(len(columns))]
    for number, name in enumerate(columns):
        words = number == len(columns) - 1 and not numeric[number]
        justify: Literal["left", "right"] = "right" if numeric[number] else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=not words)
    for row in texts:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.width = max(console.width, _least(columns, texts))
    console.print(table)


@contextmanager
def progress(text: str) -> Iterator[Progress]:
    """A line on stderr while something is waited for; nothing where stderr is not a terminal."""
    shown = Progress(text)
    if not sys.stderr.isatty():
        yield shown
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        shown.update = lambda line: status.update(line)
        yield shown


class Progress:
    """`say` changes the line."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._since = time.monotonic()
        self.update: Callable[[str], object] = _unseen

    def say(self, state: str) -> None:
        self.update(f"{self._text}: {state}, {time.monotonic() - self._since:.0f} s")


def _unseen(text: str) -> None:
    """Where there is no terminal, progress is not shown."""


def moment(at: float | None) -> str | None:
    """A Unix time as local date and time."""
    return None if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def harmless(text: str) -> str:
    """One line, without what a terminal would take for a command: others chose these words."""
    line = " ".join(text.split())
    return "".join(char if char.isprintable() else "?" for char in line)


def _least(columns: Sequence[str], texts: Sequence[Sequence[str]]) -> int:
    """Width in which ids and names stay whole, and the words of the last column have some room.

    A terminal that is narrower breaks the lines itself: that can be read and copied, cells in pieces cannot.
    """
    widths = [max(map(len, cells)) for cells in zip(columns, *texts, strict=True)]
    return sum(widths[:-1]) + 2 * (len(widths) - 1) + min(widths[-1], WORDS)


def _cell(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return harmless(str(value))


def _numeric(text: str) -> bool:
    return text == "-" or text.replace(".", "").replace("/", "").replace("e-", "").isdigit()
