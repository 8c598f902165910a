"""Quantum resources for programs, with the names and verbs of the `qrmi` package.

A program that uses `qrmi` changes its import to `from qtandem.core.client import ...`. Beyond QRMI there are
`acquire()` (a context manager), `QuantumResource.run` and `.task_wait`, `Payload.QASM2` and `.QASM3`, and
`counts`.
"""

from qtandem.core.client.environment import Config, ResourceDef, get_job_qpu_resources_and_types
from qtandem.core.client.errors import (
    AuthenticationFailedError,
    ConfigError,
    EnvVarNotSetError,
    InvalidInputError,
    QrmiError,
    ResourceNotFoundError,
    TaskNotFoundError,
    TaskNotReadyError,
    UnsupportedFunctionError,
    UnsupportedPayloadError,
    UnsupportedResourceTypeError,
)
from qtandem.core.client.resource import QuantumResource, acquire
from qtandem.core.client.results import counts
from qtandem.core.client.service import QRMIService, ResourceProvider, set_log_callback
from qtandem.core.client.types import (
    Payload,
    ResourceCapacity,
    ResourceStatus,
    ResourceStatusCode,
    ResourceType,
    Target,
    TaskResult,
    TaskStatus,
)

__all__ = [
    "AuthenticationFailedError",
    "Config",
    "ConfigError",
    "EnvVarNotSetError",
    "InvalidInputError",
    "Payload",
    "QRMIService",
    "QrmiError",
    "QuantumResource",
    "ResourceCapacity",
    "ResourceDef",
    "ResourceNotFoundError",
    "ResourceProvider",
    "ResourceStatus",
    "ResourceStatusCode",
    "ResourceType",
    "Target",
    "TaskNotFoundError",
    "TaskNotReadyError",
    "TaskResult",
    "TaskStatus",
    "UnsupportedFunctionError",
    "UnsupportedPayloadError",
    "UnsupportedResourceTypeError",
    "acquire",
    "counts",
    "get_job_qpu_resources_and_types",
    "set_log_callback",
]
