"""Workers without processes: observations and tasks of a QPU in memory, sessions as `FakeVendor` keeps them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability, Observation
from qtandem.core.providers.base import TaskReport, TaskState
from qtandem.core.providers.worker import Sink
from tests.fakes.vendor import FakeVendor

ONLINE = Observation(availability=Availability.ONLINE)


class FakeWorkers(FakeVendor):
    """`seen` is what `observe` gives (an exception is raised); tasks run until `finish`, or at once with `instant`."""

    def __init__(self, slots: Mapping[str, int]) -> None:
        super().__init__(slots)
        self.seen: dict[str, Observation | Exception] = dict.fromkeys(slots, ONLINE)
        self.polls: Counter[str] = Counter()
        self.polling: Counter[str] = Counter()
        self.most_polling = 0
        self.hang: asyncio.Event | None = None
        self.instant = True
        self.tasks: dict[str, TaskReport] = {}
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.payloads: dict[str, object] = {}
        self.errors: dict[str, list[Exception]] = {}
        self.finds = True
        # With which secrets of a user each call came.
        self.secrets: list[tuple[str, str, Mapping[str, str] | None]] = []

    async def call(
        self,
        resource: str,
        method: str,
        *args: object,
        purpose: str = "observe",
        secrets: Mapping[str, str] | None = None,
        sink: Sink | None = None,
    ) -> object:
        if method == "task_statuses":
            return {task: await self._status_of(resource, task, secrets) for task in args[0]}  # type: ignore[attr-defined]
        method = "task_start" if method == "task_send" else method
        self.secrets.append((resource, method, secrets))
        if method in ("acquire", "release", "find_session"):
            return await getattr(self, method)(resource, *args)
        if self.errors.get(method):
            raise self.errors[method].pop(0)
        if method == "observe":
            return await self._observe(resource)
        if method == "capabilities":
            return {"finds_tasks": self.finds}
        answer = getattr(self, f"_{method}")(*args)
        if sink is None:
            return answer
        sink.write(answer.encode())
        return None

    async def _status_of(self, resource: str, task: str, secrets: Mapping[str, str] | None) -> object:
        try:
            return await self.call(resource, "task_status", task, purpose="execute", secrets=secrets)
        except QtandemError as error:
            return error

    def finish(self, key: str, state: TaskState = TaskState.COMPLETED, reason: str = "") -> None:
        self.tasks[f"v-{key}"] = TaskReport(state, reason, usage_s=0.5, shots=10)

    def at_work(self) -> list[str]:
        """Keys of the tasks that the vendor has and that have not ended."""
        return [key for key in self.started if not self.tasks[f"v-{key}"].state.final]

    def running(self) -> int:
        return 0

    def stats(self) -> list[object]:
        return []

    async def update(self, specs: object, observing: object = None) -> None: ...

    async def forget(self, secrets: object) -> None: ...

    async def close(self) -> None: ...

    async def _observe(self, resource: str) -> Observation:
        self.polls[resource] += 1
        self.polling[resource] += 1
        self.most_polling = max(self.most_polling, self.polling[resource])
        try:
            if self.hang is not None:
                await self.hang.wait()
            await asyncio.sleep(0)
            seen = self.seen[resource]
            if isinstance(seen, Exception):
                raise seen
            return seen
        finally:
            self.polling[resource] -= 1

    def _task_start(self, token: str, key: str, payload: object) -> str:
        if key not in self.started:
            self.started.append(key)
            self.payloads[key] = payload
            state = TaskState.COMPLETED if self.instant else TaskState.RUNNING
            self.tasks[f"v-{key}"] = TaskReport(state, usage_s=0.5, shots=10)
        return f"v-{key}"

    def _find_task(self, key: str) -> str | None:
        return f"v-{key}" if self.finds and key in self.started else None

    def _task_status(self, task: str) -> TaskReport:
        return self.tasks[task]

    def _task_result(self, task: str) -> str:
        if self.tasks[task].state is not TaskState.COMPLETED:
            raise QtandemError("task-not-ready", "not yet")
        return f'{{"counts": {{"00": 10}}, "task": "{task}"}}'

    def _task_logs(self, task: str) -> str:
        return f"log of {task}\n"

    def _task_stop(self, task: str) -> None:
        self.stopped.append(task)
        if not self.tasks[task].state.final:
            self.tasks[task] = TaskReport(TaskState.CANCELLED, "stopped")

    def _target(self) -> str:
        return '{"name": "fake"}'

    def _metadata(self) -> dict[str, str]:
        return {"backend_name": "fake", "fakesdk": "1.2.3", "session": "secret-token-0"}
