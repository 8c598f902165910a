"""Object storage as S3 speaks it, in path style, for its own client: put, get, head, delete and list of objects.

Signatures are not verified, but an expired presigned URL is refused, as is one that was signed with other keys.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from email.utils import formatdate
from urllib.parse import unquote
from xml.sax.saxutils import escape

from tests.fakes.vendors.kit import FakeServer, Reply, Request, route

XML = "application/xml"


class FakeS3(FakeServer):
    """One bucket for one access key."""

    def __init__(self, bucket: str = "results", access_key: str = "AKIDEXAMPLE") -> None:
        self.bucket, self.access_key = bucket, access_key
        self.objects: dict[str, bytes] = {}
        super().__init__()

    def error(self, status: int) -> object:
        return _problem("InternalError" if status >= 500 else "AccessDenied", f"scripted {status}")

    def handle(self, request: Request) -> Reply:
        refusal = self._refusal(request)
        return refusal or super().handle(request)

    @route("PUT", r"/(?P<bucket>[^/]+)/(?P<key>.+)")
    def put(self, request: Request, bucket: str, key: str) -> Reply:
        if bucket != self.bucket:
            return _missing("NoSuchBucket", 404)
        self.objects[unquote(key)] = _plain(request)
        return Reply(200, None, {"ETag": _tag(request.body)})

    @route("GET", r"/(?P<bucket>[^/]+)/(?P<key>.+)")
    @route("HEAD", r"/(?P<bucket>[^/]+)/(?P<key>.+)")
    def get(self, request: Request, bucket: str, key: str) -> Reply:
        content = self.objects.get(unquote(key))
        if bucket != self.bucket or content is None:
            return _missing("NoSuchKey" if bucket == self.bucket else "NoSuchBucket", 404)
        headers = {"ETag": _tag(content), "Last-Modified": formatdate(self.now(), usegmt=True)}
        return Reply(200, content, headers, "application/octet-stream")

    @route("DELETE", r"/(?P<bucket>[^/]+)/(?P<key>.+)")
    def delete(self, request: Request, bucket: str, key: str) -> Reply:
        self.objects.pop(unquote(key), None)
        return Reply(204)

    @route("GET", r"/(?P<bucket>[^/]+)/?")
    def listing(self, request: Request, bucket: str) -> Reply:
        prefix = request.one("prefix") or ""
        keys = [key for key in sorted(self.objects) if key.startswith(prefix)]
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size></Contents>" for key in keys
        )
        body = f"<ListBucketResult><Name>{bucket}</Name><KeyCount>{len(keys)}</KeyCount>{rows}</ListBucketResult>"
        return Reply(200, body, {}, XML)

    def _refusal(self, request: Request) -> Reply | None:
        signed = request.one("X-Amz-Date")
        if signed is not None:
            start = datetime.strptime(signed, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
            lasts = int(request.one("X-Amz-Expires") or 0)
            if lasts > 604800:
                return Reply(400, _problem("AuthorizationQueryParametersError", "X-Amz-Expires"), {}, XML)
            if self.now() > start + lasts:
                return Reply(403, _problem("AccessDenied", "Request has expired"), {}, XML)
        who = (request.one("X-Amz-Credential") or "") + request.headers.get("authorization", "")
        if self.access_key not in who:
            return Reply(403, _problem("InvalidAccessKeyId", "The access key is not known"), {}, XML)
        return None


def _plain(request: Request) -> bytes:
    """The content without the chunk signatures that some clients send."""
    if "aws-chunked" not in request.headers.get("content-encoding", ""):
        return request.body
    out, rest = b"", request.body
    while rest:
        head, _, rest = rest.partition(b"\r\n")
        size = int(head.partition(b";")[0], 16)
        if size == 0:
            break
        out, rest = out + rest[:size], rest[size + 2 :]
    return out


def _tag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'


def _missing(code: str, status: int) -> Reply:
    return Reply(status, _problem(code, "It is not there"), {}, XML)


def _problem(code: str, message: str) -> str:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
