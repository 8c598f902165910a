"""Pasqal: its cloud, and a machine on the premises behind Pasqal's middleware."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import qrmi

from qtandem.core.errors import QtandemError
from qtandem.core.facts import Calibration
from qtandem.core.providers.base import ProviderSpec, TaskReport
from qtandem.core.providers.classify import Call
from qtandem.core.providers.combine import Signals, count
from qtandem.core.providers.parts import list_of, object_of
from qtandem.core.providers.qrmi.dialects import Keys, must_be, text
from qtandem.core.providers.qrmi.oauth import TokenReader
from qtandem.core.providers.qrmi.reader import Reader
from qtandem.core.providers.qrmi.wheel import Wheel, use_munge

KIND = "pasqal-cloud"
CLOUD, LOCAL = "Pasqal Cloud", "Pasqal's middleware"
DEVICES = ("FRESNEL", "FRESNEL_CAN1", "EMU_MPS", "EMU_FREE", "EMU_FRESNEL")
_CLOUD = "QRMI_PASQAL_CLOUD_"
_CLOUD_KEYS = (
    *(_CLOUD + key for key in ("PROJECT_ID", "AUTH_TOKEN", "CLIENT_ID", "CLIENT_SECRET", "AUTH_ENDPOINT", "BASE_URL")),
    *("PASQAL_USERNAME", "PASQAL_PASSWORD", "PASQAL_CONFIG_ROOT"),
)
_ADDRESS, _TOKENS = "https://apis.pasqal.cloud", "https://authenticate.pasqal.cloud/oauth/token"
_MAX_UID = 2**31


class PasqalCloud:
    """One device type. The library sees only whether it is retired; here its status is read too."""

    def __init__(self, spec: ProviderSpec) -> None:
        keys = Keys(spec.settings)
        self.remote = (keys.get("backend") or spec.resource).upper()
        if self.remote not in DEVICES:
            raise QtandemError("bad-config", f"Pasqal's cloud has {', '.join(DEVICES)}, not {self.remote}")
        self.wheel = Wheel(CLOUD, "PasqalCloud", self.remote, keys.only(*_CLOUD_KEYS))
        self._reader = Reader(keys.get(f"{_CLOUD}BASE_URL", _ADDRESS), {})
        self.project = keys.get(f"{_CLOUD}PROJECT_ID")
        self.sender = TokenReader(
            keys.get(f"{_CLOUD}BASE_URL", _ADDRESS),
            keys.get(f"{_CLOUD}AUTH_ENDPOINT", _TOKENS),
            keys.get(f"{_CLOUD}CLIENT_ID"),
            keys.get(f"{_CLOUD}CLIENT_SECRET"),
            keys.get(f"{_CLOUD}AUTH_TOKEN"),
        )

    def signals(self) -> Signals:
        """From the public list, which asks for no credential."""
        call = Call(CLOUD, f"describe {self.remote}", missing="bad-config")
        said = self._reader.object(call, f"/core-fast/api/v1/devices?device_type={self.remote}")
        device = object_of(next(iter(list_of(said.get("data"))), None))
        return Signals(words=(device.get("status"), device.get("availability")))

    def calibration(self) -> Calibration | None:
        return specified(self.wheel.target("unsupported"))

    def payload(self, payload: Mapping[str, object], key: str) -> Any:  # noqa: ARG002
        return sequence(payload, CLOUD)

    def report(self, task: str) -> TaskReport:
        return TaskReport(self.wheel.status(task))

    def stop(self, task: str) -> None:
        self.wheel.stop(task)

    def result(self, task: str) -> str:
        return self.wheel.result(task)

    def logs(self, task: str) -> str:
        """There are none; the task must be there all the same."""
        self.wheel.status(task)
        return ""

    def metadata(self) -> dict[str, str]:
        return {"backend_name": self.remote}


class PasqalLocal:
    """One machine. The library takes owner and token of a session when it is set up: each has a resource of its own."""

    def __init__(self, spec: ProviderSpec) -> None:
        keys = Keys(spec.settings, "QRMI_WARDEN_URL")
        if keys.get("munge_library"):
            use_munge(keys.get("munge_library"))
        uid = keys.get("QRMI_JOB_UID", str(os.geteuid()))
        if not uid.isdecimal() or int(uid) >= _MAX_UID:
            raise QtandemError("bad-config", f"QRMI_JOB_UID = {uid!r} is not a user id that the library takes")
        self._name = keys.get("backend") or spec.resource
        self._config = keys.only("QRMI_WARDEN_URL") | {"QRMI_JOB_UID": uid}
        self.wheel = self.for_job("qtandem")
        self._reader = Reader(keys.get("QRMI_WARDEN_URL"), {})

    def for_job(self, key: str) -> Wheel:
        return Wheel(LOCAL, "PasqalLocal", self._name, self._config | {"QRMI_JOB_ID": key})

    def for_session(self, token: str) -> Wheel:
        config = self._config | {"QRMI_JOB_ID": "qtandem", "QRMI_JOB_ACQUISITION_TOKEN": token}
        return Wheel(LOCAL, "PasqalLocal", self._name, config)

    def signals(self) -> Signals:
        """From a flag that the machine's operator sets."""
        said = self._reader.object(Call(LOCAL, "tell its status"), "/accessible")
        flag = said.get("is_accessible")
        return Signals(operational=flag, reason=str(said.get("message") or "") if flag is False else "")

    def calibration(self) -> Calibration | None:
        return specified(self.wheel.target("unsupported"))

    def payload(self, payload: Mapping[str, object], key: str) -> Any:  # noqa: ARG002
        return sequence(payload, LOCAL)

    def report(self, task: str) -> TaskReport:
        return TaskReport(self.wheel.status(task))

    def stop(self, task: str) -> None:
        """Older middleware cannot: `unsupported`."""
        try:
            self.wheel.stop(task)
        except QtandemError as error:
            # The task is there, or it would not have had a state: what is missing is the way to stop it.
            if error.code != "no-such-run":
                raise
            raise QtandemError("unsupported", f"{LOCAL} cannot stop tasks", cause=error.cause) from error

    def result(self, task: str) -> str:
        return self.wheel.result(task)

    def logs(self, task: str) -> str:
        """`unsupported` where the middleware is too old for it."""
        try:
            return self.wheel.logs(task)
        except QtandemError as error:
            if error.code != "no-such-run":
                raise
            self.wheel.status(task)
            raise QtandemError("unsupported", f"{LOCAL} keeps no logs", cause=error.cause) from error

    def metadata(self) -> dict[str, str]:
        return {"backend_name": self._name}


def sequence(payload: Mapping[str, object], vendor: str) -> Any:
    """A sequence of Pulser. The library cannot follow jobs of CUDA-Q to their end, so they are refused."""
    must_be(payload, KIND, vendor)
    content, runs = text(payload, "sequence"), payload.get("job_runs")
    if isinstance(runs, bool) or not isinstance(runs, int) or not 0 < runs < 2**31:
        raise QtandemError("bad-payload", f"job_runs = {runs!r} is not a whole number from 1 up")
    said = json.loads(content)
    if not isinstance(said, dict):
        raise QtandemError("bad-payload", "The sequence is not an object")
    if "setup" in said and "hamiltonian" in said:
        raise QtandemError("bad-payload", "A sequence of CUDA-Q cannot be run here", remedy="Send one of Pulser.")
    return qrmi.Payload.PasqalCloud(content, runs)


def specified(target: str) -> Calibration | None:
    """What Pasqal's specifications say: the most atoms and shots."""
    try:
        first = object_of(next(iter(list_of(json.loads(target))), None))
        specs = first.get("specs")
        specs = object_of(json.loads(specs) if isinstance(specs, str) else specs)
    except ValueError:
        return None
    qubits = count(specs.get("max_atom_num"))
    return Calibration(qubits=qubits, max_shots=count(specs.get("max_runs")) or None) if qubits else None
