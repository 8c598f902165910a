"""`qtandem-launcher`: root's small process that starts vendors' workers and managers' commands under other users.

It runs as root, so: the standard library only, and nothing that it starts comes from a message. A message names an
entry of root's own `launcher.toml`; what the entry starts, as whom, with which environment, `launchplan` says.

One connection (SOCK_SEQPACKET) of the one allowed uid is one process. It brings one message and the ends of three
pipes. A keeper, forked for it, starts the process, answers `{"pid": N}`, and when the process ends `{"exit": N}`;
or `{"error": WHY}`. When the other side closes, or the keeper dies, the process ends with all that it started.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

from qtandem.daemons.launchplan import Account, Plan, Refused, check_trusted, load

CONFIG = Path("/etc/qtandem/launcher.toml")
SOCKET = Path("/run/qtandem-launcher/launcher.sock")
MESSAGE_BYTES, HANDLES = 128 << 10, 3
RECEIVE_S, IDLE_S = 5.0, 60.0
FILES, PROCESSES = 4096, 8192
_UCRED = struct.Struct("3i")
_PDEATHSIG, _CAPBSET_DROP, _SUBREAPER, _NO_NEW_PRIVS, _AMBIENT, _AMBIENT_CLEAR = 1, 24, 36, 38, 47, 4
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]


def serve(listener: socket.socket, plan: Plan) -> None:
    """Answer connections for ever, each in a keeper of its own."""
    keepers: set[int] = set()
    listener.settimeout(IDLE_S)
    while True:
        connection = None
        with suppress(TimeoutError):
            connection, _ = listener.accept()
        keepers -= _ended()
        if connection is None:
            continue
        with connection:
            connection.setblocking(False)
            uid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1]
            if uid != plan.caller.pw_uid:
                refuse(connection, f"uid {uid} may not use the launcher")
            elif len(keepers) >= plan.most:
                refuse(connection, f"{plan.most} processes run already")
            else:
                keepers.add(_fork(partial(_keep_alone, listener, connection, plan)))


def keep(connection: socket.socket, plan: Plan) -> None:
    """Start what one connection asks for and stay until it has ended."""
    connection.settimeout(RECEIVE_S)
    handles: list[int] = []
    try:
        message, handles = receive(connection)
        argv, account = plan.order(message)
        process = start(argv, account, handles)
    except (Refused, OSError, ValueError, subprocess.SubprocessError) as error:
        refuse(connection, str(error))
        return
    finally:
        for handle in handles:
            os.close(handle)
    with suppress(OSError):
        connection.send(json.dumps({"pid": process.pid}).encode())
        first = select.poll()
        first.register(os.pidfd_open(process.pid), select.POLLIN)
        first.register(connection, select.POLLIN)
        first.poll()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    status = process.wait()
    end_orphans()
    with suppress(OSError):
        connection.send(json.dumps({"exit": status}).encode())


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """The message and its three pipes; raises `Refused`, and keeps no handle, for anything else."""
    room = socket.CMSG_SPACE(HANDLES * struct.calcsize("i"))
    message, extra, flags, _ = connection.recvmsg(MESSAGE_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    handles: list[int] = []
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            handles += struct.unpack(f"{len(data) // 4}i", data[: len(data) // 4 * 4])
    try:
        if not message or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise Refused("the message is empty or too long")
        if len(handles) != HANDLES or not all(map(_is_pipe, handles, (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY))):
            raise Refused("a message brings one pipe to read and two to write")
    except BaseException:
        for handle in handles:
            os.close(handle)
        raise
    return message, handles


def start(argv: list[str], account: Account, handles: list[int]) -> subprocess.Popen[bytes]:
    """Start argv under the account's uid, with no way back to another one."""
    _prctl(_SUBREAPER, 1)
    drop_capabilities()
    user, keeper = account.user, os.getpid()
    bounds = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, FILES), (resource.RLIMIT_NPROC, PROCESSES)]
    if account.memory_bytes:
        bounds.append((resource.RLIMIT_AS, account.memory_bytes))

    def confine() -> None:
        # After the change of uid, which resets it.
        _prctl(_PDEATHSIG, signal.SIGKILL)
        _prctl(_NO_NEW_PRIVS, 1)
        _prctl(_AMBIENT, _AMBIENT_CLEAR)
        if os.getppid() != keeper:
            os._exit(1)
        for kind, wanted in bounds:
            hard = resource.getrlimit(kind)[1]
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(kind, (most, most))

    return subprocess.Popen(
        argv,
        stdin=handles[0],
        stdout=handles[1],
        stderr=handles[2],
        env=account.environment,
        cwd="/",
        user=user.pw_uid,
        group=user.pw_gid,
        extra_groups=os.getgrouplist(user.pw_name, user.pw_gid),
        umask=0o077,
        start_new_session=True,
        preexec_fn=confine,
    )


def drop_capabilities() -> None:
    """Empty this process's bounding set, so that nothing it starts can have a capability, be it uid 0."""
    try:
        for number in count():
            _prctl(_CAPBSET_DROP, number)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def end_orphans() -> None:
    """Kill what the process started and left: the kernel has made it this process's child."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    with suppress(OSError):
        while True:
            for child in children.read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
            os.waitpid(-1, 0)


def refuse(connection: socket.socket, why: str) -> None:
    print(f"qtandem-launcher: refused: {why}", file=sys.stderr, flush=True)
    with suppress(OSError):
        if not connection.gettimeout():
            # An unread message would turn the answer into a reset connection.
            connection.recv(1)
    with suppress(OSError):
        connection.send(json.dumps({"error": why[:1000]}).encode())


def listen(path: Path, plan: Plan) -> socket.socket:
    """The socket that systemd hands over, or one of our own at `path`, whose directory is root's."""
    if os.environ.get("LISTEN_PID") == str(os.getpid()):
        handed = socket.socket(fileno=3)
        handed.set_inheritable(False)
        return handed
    check_trusted(path.parent)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = os.umask(0o117)
    listener.bind(str(path))
    os.umask(before)
    os.chown(path, -1, plan.caller.pw_gid)
    listener.listen(128)
    return listener


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(prog="qtandem-launcher", description="Start qtandem's workers and commands.")
    made.add_argument("--config", metavar="FILE", type=Path, default=CONFIG, help=f"root's own file (default {CONFIG})")
    made.add_argument("--socket", metavar="PATH", type=Path, default=SOCKET, help="where to listen if systemd does not")
    made.add_argument("--check", action="store_true", help="only say whether the file can be used")
    return made


def main(argv: list[str] | None = None) -> int:
    """The command; returns its exit status."""
    arguments = parser().parse_args(argv)
    try:
        plan = load(arguments.config)
        if not arguments.check:
            serve(listen(arguments.socket, plan), plan)
    except (Refused, OSError) as error:
        print(f"qtandem-launcher: {error}", file=sys.stderr)
        return 5
    return 0


def _keep_alone(listener: socket.socket, connection: socket.socket, plan: Plan) -> None:
    listener.close()
    keep(connection, plan)


def _fork(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    finally:
        os._exit(0)


def _ended() -> set[int]:
    ended: set[int] = set()
    with suppress(ChildProcessError):
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            ended.add(pid)
    return ended


def _is_pipe(handle: int, access: int) -> bool:
    return stat.S_ISFIFO(os.fstat(handle).st_mode) and fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == access


def _prctl(option: int, argument: int) -> None:
    if _LIBC.prctl(option, argument, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}): {os.strerror(code)}")


if __name__ == "__main__":
    sys.exit(main())
