"""Amazon Braket as a provider: which of its two ways a resource goes."""

from __future__ import annotations

from collections.abc import Mapping

from qtandem.core.facts import Observation
from qtandem.core.providers.base import Capabilities, Provider, ProviderSpec, TaskReport
from qtandem.core.providers.braket.cloud import CloudProvider
from qtandem.core.providers.braket.local import LocalProvider
from qtandem.core.providers.braket.payloads import KINDS
from qtandem.core.providers.braket.settings import Settings


class BraketProvider:
    """One device of Braket, or one of the SDK's simulators on this host (`device = local:NAME`)."""

    capabilities = Capabilities(
        sessions=False, finds_sessions=False, finds_tasks=True, payloads=KINDS, logs=False, stop=True
    )

    def __init__(self, spec: ProviderSpec) -> None:
        settings = Settings.read(spec)
        kind = LocalProvider if settings.local else CloudProvider
        self._provider: Provider = kind(spec, settings)

    @property
    def busy(self) -> bool:
        return bool(getattr(self._provider, "busy", False))

    def observe(self) -> Observation:
        return self._provider.observe()

    def acquire(self, key: str, slots: int) -> str:
        return self._provider.acquire(key, slots)

    def release(self, token: str) -> None:
        self._provider.release(token)

    def find_session(self, key: str) -> str | None:
        return self._provider.find_session(key)

    def target(self) -> str:
        return self._provider.target()

    def task_start(self, token: str, key: str, payload: Mapping[str, object]) -> str:
        return self._provider.task_start(token, key, payload)

    def find_task(self, key: str) -> str | None:
        return self._provider.find_task(key)

    def task_status(self, task: str) -> TaskReport:
        return self._provider.task_status(task)

    def task_result(self, task: str) -> str:
        return self._provider.task_result(task)

    def task_logs(self, task: str) -> str:
        return self._provider.task_logs(task)

    def task_stop(self, task: str) -> None:
        self._provider.task_stop(task)

    def metadata(self) -> dict[str, str]:
        return self._provider.metadata()
