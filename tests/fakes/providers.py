"""A provider that does as it is told, for tests of workers; run as a script it is a worker's child that knows it.

`task_logs(order)` obeys: `hang`, `crash`, `flood`, `babble`, `sleep:S`, and so on; see `Scripted`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = str(Path(__file__).parents[2] / ".dev")


def command() -> list[str]:
    """A child's argv for `Workers`, in which the type `scripted` exists."""
    return [sys.executable, "-I", __file__, ROOT, "scripted", str(os.getpid())]


class Scripted:
    def __init__(self, spec):
        if spec.settings.get("broken"):
            raise ValueError("cannot be opened")
        self.spec = spec
        self.busy = False
        if spec.settings.get("lists"):
            self.task_statuses = self.listed

    def listed(self, tasks):
        """All at once, which one of them can spoil."""
        return {task: self.task_status(task) for task in tasks}

    def task_logs(self, order):
        verb, _, argument = order.partition(":")
        return getattr(self, verb)(argument)

    def pid(self, _):
        return str(os.getpid())

    def setting(self, key):
        return f"{self.spec.settings.get(key)} {os.getpid()}"

    def slots(self, _):
        return str(self.spec.slots)

    def hang(self, _):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        while True:
            time.sleep(60)

    def sleep(self, seconds):
        time.sleep(float(seconds))
        return str(os.getpid())

    def crash(self, _):
        print(f"using key {self.spec.settings.get('api_key')}", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)

    def leave(self, status):
        os._exit(int(status))

    def flood(self, _):
        return str(len([bytearray(16 << 20) for _ in range(1 << 20)]))

    def long(self, size):
        return "x" * int(size)

    def chatter(self, size):
        sys.stderr.write("y" * int(size))
        sys.stderr.flush()
        os._exit(1)

    def babble(self, _):
        print("hello from an SDK")
        os.write(1, b"\x00\x00\x00\x02{}")
        subprocess.run(["echo", "hello from a tool"], check=True)
        return sys.stdin.read() or "babbled"

    def break_in(self, _):
        """Write to every pipe, which a stray library could do at worst."""
        for fd in range(3, 64):
            try:
                os.write(fd, b"\xff\xff\xff\xff garbage")
            except OSError:
                continue
        time.sleep(60)

    def fail(self, _):
        raise KeyError(f"no such entry for {self.spec.settings.get('api_key')}")

    def work(self, flag):
        self.busy = flag == "on"
        return str(os.getpid())

    def offspring(self, _):
        return str(subprocess.Popen(["sleep", "600"]).pid)

    def environ(self, _):
        return "\n".join(f"{key}={value}" for key, value in os.environ.items())

    def task_status(self, task):
        from qtandem.core.errors import QtandemError
        from qtandem.core.providers.base import TaskReport, TaskState

        if task.startswith("slow:"):
            time.sleep(float(task.removeprefix("slow:")))
            return TaskReport(TaskState.RUNNING)
        if task == "lost":
            cause = f"the key {self.spec.settings.get('api_key')} does not see it"
            raise QtandemError("no-such-run", "There is no such task", cause=cause)
        return TaskReport(TaskState(task))

    def task_start(self, token, key, payload):
        return f"v-{key}"

    def observe(self):
        return {"availability": "sunny"}


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    from qtandem.core.providers import base, child

    base.PROVIDERS["scripted"] = "__main__:Scripted"
    child.main()
