"""OQTOPUS Cloud, through the bridge that the qrmi library loads at run time.

The bridge is a library of QRMI's that is in none of its packages. It is called in native code and has no time-out that
we could set; the worker's deadline holds whatever it does.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import qrmi

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Calibration
from qtandem.core.providers.base import ProviderSpec, TaskReport
from qtandem.core.providers.calibrations import unix_time
from qtandem.core.providers.classify import Call, unreadable
from qtandem.core.providers.combine import Signals, count
from qtandem.core.providers.parts import list_of
from qtandem.core.providers.qrmi.dialects import Keys, must_be, text
from qtandem.core.providers.qrmi.wheel import Wheel

T = TypeVar("T")
KIND, VENDOR = "oqtopus", "OQTOPUS Cloud"
_URL, _TOKEN = "QRMI_OQTOPUS_URL", "QRMI_OQTOPUS_API_TOKEN"
_OPTIONS = tuple(
    f"QRMI_OQTOPUS_{key}"
    for key in (
        "PROXY", "TIMEOUT", "RETRY_MAX_ATTEMPTS", "RETRY_BACKOFF_SECONDS", "RETRY_STATUS_CODES", "RETRY_METHODS",
    )
)  # fmt: skip
_MISSING = re.compile(r"\b404\b|not found", re.IGNORECASE)
# The library takes both from the environment only: of this process, which serves no other type.
_PATHS = {"bridge_library": "PY_BRIDGE_PATH", "python_library": "PYTHON_LIBRARY"}
REMEDY = "Build liboqtopus_py_bridge.so from QRMI's sources (dependencies/oqtopus), and set bridge_library to its path."


class Oqtopus:
    """One device."""

    def __init__(self, spec: ProviderSpec) -> None:
        keys = Keys(spec.settings, _URL, _TOKEN)
        for key, variable in _PATHS.items():
            path = keys.get(key)
            if path and not Path(path).is_absolute():
                raise QtandemError("bad-config", f"{key} = {path!r} is not an absolute path")
            if path:
                os.environ[variable] = path
        self.remote = keys.get("backend") or spec.resource
        try:
            self.wheel = Wheel(VENDOR, "OQTOPUS", self.remote, keys.only(_URL, _TOKEN, *_OPTIONS))
        except QtandemError as error:
            if "failed to load" in str(error.cause) or "libpython" in str(error.cause):
                words = "The qrmi library needs a bridge to OQTOPUS, and it cannot be loaded"
                raise QtandemError("bad-config", words, remedy=REMEDY, cause=error.cause) from error
            raise
        self._device: Mapping[str, Any] = {}

    def signals(self) -> Signals:
        """From the device's description, which is all that the bridge gives."""
        said = self._describe()
        return Signals(words=(said.get("status"),), queues=(said.get("n_pending_jobs"),))

    def calibration(self) -> Calibration | None:
        """Number of qubits and gates; the rest has no form that all devices share."""
        qubits = count(self._device.get("n_qubits"))
        basis = tuple(gate for gate in list_of(self._device.get("basis_gates")) if isinstance(gate, str))
        taken_at = unix_time(self._device.get("calibrated_at"))
        return Calibration(qubits=qubits, basis_gates=basis, taken_at=taken_at) if qubits else None

    def payload(self, payload: Mapping[str, object], key: str) -> Any:  # noqa: ARG002
        must_be(payload, KIND, VENDOR)
        spec = json.loads(text(payload, "job_spec"))
        if not isinstance(spec, dict) or not spec.get("program"):
            raise QtandemError("bad-payload", "job_spec is no object with a program")
        if spec.get("device_id") not in (None, self.remote):
            raise QtandemError("bad-payload", f"The job is for {spec['device_id']!r}, the lease on {self.remote}")
        return qrmi.Payload.Oqtopus(json.dumps(spec))

    def report(self, task: str) -> TaskReport:
        return TaskReport(_known(lambda: self.wheel.status(task)))

    def stop(self, task: str) -> None:
        _known(lambda: self.wheel.stop(task))

    def result(self, task: str) -> str:
        return _known(lambda: self.wheel.result(task))

    def logs(self, task: str) -> str:
        """There are none; the task must be there all the same."""
        self.report(task)
        return ""

    def metadata(self) -> dict[str, str]:
        return {"backend_name": self.remote}

    def _describe(self) -> Mapping[str, Any]:
        try:
            said = json.loads(self.wheel.target("policy"))
        except ValueError as error:
            raise unreadable(Call(VENDOR, "describe the device"), str(error)) from error
        if not isinstance(said, dict):
            raise unreadable(Call(VENDOR, "describe the device"), "no object")
        self._device = said
        return said


def _known(work: Callable[[], T]) -> T:
    """What `work` gives. The bridge tells a task that is not there by a sentence."""
    try:
        return work()
    except QtandemError as error:
        if error.code == "vendor-error" and _MISSING.search(str(error.cause)):
            raise QtandemError("no-such-run", f"{VENDOR} knows no such task", cause=error.cause) from error
        raise
