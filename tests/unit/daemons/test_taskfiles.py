"""What tasks leave on the daemon's disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from qtandem.core.errors import QtandemError
from qtandem.daemons.taskfiles import KEEP_RESULTS_S, TaskFiles


def put_result(files: TaskFiles, task: str, uid: int, text: str) -> None:
    receiving = files.receive(task, uid)
    receiving.write(text.encode())
    receiving.keep()
    files.settle(task, uid)


def read(files: TaskFiles, task: str, uid: int) -> str | None:
    file = files.result(task, uid)
    if file is None:
        return None
    with file:
        return file.read().decode()


def test_results_of_one_user_fill_no_disk_and_cost_others_nothing(tmp_path: Path) -> None:
    files = TaskFiles(tmp_path, most_results=100_000)
    put_result(files, "theirs", 1001, "y")
    for number in range(40):
        put_result(files, f"t{number}", 1000, "x" * 10_000)
        os.utime(tmp_path / "tasks" / "1000" / f"t{number}.result", (number, number))
    kept = [number for number in range(40) if read(files, f"t{number}", 1000) is not None]
    assert sum(path.stat().st_size for path in tmp_path.rglob("t*.result")) <= 100_000
    assert kept == list(range(kept[0], 40))
    assert read(files, "theirs", 1001) == "y"


def test_what_an_earlier_daemon_kept_counts(tmp_path: Path) -> None:
    put_result(TaskFiles(tmp_path, most_results=50_000), "old", 1000, "x" * 40_000)
    put_result(TaskFiles(tmp_path, most_results=50_000), "new", 1000, "x" * 20_000)
    files = TaskFiles(tmp_path)
    assert (read(files, "old", 1000), read(files, "new", 1000)) == (None, "x" * 20_000)


def test_files_are_private_and_go_after_a_week(tmp_path: Path) -> None:
    files = TaskFiles(tmp_path)
    files.put_payload("a", {"kind": "qasm2"})
    put_result(files, "a", 1000, "x")
    assert read(files, "a", 1001) is None
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tasks").rglob("*")}
    assert modes == {0o600, 0o700}
    now = (tmp_path / "tasks" / "a.payload").stat().st_mtime
    assert files.sweep(now + KEEP_RESULTS_S - 60) == 0
    assert files.sweep(now + KEEP_RESULTS_S + 60) == 2
    assert read(files, "a", 1000) is None


def test_a_result_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    files = TaskFiles(tmp_path)
    receiving = files.receive("a", 1000)
    receiving.write(b"half")
    assert read(files, "a", 1000) is None
    receiving.drop()
    receiving.write(b"late")
    assert [*(tmp_path / "tasks" / "1000").iterdir()] == []
    with pytest.raises(QtandemError) as caught:
        receiving.keep()
    assert caught.value.code == "internal"


def test_two_who_fetch_the_same_result_do_not_mix_it(tmp_path: Path) -> None:
    files = TaskFiles(tmp_path)
    one, other = files.receive("a", 1000), files.receive("a", 1000)
    one.write(b"whole")
    other.write(b"who")
    one.keep()
    other.write(b"le")
    other.keep()
    assert read(files, "a", 1000) == "whole"


def test_a_disk_that_is_full_is_told_when_the_worker_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receiving = TaskFiles(tmp_path).receive("a", 1000)
    monkeypatch.setattr(receiving, "_file", os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb", 0))
    receiving.write(b"x")
    receiving.write(b"y")
    with pytest.raises(QtandemError, match="cannot be written") as caught:
        receiving.keep()
    assert caught.value.cause == "No space left on device"
    assert [*(tmp_path / "tasks" / "1000").iterdir()] == []
