"""QRMI's verbs for asyncio programs: those of `QuantumResource`, as coroutines.

async with acquire("ibm_fez") as qpu:
    results = await asyncio.gather(*(qpu.run(payload) for payload in payloads))
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from qtandem.core.client.dialogue import Dialogue, Received, address
from qtandem.core.client.resource import of_the_job
from qtandem.core.client.types import ResourceType
from qtandem.core.client.verbs import Verbs, patience_s

__all__ = ["Daemon", "QuantumResource", "acquire"]


class Daemon(Dialogue):
    """The API of one daemon (or relay), for the running event loop. Each call is a connection of its own."""

    async def exchange(self, data: bytes, deadline_s: float) -> bytes:
        async with asyncio.timeout(deadline_s):
            reader, writer = await asyncio.open_unix_connection(address(self.path))
            try:
                return await self._exchange(reader, writer, data)
            finally:
                writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> bytes:
        received = Received()
        writer.write(data)
        with suppress(BrokenPipeError, ConnectionResetError):  # a refusal may come before all was read
            await writer.drain()
        while chunk := await reader.read(65536):
            received.add(chunk)
        return received.all()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class QuantumResource(Verbs):
    """As `qtandem.core.client.QuantumResource`; every verb but `resource_id` is to be awaited."""

    def __init__(
        self, resource_id: str, resource_type: ResourceType | str | None = None, *, daemon: Daemon | None = None
    ) -> None:
        super().__init__(resource_id, resource_type, daemon or Daemon(patience_s=patience_s()))

    @classmethod
    def from_config(
        cls, resource_id: str, resource_type: ResourceType | str, config: Mapping[str, str]
    ) -> QuantumResource:
        """As QRMI's; only a `QRMI_JOB_ACQUISITION_TOKEN` in `config` is used, which names the lease."""
        resource = cls(resource_id, resource_type)
        resource.use_lease(config)
        return resource


@asynccontextmanager
async def acquire(
    resource_id: str | None = None, resource_type: ResourceType | str | None = None
) -> AsyncIterator[QuantumResource]:
    """`async with acquire("ibm_fez") as qpu:`; without a name the job's first QPU."""
    resource = QuantumResource(*of_the_job(resource_id, resource_type))
    lease = await resource.acquire()
    try:
        yield resource
    finally:
        await resource.release(lease)
