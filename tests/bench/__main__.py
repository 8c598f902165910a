"""Runs every bench here, or those named; writes docs/benchmarks.md and bench-results.json.

    python -m tests.bench [NAME ...]

A bench is a module of this folder with `rows() -> Iterable[Row]`, or `skip() -> str` with the reason why it
cannot run on this machine. Exit status 1 if a required row misses its bound.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path

from tests.bench.rows import Row

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = ROOT / "bench-results.json"
PAGE = ROOT / "docs" / "benchmarks.md"
HELPERS = {"__init__", "__main__", "rows"}


def names() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in HELPERS and not path.stem.startswith("_"))


def run(name: str) -> tuple[list[Row], str]:
    """The rows of one bench, or the reason why there are none."""
    module = importlib.import_module(f"tests.bench.{name}")
    reason = module.skip() if hasattr(module, "skip") else ""
    return ([], reason) if reason else (list(module.rows()), "")


def figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def page(benches: dict[str, dict[str, object]]) -> str:
    lines = [
        "# Benchmarks",
        "<!-- written by make bench -->",
        "Each peer is measured in the same run. A *required* bound fails `make bench`; a *target* is reported.",
    ]
    for name, bench in benches.items():
        lines += [f"\n## {name}\n", f"{bench['at']}, {bench['machine']}", ""]
        if bench["skipped"]:
            lines.append(f"Not run: {bench['skipped']}")
            continue
        lines += [
            "| figure | value | unit | bound | holds | peer | peer's value | ratio |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for fields in bench["rows"]:  # type: ignore[attr-defined]
            row = Row(**fields)
            sign = "≤" if row.sense == "most" else "≥"
            of = " (ratio)" if row.of == "ratio" else ""
            bound = "" if row.bound is None else f"{sign} {figure(row.bound)}{of}, {row.kind}"
            holds = {True: "yes", False: "**no**", None: ""}[row.holds]
            lines.append(
                f"| {row.name} | {figure(row.value)} | {row.unit} | {bound} | {holds} "
                f"| {row.peer} | {figure(row.peer_value)} | {figure(row.ratio)} |"
            )
    return "\n".join(lines) + "\n"


def main() -> int:
    wanted = sys.argv[1:] or names()
    benches: dict[str, dict[str, object]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    missed = []
    for name in wanted:
        rows, reason = run(name)
        for row in rows:
            print(
                f"{name}: {row.name} = {figure(row.value)} {row.unit}",
                f"bound {figure(row.bound)}, ratio {figure(row.ratio)}",
                sep="  ",
            )
            if row.holds is False and row.kind == "required":
                missed.append(f"{name}: {row.name}")
        if reason:
            print(f"{name}: not run: {reason}")
            if name in benches and not benches[name]["skipped"]:
                continue
        benches[name] = {
            "at": time.strftime("%Y-%m-%d"),
            "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
            "skipped": reason,
            "rows": [asdict(row) for row in rows],
        }
        RESULTS.write_text(json.dumps(benches, indent=1, sort_keys=True) + "\n")
        PAGE.write_text(page(benches))
    for name in missed:
        print(f"missed a required bound: {name}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
