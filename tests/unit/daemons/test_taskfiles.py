"""What tasks leave on the daemon's disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from qtandem.daemons.taskfiles import KEEP_RESULTS_S, TaskFiles


def test_results_of_one_user_fill_no_disk_and_cost_others_nothing(tmp_path: Path) -> None:
    files = TaskFiles(tmp_path, most_results=100_000)
    files.put_result("theirs", 1001, "y")
    for number in range(40):
        files.put_result(f"t{number}", 1000, "x" * 10_000)
        os.utime(tmp_path / "tasks" / "1000" / f"t{number}.result", (number, number))
    kept = [number for number in range(40) if files.result(f"t{number}", 1000) is not None]
    assert sum(path.stat().st_size for path in tmp_path.rglob("t*.result")) <= 100_000
    assert kept == list(range(kept[0], 40))
    assert files.result("theirs", 1001) == "y"


def test_what_an_earlier_daemon_kept_counts(tmp_path: Path) -> None:
    TaskFiles(tmp_path, most_results=50_000).put_result("old", 1000, "x" * 40_000)
    TaskFiles(tmp_path, most_results=50_000).put_result("new", 1000, "x" * 20_000)
    files = TaskFiles(tmp_path)
    assert (files.result("old", 1000), files.result("new", 1000)) == (None, "x" * 20_000)


def test_files_are_private_and_go_after_a_week(tmp_path: Path) -> None:
    files = TaskFiles(tmp_path)
    files.put_payload("a", {"kind": "qasm2"})
    files.put_result("a", 1000, "x")
    assert files.result("a", 1001) is None
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tasks").rglob("*")}
    assert modes == {0o600, 0o700}
    now = (tmp_path / "tasks" / "a.payload").stat().st_mtime
    assert files.sweep(now + KEEP_RESULTS_S - 60) == 0
    assert files.sweep(now + KEEP_RESULTS_S + 60) == 2
    assert files.result("a", 1000) is None
