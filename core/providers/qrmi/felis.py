"""Felis, the cloud of Alice & Bob."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import qrmi

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Calibration
from qtandem.core.providers.base import ProviderSpec, TaskReport, TaskState
from qtandem.core.providers.classify import Call
from qtandem.core.providers.combine import Signals, count, seconds
from qtandem.core.providers.parts import list_of, object_of
from qtandem.core.providers.qrmi.dialects import Keys, must_be, text
from qtandem.core.providers.qrmi.reader import Reader
from qtandem.core.providers.qrmi.wheel import Wheel

KIND, VENDOR = "alice-bob-felis", "Alice & Bob Felis"
_KEY, _BASE = "QRMI_AB_FELIS_API_KEY", "QRMI_AB_FELIS_BASE_ENDPOINT"
_WORDS = {"OK": "online", "NOK": "offline", "OFF": "offline"}


class Felis:
    """One target. The library calls every target online; here its health is asked."""

    def __init__(self, spec: ProviderSpec) -> None:
        keys = Keys(spec.settings, _KEY, _BASE)
        name = _device(keys.get("backend")) if keys.get("backend") else spec.resource
        self.remote = target_of(name)
        self.wheel = Wheel(VENDOR, "AliceBobFelis", name, keys.only(_KEY, _BASE))
        self.sender = Reader(keys.get(_BASE), {"Authorization": f"Basic {keys.get(_KEY)}"})
        self._target: Mapping[str, Any] = {}

    def signals(self) -> Signals:
        call = Call(VENDOR, "list its targets")
        targets = map(object_of, list_of(self.sender.get(call, "/v1/targets/")))
        found = next((each for each in targets if each.get("name") == self.remote), None)
        if found is None:
            raise QtandemError("policy", f"{self.remote} is not among the targets of this account")
        self._target = found
        call = Call(VENDOR, f"tell the health of {self.remote}", missing="unsupported")
        try:
            health = self.sender.get(call, f"/v1/targets/{quote(self.remote, safe='')}/health")
        except QtandemError as error:
            if error.code != "unsupported":
                raise
            return Signals()
        word = health if isinstance(health, str) else object_of(health).get("status")
        return Signals(words=(_WORDS.get(str(word), word),))

    def calibration(self) -> Calibration | None:
        """Felis gives the number of qubits only."""
        qubits = count(self._target.get("numQubits"))
        return Calibration(qubits=qubits) if qubits else None

    def payload(self, payload: Mapping[str, object], key: str) -> Any:  # noqa: ARG002
        must_be(payload, KIND, VENDOR)
        program = payload.get("human_qir")
        if not isinstance(program, str) or not program.strip():
            raise QtandemError("bad-payload", "human_qir is not the text of a program")
        parameters = text(payload, "input_params")
        if not isinstance(json.loads(parameters), dict):
            raise QtandemError("bad-payload", "input_params is not an object")
        return qrmi.Payload.AliceBobFelis(program, parameters)

    def report(self, task: str) -> TaskReport:
        state = self.wheel.status(task)
        if not state.final:
            return TaskReport(state)
        return TaskReport(state, self._why(task) if state is TaskState.FAILED else "", self._usage(task))

    def stop(self, task: str) -> None:
        self.wheel.stop(task)

    def result(self, task: str) -> str:
        """Felis's CSV, as one string of JSON."""
        return json.dumps(self.wheel.result(task), ensure_ascii=False)

    def logs(self, task: str) -> str:
        """Felis has none; the task must be there all the same."""
        self.wheel.status(task)
        return ""

    def metadata(self) -> dict[str, str]:
        return {"felis_target": self.remote}

    def _why(self, task: str) -> str:
        job = self.sender.object(Call(VENDOR, "tell why a task failed"), f"/v1/jobs/{quote(task, safe='')}")
        for error in map(object_of, list_of(job.get("errors"))):
            content = error.get("content")
            return content if isinstance(content, str) else json.dumps(content)
        return ""

    def _usage(self, task: str) -> float | None:
        """What the QPU took; None for a target that does not say."""
        call = Call(VENDOR, "tell the usage of a task")
        try:
            said = self.sender.object(call, f"/v1/jobs/{quote(task, safe='')}/metrics")
        except QtandemError:
            return None
        ns = seconds(said.get("qpu_duration_ns"))
        return ns / 1e9 if ns is not None else None


def target_of(name: str) -> str:
    """The target that the library makes of a name."""
    return name.removeprefix("ab_").replace("_", ":", 2).upper()


def _device(target: str) -> str:
    """The name that the library turns into this target."""
    name = f"ab_{target.replace(':', '_').lower()}"
    if target_of(name) != target:
        raise QtandemError("bad-config", f"backend = {target!r}: the qrmi library cannot name this target")
    return name
