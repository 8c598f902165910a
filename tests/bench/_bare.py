"""The peer of the API bench: bare aiohttp handlers that answer any call at once with bytes of a given length.

python _bare.py SOCKET BYTES
"""

from __future__ import annotations

import sys

from aiohttp import web


async def answer(request: web.Request) -> web.Response:
    await request.read()
    return web.Response(body=BODY, content_type="application/json")


if __name__ == "__main__":
    BODY = b'{"rows":"' + b"x" * (int(sys.argv[2]) - 11) + b'"}'
    app = web.Application()
    app.add_routes([web.route("*", "/{path:.*}", answer)])
    web.run_app(app, path=sys.argv[1], access_log=None, print=None)
