"""Passing on what a run's own program asks of a vendor behind the qrmi library, in the vendor's own protocol.

None of these vendors has sessions. A task belongs to the lease through which it was started, as our records say, so the
end of the lease cancels what the program leaves behind; a task of anybody else's is refused.
"""

from __future__ import annotations

import json
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from email import message_from_bytes, policy
from typing import Any, Protocol

from qtandem.core.errors import QtandemError
from qtandem.core.providers.classify import Call
from qtandem.core.providers.parts import list_of, object_of
from qtandem.core.providers.passing import Asked, Passed, cleaned, parsed, refused
from qtandem.core.providers.qrmi.iqm import JOB_TYPES
from qtandem.core.providers.records import Records

_ID = r"[A-Za-z0-9\-]{1,64}"
_TAG = 50
_MOST_KNOWN = 10_000
# So much of a wait that a program asks for is held for it; then it asks again.
_MOST_HELD_S = 60.0


class Sender(Protocol):
    """What speaks with the credential; `secrets` are what no answer may hold."""

    def exchange(
        self, call: Call, method: str, path: str, body: bytes | None = None, kind: str = ""
    ) -> tuple[int, str, Mapping[str, str]]: ...

    def secrets(self) -> tuple[str, ...]: ...


class _Declined(QtandemError):
    """The vendor has answered a submission with something else than a task."""

    def __init__(self, answer: Passed) -> None:
        super().__init__("vendor-error", f"The vendor answered {answer.status}")
        self.answer = answer


class Gate(ABC):
    """Between programs and one vendor's device. `named` is what the library makes of a resource's name."""

    def __init__(
        self, vendor: str, send: Sender, records: Records, remote: str, named: Callable[[str], str] = str
    ) -> None:
        self._call = Call(vendor, "pass on a call of a job")
        self._sender, self._records = send, records
        self._remote, self._named = remote, named
        self._known: dict[str, str] = {}

    @abstractmethod
    def pass_on(self, lease: str, asked: Asked) -> Passed:
        """The answer; raises `not-allowed` for what is not the run's."""

    def _send(self, asked: Asked, path: str, body: str | None = None, kind: str = "application/json") -> Passed:
        sent = None if body is None else body.encode()
        status, text, headers = self._sender.exchange(self._call, asked.method, path, sent, kind)
        said = {key.lower(): value for key, value in headers.items()}
        type_ = said.get("content-type", "").partition(";")[0].strip().lower()
        return Passed(status, cleaned(text, self._sender.secrets()), type_, said.get("retry-after", ""))

    def _start(self, lease: str, send: Callable[[], Passed], id_of: Callable[[Mapping[str, Any]], object]) -> Passed:
        """Submit a task and note whose it is, before and after."""
        answers: list[Passed] = []

        def submit() -> str:
            answers.append(send())
            id = id_of(answers[0].document())
            if not isinstance(id, str | int) or isinstance(id, bool):
                raise _Declined(answers[0])
            return str(id)

        try:
            id = self._records.once(f"passed {uuid.uuid4()}", lease, submit, _surely_not)
        except _Declined as error:
            return error.answer
        self._know(id, lease)
        return answers[0]

    def _own(self, lease: str, id: str, path: str) -> str:
        """The id, if its task was started through the lease."""
        if id not in self._known:
            for each in self._records.of(lease):
                self._know(each, lease)
        if self._known.get(id) != lease:
            raise refused(path)
        return id

    def _know(self, id: str, lease: str) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[id] = lease

    def _device(self, name: object, asked: Asked) -> str:
        """The vendor's name of the leased device, whichever of its names the program uses."""
        if name not in (self._remote, self._named(asked.name)):
            raise refused(asked.path)
        return self._remote


class IqmGate(Gate):
    """IQM Server. A wait for a task's end is not passed on: it would hold up everybody's calls."""

    _READ = re.compile(r"api/v1/(?P<what>quantum-computers|calibration-sets)/(?P<name>[^/]+)(?P<rest>(?:/[^/]+){0,3})")
    _SUBMIT = re.compile(rf"api/v1/jobs/(?P<name>[^/]+)/(?:{'|'.join(JOB_TYPES)})")
    _JOB = re.compile(rf"api/v1/jobs/(?P<id>{_ID})(?P<rest>/artifacts/[a-z_\-]{{1,40}})?")
    _CANCEL = re.compile(rf"api/v1/jobs/(?P<id>{_ID})/cancel")

    def pass_on(self, lease: str, asked: Asked) -> Passed:
        path = asked.path
        if asked.method == "GET" and (found := self._READ.fullmatch(path)):
            return self._send(asked, f"/api/v1/{found['what']}/{self._device(found['name'], asked)}{found['rest']}")
        if asked.method == "GET" and (found := self._JOB.fullmatch(path)):
            self._own(lease, found["id"], path)
            return self._held(self._send(asked, f"/{path}"), asked, whole=not found["rest"])
        if asked.method == "POST" and (found := self._CANCEL.fullmatch(path)):
            self._own(lease, found["id"], path)
            return self._send(asked, f"/{path}", "")
        if asked.method == "POST" and (found := self._SUBMIT.fullmatch(path)):
            kind = path.rpartition("/")[2]
            asked.document()
            slot = asked.some("use_timeslot").get("use_timeslot", ["false"])[0] == "true"
            tag = re.sub(r"[^A-Za-z0-9_.\-]", "", asked.some("tag").get("tag", [""])[0])[:_TAG]
            where = f"/api/v1/jobs/{self._device(found['name'], asked)}/{kind}?use_timeslot={str(slot).lower()}"
            submit = f"{where}&tag={tag}" if tag else where
            return self._start(lease, lambda: self._send(asked, submit, asked.body), lambda job: job.get("id"))
        raise refused(path)

    def _held(self, answer: Passed, asked: Asked, *, whole: bool) -> Passed:
        """With the wait that the program asks for, while its task has not ended."""
        wants = asked.some("wait_until_terminal", "timeout_seconds")
        if not whole or wants.get("wait_until_terminal") != ["true"]:
            return answer
        if answer.document().get("status") not in ("waiting", "processing"):
            return answer
        seconds = wants.get("timeout_seconds", ["0"])[0]
        held = min(float(seconds), _MOST_HELD_S) if seconds.isdecimal() and len(seconds) < 6 else 0.0
        return Passed(answer.status, answer.body, answer.type, answer.retry_after, held)


class FelisGate(Gate):
    """Felis. The input of a job comes as a form with one file, which is made anew."""

    _JOB = re.compile(rf"v1/jobs/(?P<id>{_ID})(?P<rest>/output|/metrics)?")
    _INPUT = re.compile(rf"v1/jobs/(?P<id>{_ID})/input")

    def pass_on(self, lease: str, asked: Asked) -> Passed:
        path = asked.path
        match asked.method, path:
            case "GET", "v1/targets/" | "v1/targets":
                return self._targets(asked)
            case "POST", "v1/jobs/" | "v1/jobs":
                job = asked.document()
                job["target"] = self._device(job.get("target"), asked)
                return self._start(
                    lease, lambda: self._send(asked, "/v1/jobs/", json.dumps(job)), lambda made: made.get("id")
                )
            case "POST", _ if found := self._INPUT.fullmatch(path):
                self._own(lease, found["id"], path)
                body, kind = _form(asked)
                return self._send(asked, f"/{path}", body, kind)
            case "GET" | "DELETE", _ if found := self._JOB.fullmatch(path):
                if asked.method == "DELETE" and found["rest"]:
                    raise refused(path)
                self._own(lease, found["id"], path)
                return self._send(asked, f"/{path}")
        raise refused(path)

    def _targets(self, asked: Asked) -> Passed:
        """The leased one, under the names that programs know."""
        answer = self._send(asked, "/v1/targets/")
        rows = parsed(answer.body) if answer.good else None
        if not isinstance(rows, list):
            return answer
        own = [row for row in map(object_of, rows) if row.get("name") == self._remote]
        names = sorted({self._remote, self._named(asked.name)})
        named = [{**row, "name": name} for row in own for name in names]
        return Passed(answer.status, json.dumps(named), answer.type, answer.retry_after)


class PasqalGate(Gate):
    """Pasqal's cloud. A batch goes into the site's project, whatever project the program names."""

    _BATCH = re.compile(rf"core-fast/api/v2/batches/(?P<id>{_ID})(?P<rest>/cancel)?")
    _RESULTS = re.compile(rf"core-fast/api/v1/batches/(?P<id>{_ID})/full_results")
    _JOB = re.compile(rf"core-fast/api/v2/jobs/(?P<id>{_ID})")

    def __init__(self, *of_gate: Any, project: str) -> None:
        super().__init__(*of_gate)
        self._project = project

    def pass_on(self, lease: str, asked: Asked) -> Passed:
        path = asked.path
        if (asked.method, path) == ("POST", "core-fast/api/v1/batches"):
            return self._batch(lease, asked)
        if asked.method == "GET" and path == "core-fast/api/v1/devices":
            return self._send(asked, f"/{path}?device_type={self._remote}")
        if asked.method == "GET" and path.startswith("core-fast/api/v1/devices/specs/"):
            device = self._device(path.rpartition("/")[2], asked)
            return self._send(asked, f"/core-fast/api/v1/devices/specs/{device}")
        if asked.method == "GET" and (found := self._JOB.fullmatch(path)):
            self._own(lease, found["id"], path)
            return self._send(asked, f"/{path}")
        if asked.method == "GET" and (found := self._RESULTS.fullmatch(path)):
            self._own(lease, found["id"], path)
            return self._send(asked, f"/{path}")
        if found := self._BATCH.fullmatch(path):
            self._own(lease, found["id"], path)
            if asked.method == "PATCH" and found["rest"]:
                return self._send(asked, f"/{path}", asked.body or None)
            if asked.method == "GET" and not found["rest"]:
                return self._noted(lease, self._send(asked, f"/{path}"))
        raise refused(path)

    def _batch(self, lease: str, asked: Asked) -> Passed:
        batch = asked.document()
        batch["device_type"] = self._device(batch.get("device_type"), asked)
        batch["project_id"] = self._project
        made = self._start(
            lease,
            lambda: self._send(asked, f"/{asked.path}", json.dumps(batch)),
            lambda answer: object_of(answer.get("data")).get("id"),
        )
        return self._noted(lease, made)

    def _noted(self, lease: str, answer: Passed) -> Passed:
        """The jobs of a batch are the lease's as the batch is."""
        data = object_of(answer.document().get("data"))
        for job in [*list_of(data.get("job_ids")), *(object_of(row).get("id") for row in list_of(data.get("jobs")))]:
            if isinstance(job, str):
                self._know(job, lease)
        return answer


def _surely_not(error: QtandemError) -> bool:
    return isinstance(error, _Declined) and error.answer.status < 500


def _form(asked: Asked) -> tuple[str, str]:
    """The one file of a form, in a form of our own, and its content type; raises `bad-request`."""
    head = f"Content-Type: {asked.type}\r\n\r\n" if asked.type.isprintable() and len(asked.type) < 200 else "\r\n"
    form = message_from_bytes(head.encode() + asked.body.encode(), policy=policy.HTTP)
    parts = list(form.iter_parts()) if form.get_content_type() == "multipart/form-data" else []
    if (
        len(parts) != 1
        or parts[0].is_multipart()
        or parts[0].get_param("name", header="content-disposition") != "input"
    ):
        raise QtandemError("bad-request", "The input is no form with one file")
    content = parts[0].get_payload(decode=True)
    text = content.decode("utf-8", "replace") if isinstance(content, bytes) else ""
    mark = uuid.uuid4().hex
    disposition = 'Content-Disposition: form-data; name="input"; filename="input"'
    lines = [f"--{mark}", disposition, "Content-Type: application/octet-stream", "", text, f"--{mark}--", ""]
    return "\r\n".join(lines), f"multipart/form-data; boundary={mark}"
