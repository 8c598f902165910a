import pytest

from qtandem.core.providers.base import ProviderSpec
from qtandem.core.providers.pool import Workers
from tests.fakes import providers


@pytest.fixture
async def pool():
    """Makes `Workers` over scripted providers, from name = settings; they end with the test."""
    made = []

    def make(*, limit=4, deadline_s=20.0, memory_bytes=0, **settings):
        specs = {name: ProviderSpec(name, "scripted", values) for name, values in settings.items()}
        workers = Workers(specs, limit, deadline_s, memory_bytes=memory_bytes, command=providers.command())
        made.append(workers)
        return workers

    yield make
    for workers in made:
        await workers.close()
