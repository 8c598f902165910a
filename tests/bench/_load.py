"""A load generator for one unix socket: calls at fixed times, whatever the answers do; prints latencies as JSON.

    python _load.py SOCKET RATE SECONDS PLAN.json

PLAN is a list of {name, weight, method, path, body}; `{new}` in a path or body becomes a new number, `{old}` the
oldest number that a `{new}` call was answered for. A latency counts from the time at which the call was due.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Load:
    socket: str
    plan: list[dict]
    latencies: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)
    ready: deque[int] = field(default_factory=deque)
    last: int = 0

    async def run(self, rate: float, seconds: float) -> None:
        choose = random.Random(1)
        weights = [entry["weight"] for entry in self.plan]
        begin, calls = time.perf_counter() + 0.2, []
        for number in range(int(rate * seconds)):
            due = begin + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            [entry] = choose.choices(self.plan, weights)
            calls.append(asyncio.create_task(self.call(entry, due)))
        await asyncio.gather(*calls)

    async def call(self, entry: dict, due: float) -> None:
        path, body, new = entry["path"], json.dumps(entry["body"]) if entry.get("body") else "", None
        if "{old}" in path + body:
            if not self.ready:
                return
            old = str(self.ready.popleft())
            path, body = path.replace("{old}", old), body.replace("{old}", old)
        if "{new}" in path + body:
            self.last += 1
            new = self.last
            path, body = path.replace("{new}", str(new)), body.replace("{new}", str(new))
        status = await self.exchange(entry["method"], path, body)
        self.latencies.setdefault(entry["name"], []).append(time.perf_counter() - due)
        if status != 200:
            self.errors[f"{entry['name']} {status}"] = self.errors.get(f"{entry['name']} {status}", 0) + 1
        elif new is not None:
            self.ready.append(new)

    async def exchange(self, method: str, path: str, body: str) -> int:
        reader, writer = self.idle.pop() if self.idle else await asyncio.open_unix_connection(self.socket)
        head = f"{method} {path} HTTP/1.1\r\nHost: q\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}\r\n{body}".encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in answer.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        self.idle.append((reader, writer))
        return int(answer.split(b" ", 2)[1])


def main() -> None:
    socket, rate, seconds, plan = sys.argv[1:]
    load = Load(socket, json.loads(Path(plan).read_text()))
    asyncio.run(load.run(float(rate), float(seconds)))
    print(json.dumps({"latencies": load.latencies, "errors": load.errors}))


if __name__ == "__main__":
    main()
