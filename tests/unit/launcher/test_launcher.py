"""What runs under another user, and what the daemon's uid cannot make the launcher do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from qtandem.core import commands
from qtandem.core.commands import CommandError
from qtandem.core.errors import QtandemError
from qtandem.core.launching import Launcher, LauncherError
from qtandem.core.leases import cipher
from qtandem.core.providers.base import ProviderSpec
from qtandem.core.providers.pool import Workers

PROBE = {"start": "command", "manager": "probe", "program": "echo", "arguments": ["show"]}


@pytest.fixture
def kit(request: pytest.FixtureRequest) -> Any:
    """The helpers of this folder's conftest."""
    return next(
        plugin
        for plugin in request.config.pluginmanager.get_plugins()
        if getattr(plugin, "__file__", None) == str(Path(__file__).with_name("conftest.py"))
    )


@pytest.fixture
def as_daemon(kit, rig):
    with kit.caller():
        yield Launcher(rig.socket)


async def run(launcher: Launcher, *argv: str, manager: str = "probe", **options: Any) -> commands.Result:
    return await commands.run(argv, timeout_s=10, start=launcher.commands(manager), **options)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def until(good: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not good():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def simulator(folder: Path) -> dict[str, ProviderSpec]:
    return {"sim": ProviderSpec("sim", "simulator", {"state_dir": str(folder), "backend": "ideal", "qubits": "3"})}


@pytest.fixture
def state(rig, kit) -> Path:
    """A folder for the simulator that is the worker's."""
    folder = rig.folder / "state"
    with kit.caller("root"):
        folder.mkdir(mode=0o700)
        os.chown(folder, pwd.getpwnam("nobody").pw_uid, -1)
    return folder


# ---- what it does


async def test_a_worker_serves_under_its_own_uid_without_any_capability(kit, as_daemon, state):
    workers = Workers(simulator(state), launch=as_daemon.worker)
    try:
        assert (await workers.call("sim", "observe")).availability == "online"
        (stats,) = workers.stats()
        assert stats.pid is not None
        shown = kit.status(stats.pid)
        uid = str(pwd.getpwnam("nobody").pw_uid)
        assert shown["Uid"].split() == [uid] * 4
        assert str(pwd.getpwnam("daemon").pw_gid) not in shown["Gid"].split() + shown["Groups"].split()
        assert {shown[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
        assert shown["NoNewPrivs"] == "1"
        assert stats.rss > 0
    finally:
        await workers.close()
    assert gone(stats.pid)


async def test_workers_and_commands_cannot_read_the_master_key_or_the_database(as_daemon, rig):
    key, database = rig.own / "master.key", rig.own / "qtandem.db"
    cipher.load(key)
    database.write_text("leases")
    database.chmod(0o600)
    for file in (key, database):
        for manager in ("spy", "probe"):
            argv = ["cat", str(file)] if manager == "spy" else ["sh", "-c", f"cat {file}"]
            with pytest.raises(CommandError, match="ended with status"):
                await run(as_daemon, *argv, manager=manager)
    workers = Workers(simulator(rig.own), launch=as_daemon.worker)
    with pytest.raises(QtandemError, match="sim"):
        await workers.call("sim", "observe")
    await workers.close()


async def test_a_command_gets_roots_environment_and_nothing_of_the_callers(as_daemon, monkeypatch):
    monkeypatch.setenv("SLURM_JWT", "secret")
    shown = await run(
        as_daemon, "sh", "-c", "env; pwd; umask", env={"LD_PRELOAD": "/tmp/evil.so", "SLURM_CONF": "/tmp/evil"}
    )
    lines = set(shown.stdout.splitlines()) - {"_=/usr/bin/env"}
    wanted = {
        "SLURM_CONF=/etc/slurm/slurm.conf",
        "LC_ALL=C",
        "PWD=/",
        "LANG=C.UTF-8",
        "PATH=/usr/bin:/bin",
        "/",
        "0077",
    }
    assert lines == wanted | {f"HOME={pwd.getpwnam('games').pw_dir}"}


async def test_input_output_and_status_come_through(as_daemon):
    big = "x" * 300_000
    done = await run(as_daemon, "sh", "-c", "cat; echo sorry >&2; exit 3", stdin=big, check=False)
    assert (done.stdout, done.stderr, done.exit) == (big, "sorry\n", 3)
    killed = await run(as_daemon, "sh", "-c", "kill -TERM $$", check=False)
    assert killed.exit == -15
    handles = (await run(as_daemon, "sh", "-c", "ls /proc/self/fd")).stdout.split()
    assert len(handles) == 4  # ls itself has the directory open


async def test_a_command_is_ended_at_its_deadline_with_what_it_hid(as_daemon, kit, rig):
    with kit.caller("root"):
        note = rig.folder / "pids"
        note.touch()
        note.chmod(0o666)
    hide = f"setsid sh -c 'echo $$ >> {note}; exec sleep 300' & echo $$ >> {note}; exec sleep 300"
    with pytest.raises(CommandError, match="no answer"):
        await commands.run(["sh", "-c", hide], timeout_s=0.5, start=as_daemon.commands("probe"))
    pids = [int(line) for line in note.read_text().split()]
    assert len(pids) == 2
    assert all(map(gone, pids))


async def test_what_runs_ends_with_the_daemon(as_daemon):
    process = await as_daemon.worker("simulator")
    process._connection.close()  # as the kernel does for a daemon that was killed
    await until(lambda: gone(process.pid))


async def test_workers_outlive_the_launcher_and_new_ones_come_when_it_is_back(as_daemon, state, rig, kit):
    specs = simulator(state) | {"other": ProviderSpec("other", "simulator", {"state_dir": str(state), "token": "y"})}
    workers = Workers(specs, launch=as_daemon.worker)
    try:
        await workers.call("sim", "observe")
        rig.kill()
        await workers.call("sim", "observe")
        with pytest.raises(QtandemError, match="No worker process can be started") as caught:
            await workers.call("other", "observe")
        assert caught.value.code == "no-worker"
        assert caught.value.retryable
        assert "launcher" in (caught.value.cause or "")
        with kit.caller("root"):
            rig.start()
        await workers.call("other", "observe")
        assert workers.running() == 2
    finally:
        await workers.close()


async def test_a_type_that_needs_root_has_its_uid_and_serves_nothing_else(as_daemon, kit, state):
    started = []

    async def rooted(_type: str):
        started.append(await as_daemon.worker("rooted"))
        return started[-1]

    workers = Workers(simulator(state), launch=rooted)
    try:
        with pytest.raises(QtandemError, match="serves rooted only"):
            await workers.call("sim", "observe")
        shown = kit.status(started[0].pid)
        assert shown["Uid"].split() == ["0"] * 4
        assert {shown[f"Cap{kind}"] for kind in ("Prm", "Eff", "Bnd")} == {"0" * 16}
    finally:
        await workers.close()


# ---- what it refuses


@pytest.mark.parametrize("name", ["root", "nobody", "games"])
async def test_no_other_uid_may_use_it(rig, kit, name):
    with kit.caller("root"):
        rig.socket.chmod(0o666)
    with kit.caller(name), pytest.raises(LauncherError):
        await Launcher(rig.socket).worker("simulator")


def test_the_socket_is_closed_to_others(rig):
    found = rig.socket.stat()
    assert (found.st_uid, found.st_gid) == (0, pwd.getpwnam("daemon").pw_gid)
    assert found.st_mode & 0o777 == 0o660


def ask(rig: Any, message: bytes, handles: Sequence[int] | None = None) -> dict[str, Any]:
    """Send raw bytes and handles; the answer."""
    pipes = [os.pipe() for _ in range(3)]
    given = [pipes[0][0], pipes[1][1], pipes[2][1]] if handles is None else handles
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(10)
        connection.connect(str(rig.socket))
        socket.send_fds(connection, [message], list(given))
        answer = json.loads(connection.recv(4096))
    for pair in pipes:
        os.close(pair[0]), os.close(pair[1])
    return answer


def test_a_planned_command_is_started(as_daemon, rig):
    assert "pid" in ask(rig, json.dumps(PROBE).encode())
    assert "pid" in ask(rig, json.dumps(PROBE | {"arguments": ["set", "qpu_a=1,qpu_b=0"]}).encode())


HOSTILE = {
    "another program": PROBE | {"program": "sh2"},
    "a path": PROBE | {"program": "../../../../bin/sh"},
    "an absolute path": PROBE | {"program": "/bin/sh"},
    "another manager": PROBE | {"manager": "slurm"},
    "a manager's part": PROBE | {"manager": "probe.commands"},
    "arguments beyond the plan": PROBE | {"arguments": ["licence", "name=x", "force"]},
    "arguments before the plan": PROBE | {"arguments": ["--config=/tmp/x", "show"]},
    "no arguments": PROBE | {"arguments": []},
    "more than the expression": PROBE | {"arguments": ["set", "qpu_a=1,slots=0"]},
    "a line after the expression": PROBE | {"arguments": ["set", "qpu_a=1\n"]},
    "digits of another script": PROBE | {"arguments": ["set", "qpu_a=١"]},
    "a null byte": PROBE | {"arguments": ["show", "a\0b"]},
    "half a character": PROBE | {"arguments": ["show", "\ud800"]},
    "numbers": PROBE | {"arguments": [1]},
    "text for a list": PROBE | {"arguments": "show"},
    "an environment": PROBE | {"environment": {"LD_PRELOAD": "/tmp/evil.so"}},
    "an account": PROBE | {"user": "root"},
    "argv": {"start": "worker", "type": "simulator", "argv": ["/bin/sh"]},
    "a module": {"start": "worker", "type": "simulator", "module": "os"},
    "code for a type": {"start": "worker", "type": "x'; import os"},
    "a long type": {"start": "worker", "type": "x" * 65},
    "a list for a type": {"start": "worker", "type": ["simulator"]},
    "another start": {"start": "shell", "type": "simulator"},
    "a list": [PROBE],
    "nothing": {},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_only_what_root_planned_is_started(as_daemon, rig, name):
    assert set(ask(rig, json.dumps(HOSTILE[name]).encode())) == {"error"}


@pytest.mark.parametrize("message", [b"{", b"[" * 60_000, b"\xff\xfe", b"1" * 9_000, b'"x"', b" " * 140_000])
def test_what_is_no_message_is_refused_and_the_next_is_served(as_daemon, rig, message):
    assert set(ask(rig, message)) == {"error"}
    assert "pid" in ask(rig, json.dumps(PROBE).encode())


def test_only_three_pipes_in_their_directions_are_taken(as_daemon, rig, kit):
    good = json.dumps(PROBE).encode()
    read, write = os.pipe()
    own = [os.open(rig.own / "file", os.O_RDWR | os.O_CREAT, 0o600), os.open("/", os.O_RDONLY)]
    some = [[], [read], [read, write], [write, read, read], [read, write, own[0]], [own[1], write, write]]
    for handles in [*some, [read, write, write, write], [read] * 60]:
        assert set(ask(rig, good, handles)) == {"error"}, handles
    for handle in (read, write, *own):
        os.close(handle)


async def test_a_second_message_ends_what_the_first_started(as_daemon, rig):
    pipes = [os.pipe() for _ in range(3)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(10)
        connection.connect(str(rig.socket))
        order = PROBE | {"program": "sh", "arguments": ["-c", "sleep 300"]}
        socket.send_fds(connection, [json.dumps(order).encode()], [pipes[0][0], pipes[1][1], pipes[2][1]])
        pid = json.loads(connection.recv(4096))["pid"]
        connection.send(json.dumps(PROBE).encode())
        await until(lambda: gone(pid))
    for pair in pipes:
        os.close(pair[0]), os.close(pair[1])


async def test_silent_callers_hold_up_nobody_but_are_bounded(as_daemon, rig):
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(20)]
    for one in silent:
        one.connect(str(rig.socket))
    assert (await run(as_daemon, "echo", "show", "it")).stdout == "show it\n"
    for one in silent:
        one.close()


async def test_more_than_the_most_processes_are_refused(as_daemon, rig, kit):
    rig.kill()
    with kit.caller("root"):
        rig.config.write_text("most = 1\n" + rig.config.read_text())
        rig.start()
    # Our look whether it listens was a connection too.
    for _ in range(500):
        with contextlib.suppress(LauncherError):
            first = await as_daemon.worker("simulator")
            break
        await asyncio.sleep(0.01)
    with pytest.raises(LauncherError):
        await as_daemon.worker("simulator")
    first.kill()
    await first.wait()


# ---- root's file


def refused(rig: Any) -> str:
    argv = [*rig.command, "--check", "--config", str(rig.config)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 5, done
    return done.stderr


def test_a_file_that_others_can_write_is_refused(rig):
    rig.config.chmod(0o666)
    assert "can be written by others" in refused(rig)
    rig.config.chmod(0o644)
    os.chown(rig.config, 1, 1)
    assert "can be written by others" in refused(rig)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('user = "games"', 'user = "root"', "as root"),
        ('user = "nobody"', 'user = "nobody-at-all"', "no user nobody-at-all"),
        ('"/bin/echo"', '"bin/echo"', "not an absolute path"),
        ("memory_mb", "memory", "is not a key"),
        ("root_types", "root_type", "is not a key"),
        ("re:qpu_", "re:(qpu_", "is no regular expression"),
        ("[worker]", "[worker", "line"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(rig, old, new, why):
    rig.config.write_text(rig.config.read_text().replace(old, new, 1))
    assert why in refused(rig)


def test_a_right_file_passes_the_check(rig):
    subprocess.run([*rig.command, "--check", "--config", str(rig.config)], check=True, timeout=20)


async def test_a_command_that_others_can_write_is_not_started(as_daemon, rig, kit):
    rig.kill()
    with kit.caller("root"):
        program = rig.folder / "echo"
        program.write_text("#!/bin/sh\necho hello\n")
        program.chmod(0o777)
        rig.config.write_text(rig.config.read_text().replace("/bin/echo", str(program)))
        rig.start()
    with pytest.raises(CommandError, match="can be written by others"):
        await run(as_daemon, "echo", "show")
    with kit.caller("root"):
        program.chmod(0o755)
    assert (await run(as_daemon, "echo", "show")).stdout == "hello\n"
