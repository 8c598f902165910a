"""IQM Server."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

import qrmi

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Calibration
from qtandem.core.providers.base import ProviderSpec, TaskReport, TaskState
from qtandem.core.providers.calibrations import unix_time
from qtandem.core.providers.classify import Call, unreadable
from qtandem.core.providers.combine import Signals, count, seconds
from qtandem.core.providers.parts import list_of, object_of
from qtandem.core.providers.qrmi.dialects import Keys, must_be, text
from qtandem.core.providers.qrmi.reader import Reader
from qtandem.core.providers.qrmi.wheel import Wheel

KIND, VENDOR = "iqm-server", "IQM Server"
JOB_TYPES = ("circuit", "run", "sweep")
_ENDPOINT, _TOKEN = "QRMI_IQM_ISA_ENDPOINT", "QRMI_IQM_ISA_TOKEN"
_TAG = 50
_STATES = {
    "waiting": TaskState.QUEUED,
    "processing": TaskState.RUNNING,
    "completed": TaskState.COMPLETED,
    "failed": TaskState.FAILED,
    "cancelled": TaskState.CANCELLED,
}
_PAIR = re.compile(r"\.cz\..*\.fidelity\b")
_READOUT = re.compile(r"\.ssro\..*\.fidelity$")
_T1, _T2 = re.compile(r"\.t1(?:_time)?$"), re.compile(r"\.t2(?:_time|_echo_time)?$")


class Iqm:
    """One quantum computer.

    The library turns the last `_` of a name into `:`, because names in a shell cannot have one; our names stay as
    they are. Its status of a task waits up to 30 seconds for the end, so states are read here.
    """

    def __init__(self, spec: ProviderSpec) -> None:
        keys = Keys(spec.settings, _ENDPOINT, _TOKEN)
        named = keys.get("backend")
        if "_" in named:
            raise QtandemError(
                "bad-config",
                f"backend = {named!r}: the qrmi library would turn its last _ into a colon",
                remedy="Write the colon where IQM's name has one.",
            )
        name, _, calset = (named or spec.resource).partition(",")
        self.remote = name if named else machine_of(name)
        full = f"{name},{keys.get('calibration_set') or calset}".rstrip(",")
        self.wheel = Wheel(VENDOR, "IQMServer", full, keys.only(_ENDPOINT, _TOKEN))
        self.sender = Reader(keys.get(_ENDPOINT), {"Authorization": f"Bearer {keys.get(_TOKEN)}"})
        self._machine: Mapping[str, Any] = {}

    def signals(self) -> Signals:
        path = f"/api/v1/quantum-computers/{quote(self.remote, safe=':')}"
        call = Call(VENDOR, f"describe {self.remote}", missing="policy")
        said = self._machine = self.sender.object(call, path)
        status = said.get("status")
        health = object_of(said.get("health") or object_of(status).get("health"))
        word = status if isinstance(status, str) else object_of(status).get("status")
        return Signals(
            words=(word,),
            operational=health.get("healthy"),
            queues=(said.get("queue_length"),),
            reason=str(said.get("status_reason") or said.get("status_message") or ""),
        )

    def calibration(self) -> Calibration | None:
        return digest(object_of(json.loads(self.wheel.target("unsupported"))), object_of(self._machine.get("limits")))

    def payload(self, payload: Mapping[str, object], key: str) -> Any:
        must_be(payload, KIND, VENDOR)
        job_type, tag = payload.get("job_type", "circuit"), payload.get("tag") or key[:_TAG]
        if job_type not in JOB_TYPES:
            raise QtandemError("bad-payload", f"IQM runs {', '.join(JOB_TYPES)}, not {job_type!r}")
        if not isinstance(tag, str) or len(tag) > _TAG:
            raise QtandemError("bad-payload", f"The tag is no text of at most {_TAG} letters")
        slot = payload.get("use_timeslot", False)
        if not isinstance(slot, bool):
            raise QtandemError("bad-payload", "use_timeslot is neither true nor false")
        return qrmi.Payload.IQMServer(text(payload, "iqmjson"), job_type, slot, tag)

    def report(self, task: str) -> TaskReport:
        call = Call(VENDOR, "tell the state of a task")
        job = self.sender.object(call, f"/api/v1/jobs/{quote(task, safe='')}")
        state = _STATES.get(str(job.get("status")))
        if state is None:
            raise unreadable(call, f"the state is {str(job.get('status'))[:40]!r}")
        ms = seconds(job.get("runtime_ms"))
        return TaskReport(state, _why(job), ms / 1000 if ms is not None and state.final else None)

    def stop(self, task: str) -> None:
        call = Call(VENDOR, "stop a task", conflict="task-failed")
        self.sender.post(call, f"/api/v1/jobs/{quote(task, safe='')}/cancel")

    def result(self, task: str) -> str:
        return self.wheel.result(task)

    def logs(self, task: str) -> str:
        """From the job's own record: the library would wait for the end."""
        call = Call(VENDOR, "give the log of a task")
        job = self.sender.object(call, f"/api/v1/jobs/{quote(task, safe='')}")
        lines = [
            f"{row.get('timestamp')} {row.get('source')} {row.get('status')}"
            for row in map(object_of, list_of(job.get("timeline")))
        ]
        lines += [f"{row.get('source')}: {row.get('message')}" for row in map(object_of, list_of(job.get("messages")))]
        return "".join(f"{line}\n" for line in lines)

    def metadata(self) -> dict[str, str]:
        found = {"backend_name": self.remote}
        price = object_of(self._machine.get("pricing")).get("payg_price_per_second")
        return found | ({"price": str(price), "price_unit": "second"} if price not in (None, "") else {})


def machine_of(name: str) -> str:
    """The quantum computer that the library makes of a name."""
    return ":".join(name.rsplit("_", 1))


def digest(target: Mapping[str, Any], limits: Mapping[str, Any]) -> Calibration | None:
    """From the architecture and the quality metrics; None without qubits."""
    architecture, metrics = (
        object_of(target.get("dynamic_quantum_architecture")),
        object_of(target.get("quality_metrics")),
    )
    static = object_of(target.get("static_quantum_architecture"))
    qubits = [name for name in list_of(architecture.get("qubits") or static.get("qubits")) if isinstance(name, str)]
    if not qubits:
        return None
    gates = object_of(architecture.get("gates"))
    observed = list(_observed(metrics))
    return Calibration(
        qubits=len(qubits),
        taken_at=unix_time(metrics.get("end_timestamp") or metrics.get("created_timestamp")),
        basis_gates=tuple(gates),
        coupling=tuple(_coupling(gates, qubits)),
        two_qubit_error=_median(1 - value for name, value in observed if _PAIR.search(name)),
        readout_error=_median(1 - value for name, value in observed if _READOUT.search(name)),
        t1_s=_median(value for name, value in observed if _T1.search(name)),
        t2_s=_median(value for name, value in observed if _T2.search(name)),
        max_shots=count(limits.get("max_shots_per_circuit")) or None,
    )


def _coupling(gates: Mapping[str, Any], qubits: list[str]) -> Iterable[tuple[int, int]]:
    """The pairs of qubits, by their places; a pair with a resonator is none."""
    places = {name: number for number, name in enumerate(qubits)}
    seen = set()
    for gate in gates.values():
        for way in object_of(object_of(gate).get("implementations")).values():
            for locus in list_of(object_of(way).get("loci")):
                pair = tuple(places[name] for name in list_of(locus) if name in places)
                if len(pair) == 2 and len(list_of(locus)) == 2 and pair not in seen:
                    seen.add(pair)
                    yield pair[0], pair[1]


def _observed(metrics: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    """Values that are not marked invalid."""
    for row in map(object_of, list_of(metrics.get("observations"))):
        name, value = row.get("dut_field"), row.get("value")
        if not isinstance(name, str) or row.get("invalid") is True or isinstance(value, bool):
            continue
        if isinstance(value, int | float):
            yield name, float(value)


def _why(job: Mapping[str, Any]) -> str:
    """The vendor's error, or the place in the queue."""
    for row in map(object_of, list_of(job.get("errors"))):
        if row.get("message"):
            return str(row["message"])
    place = count(job.get("queue_position"))
    return f"position {place} in the queue" if place is not None and job.get("status") == "waiting" else ""


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return round(statistics.median(found), 12) if found else None
