"""What a job's environment says about its QPUs, and QRMI's configuration file as users read it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qtandem.core.client.errors import ConfigError, EnvVarNotSetError, UnsupportedResourceTypeError
from qtandem.core.client.types import ResourceType

log = logging.getLogger("qtandem.client")

RESOURCES, TYPES = "QRMI_JOB_QPU_RESOURCES", "QRMI_JOB_QPU_TYPES"
LEGACY = {RESOURCES: "SLURM_JOB_QPU_RESOURCES", TYPES: "SLURM_JOB_QPU_TYPES"}
DELIMITER = "QRMI_LIST_DELIMITER"
RUN, CLAIM = "QTANDEM_RUN", "QTANDEM_CLAIM"


def get_job_qpu_resources_and_types() -> tuple[list[str], list[str]]:
    """Names and type texts of the job's QPUs, of equal length.

    Raises EnvVarNotSetError outside a job, ConfigError (as QRMIService does) where the lists differ in length.
    """
    resources, types = _list(os.environ, RESOURCES), _list(os.environ, TYPES)
    if len(resources) != len(types):
        raise ConfigError(f"The job has {len(resources)} QPU names but {len(types)} types: {resources} and {types}")
    if not resources:
        log.warning("The job has no QPU.")
    return resources, types


def job_type(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The type text of one of the job's QPUs, if the environment has it."""
    try:
        return dict(zip(_list(environ, RESOURCES), _list(environ, TYPES), strict=False)).get(name)
    except EnvVarNotSetError:
        return None


def _list(environ: Mapping[str, str], name: str) -> list[str]:
    text = environ.get(name)
    if text is None:
        text = environ.get(LEGACY[name])
        if text is None:
            raise EnvVarNotSetError(f"The environment variable {name} is not set; is this a job with a QPU?")
        log.warning("%s is the old name of %s", LEGACY[name], name)
    if not text:
        return []
    return [part.strip() for part in text.split(environ.get(DELIMITER) or ",")]


@dataclass(frozen=True, slots=True)
class ResourceDef:
    """One entry of qrmi_config.json; `environment` may hold secrets."""

    name: str
    resource_type: ResourceType
    is_dynamic: bool = False
    environment: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Config:
    """QRMI's configuration file. An entry that cannot be used is left out with a warning; QRMI fails the file."""

    resource_map: dict[str, ResourceDef]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Config:
        """Raises ConfigError where the file cannot be opened or has not the shape of a configuration."""
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise ConfigError(f"Failed to open {path}. reason = {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{path} is not JSON: {error}") from error
        entries = document.get("resources") if isinstance(document, dict) else None
        if not isinstance(entries, list):
            raise ConfigError(f"{path} has no list 'resources'")
        found = [entry for raw in entries if (entry := _entry(raw, path)) is not None]
        return cls({entry.name: entry for entry in found})


def _entry(raw: object, path: str | os.PathLike[str]) -> ResourceDef | None:
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
        log.warning("%s: an entry without a name is left out", path)
        return None
    environment = raw.get("environment", {})
    if not isinstance(environment, dict):
        log.warning("%s: %s is left out, its environment is not an object", path, raw["name"])
        return None
    try:
        kind = ResourceType.of(raw.get("type"))
    except UnsupportedResourceTypeError as error:
        log.warning("%s: %s is left out, %s", path, raw["name"], error)
        return None
    plain = {str(key): str(value) for key, value in environment.items()}
    return ResourceDef(raw["name"], kind, bool(raw.get("is_dynamic", False)), plain)
