"""Loading a site's configuration: `qtandem.toml` and QRMI's `qrmi_config.json`, and what is wrong with them.

A fault in one entry costs that entry; a fault in the form of `qtandem.toml` costs the whole file. Every fault
is one `Problem` with path, key and fix.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from qtandem.core import requests, sources
from qtandem.core.errors import QtandemError
from qtandem.core.facts import Availability
from qtandem.core.places import runtime_folder
from qtandem.core.problems import Problem
from qtandem.core.providers.base import DISCOVERS, PROVIDERS
from qtandem.core.qrmi_config import QrmiFile, read_qrmi_config
from qtandem.core.requests import NAME, RESERVED, Request
from qtandem.core.resources import CLOSED, USER_KEYS, Access, Catalog, Reach, Resource, native_name
from qtandem.core.settings import DaemonSettings, ResourceSettings, Settings
from qtandem.core.sources import Source, SourceError

# Ports from here on need no right to be listened on: ip(7).
FIRST_OPEN_PORT = 1024
SYSTEM_PATH = Path("/etc/qtandem/qtandem.toml")


@dataclass(frozen=True, slots=True)
class Configuration:
    """A site's settings and catalog. `problems` that are fatal cost their entry; `path` is the file that was read."""

    settings: Settings
    catalog: Catalog
    problems: tuple[Problem, ...] = ()
    path: Path | None = None

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.fatal)


def default_path() -> Path:
    """`/etc/qtandem/qtandem.toml` for root and services, the user's own file elsewhere if it exists."""
    if os.geteuid() != 0:
        own = _xdg("XDG_CONFIG_HOME", ".config") / "qtandem" / "qtandem.toml"
        # A home that may not be entered holds no file of ours.
        if os.path.exists(own):
            return own
    return SYSTEM_PATH


def load(path: Path | None = None, *, secrets: bool = True) -> Configuration:
    """Read the configuration at `path` (default: `default_path()`; no file there means all defaults).

    Raises `bad-config` if `qtandem.toml` cannot be read or does not have its form; its `cause` lists each
    problem on a line. `secrets` False leaves the files of `secrets` alone, for hosts that have none of them.
    """
    given = path is not None
    path = path or default_path()
    problems: list[Problem] = []
    settings = _settings(path, required=given, problems=problems)
    fatal = [problem for problem in problems if problem.fatal]
    if fatal:
        raise QtandemError("bad-config", f"{path} cannot be used", cause="\n".join(str(problem) for problem in fatal))
    if os.geteuid() != 0 and not (path == SYSTEM_PATH and path.exists()):
        settings = _without_root(settings)
    problems.extend(_open_port(path, settings.daemon))
    vendor = read_qrmi_config(settings.daemon.qrmi_config, problems)
    catalog = _catalog(settings, vendor, path, problems, secrets)
    return Configuration(settings, catalog, tuple(problems), path if path.exists() else None)


def _settings(path: Path, *, required: bool, problems: list[Problem]) -> Settings:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        if required:
            problems.append(Problem(path, "", "the file does not exist", "Make it: qtandem config example"))
        return Settings()
    except OSError as error:
        problems.append(Problem(path, "", f"cannot be read: {error.strerror}", f"Check the mode of {path}."))
        return Settings()
    try:
        if text.startswith(b"\xef\xbb\xbf"):
            problems.append(Problem(path, "", "starts with a byte order mark", "Save it as UTF-8 without BOM."))
            return Settings()
        return Settings.model_validate(tomllib.loads(text.decode()))
    except UnicodeDecodeError:
        problems.append(Problem(path, "", "is not UTF-8", "Save it as UTF-8."))
    except tomllib.TOMLDecodeError as error:
        problems.append(Problem(path, "", f"is not TOML: {error}", "Mend that line."))
    except ValidationError as error:
        problems.extend(_problem(path, detail) for detail in error.errors(include_url=False))
    return Settings()


def _open_port(path: Path, daemon: DaemonSettings) -> list[Problem]:
    """A warning where any user could listen in the proxy's place while it is down, and be sent leases' tokens."""
    port = daemon.proxy.rpartition(":")[2]
    if not port.isdigit() or int(port) < FIRST_OPEN_PORT:
        return []
    fix = "Use a port below 1024, and AmbientCapabilities=CAP_NET_BIND_SERVICE in the units of daemon and relay."
    return [
        Problem(path, "daemon.proxy", f"port {port} is free for any user while the proxy is down", fix, fatal=False)
    ]


def _problem(path: Path, detail: Mapping[str, Any]) -> Problem:
    location = [str(part) for part in detail["loc"]]
    key = ".".join(location)
    if detail["type"] == "extra_forbidden":
        known = _keys_at(location[:-1])
        near = difflib.get_close_matches(location[-1], known, n=1)
        fix = f"Did you mean {near[0]}?" if near else f"The keys there are {', '.join(known)}."
        return Problem(path, key, "is not a key", fix)
    return Problem(path, key, str(detail["msg"]).removeprefix("Value error, "), f"It has {detail['input']!r} now.")


def _keys_at(location: Iterable[str]) -> list[str]:
    """The keys of the section at a location; names in a table of resources or managers are passed over."""
    section: type[BaseModel] = Settings
    for part in location:
        if part in section.model_fields:
            inner = section.model_fields[part].annotation
            arguments = [inner, *getattr(inner, "__args__", ())]
            models = [kind for kind in arguments if isinstance(kind, type) and issubclass(kind, BaseModel)]
            section = models[0] if models else section
    return list(section.model_fields)


def _without_root(settings: Settings) -> Settings:
    """Unset paths of a user's own daemon lie in the XDG directories; the site's file means the site's paths."""
    runtime = runtime_folder()
    state = _xdg("XDG_STATE_HOME", ".local/state") / "qtandem"
    config = _xdg("XDG_CONFIG_HOME", ".config") / "qtandem"
    own = {
        "socket": runtime / "qtandem.sock",
        "runtime_dir": runtime,
        "state_dir": state,
        "master_key": state / "master.key",
        "qrmi_config": config / "qrmi_config.json",
        "tls_dir": config / "tls",
    }
    unset = {key: value for key, value in own.items() if key not in settings.daemon.model_fields_set}
    daemon: DaemonSettings = settings.daemon.model_copy(update=unset)
    return settings.model_copy(update={"daemon": daemon})


def _xdg(variable: str, fallback: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / fallback)


@dataclass(slots=True)
class _Builder:
    settings: Settings
    path: Path
    problems: list[Problem]
    secrets: bool
    resources: dict[str, Resource] = field(default_factory=dict)
    templates: dict[str, Resource] = field(default_factory=dict)
    natives: dict[str, str] = field(default_factory=dict)

    def fault(self, key: str, message: str, fix: str, *, path: Path | None = None) -> None:
        self.problems.append(Problem(path or self.path, key, message, fix))

    def add(self, resource: Resource, key: str, path: Path | None = None, *, dynamic: bool = False) -> None:
        if dynamic and resource.type not in DISCOVERS:
            fix = f"Name its devices one by one; {', '.join(DISCOVERS)} can be dynamic."
            self.fault(key, f"{resource.type} cannot be dynamic", fix, path=path)
        elif dynamic:
            self.templates[resource.name] = resource
        elif not resource.name.strip() or resource.name in RESERVED:
            self.fault(key, f"{resource.name!r} is no name", "Give it another; any and claim are reserved.", path=path)
        elif resource.native in self.natives:
            other = self.natives[resource.native]
            fix = f"Set native in [resources.{resource.name!r}] to a name of its own."
            self.fault(key, f"has the native name {resource.native} of {other}", fix, path=path)
        else:
            self.resources[resource.name] = resource
            self.natives[resource.native] = resource.name


def _catalog(settings: Settings, vendor: QrmiFile, path: Path, problems: list[Problem], secrets: bool) -> Catalog:
    build = _Builder(settings, path, problems, secrets)
    for name, entry in vendor.resources.items():
        extra = settings.resources.get(name, ResourceSettings())
        if extra.type and extra.type != entry.type:
            fix = "Leave type out; qrmi_config.json has it."
            build.fault(f"resources.{name}.type", f"is {extra.type}, in qrmi_config.json {entry.type}", fix)
            continue
        resource = _resource(build, name, entry.type, entry.settings, extra)
        if resource:
            build.add(resource, entry.key, settings.daemon.qrmi_config, dynamic=entry.is_dynamic or extra.dynamic)
    for name, extra in settings.resources.items():
        key = f"resources.{name}"
        if name in vendor.names:
            continue
        if not extra.type:
            build.fault(key, "has no type and is not in qrmi_config.json", "Give it a type, or mend the name.")
        elif extra.type not in PROVIDERS:
            known = ", ".join(PROVIDERS)
            build.fault(f"{key}.type", f"{extra.type!r} has no provider", f"The types are {known}.")
        else:
            resource = _resource(build, name, extra.type, {}, extra)
            if resource:
                build.add(resource, key, dynamic=extra.dynamic)
    return Catalog(build.resources, _classes(build), build.templates)


def _resource(
    build: _Builder, name: str, kind: str, vendor: Mapping[str, str], extra: ResourceSettings
) -> Resource | None:
    secrets = _secrets(build, f"resources.{name}.secrets", extra.secrets)
    observing = _secrets(build, f"resources.{name}.observe_secrets", extra.observe_secrets)
    try:
        reach = Reach.of(extra.reachable_from.partitions, extra.reachable_from.nodes)
    except ValueError as error:
        build.fault(f"resources.{name}.reachable_from.nodes", str(error), "Write it as c[1-4],gpu7.")
        return None
    if secrets is None or observing is None or not _owned(build, name, kind, extra):
        return None
    if kind == "oqtopus" and "bridge_library" not in extra.settings:
        fix = "Build liboqtopus_py_bridge.so from QRMI's sources and set bridge_library; docs/vendors.md."
        words = "needs a bridge that is in no package of QRMI's, unless the loader finds it"
        build.problems.append(Problem(build.path, f"resources.{name}", words, fix, fatal=False))
    timing = build.settings.timing
    simulated = kind == "simulator"
    return Resource(
        name=name,
        type=kind,
        native=extra.native or native_name(name),
        slots=extra.slots,
        reach=reach,
        access=Access(frozenset(extra.allow.users), frozenset(extra.allow.accounts)),
        credentials=extra.credentials,
        max_queue=extra.max_queue,
        max_wait_s=requests.seconds(extra.max_wait) if extra.max_wait else None,
        price=extra.price,
        currency=extra.currency,
        vendor=extra.vendor or _vendor_of(kind),
        qubits=extra.qubits,
        max_shots=extra.max_shots,
        simulator=simulated,
        poll_s=extra.poll_s or (timing.poll_simulator_s if simulated else timing.poll_cloud_s),
        effects={kind: extra.effects.get(kind, CLOSED[kind]) for kind in Availability},
        settings={**vendor, **{key: _text(value) for key, value in extra.settings.items()}, **secrets},
        observing=observing,
        sources=extra.secrets,
        observe_sources=extra.observe_secrets,
        owner=extra.owner,
        filter=extra.filter,
        max_tasks=extra.max_tasks,
        max_tasks_lease=extra.max_tasks_lease,
        task_order=extra.task_order,
        priority=extra.priority,
        user_keys=extra.user_keys,
        has_provider=kind in PROVIDERS,
    )


def _text(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _vendor_of(kind: str) -> str:
    """`ibm` of `ibm-quantum-system`: the first word of the type, which is what vendor= in a request matches."""
    return "ibm" if kind == "qiskit-runtime-service" else kind.partition("-")[0]


def _secrets(build: _Builder, section: str, named: Mapping[str, Source]) -> dict[str, str] | None:
    """What files and the service manager hold. Commands are run by the daemon alone."""
    out: dict[str, str] = {}
    for key, source in named.items():
        if source.command or not build.secrets:
            continue
        try:
            out[key] = sources.read(source)
        except SourceError as error:
            build.fault(f"{section}.{key}", str(error), error.fix)
            return None
    return out


def _owned(build: _Builder, name: str, kind: str, extra: ResourceSettings) -> bool:
    if extra.owner == "site" or extra.user_keys or kind in USER_KEYS:
        return True
    build.fault(f"resources.{name}.user_keys", f"is empty, and {kind} has no usual ones", "Name the users' keys.")
    return False


def _classes(build: _Builder) -> dict[str, Request]:
    out: dict[str, Request] = {}
    for name, text in build.settings.classes.items():
        key = f"classes.{name}"
        if name in RESERVED or not NAME.fullmatch(name):
            build.fault(key, f"{name!r} cannot be a class", "Use letters, digits, '_', '.', '-'; not any or claim.")
        elif name in build.resources or name in build.natives:
            build.fault(key, "has the name of a resource", "Resources and classes share one name space; rename it.")
        else:
            meaning = _meaning(build, key, text)
            if meaning:
                out[name] = meaning
    return out


def _meaning(build: _Builder, key: str, text: str) -> Request | None:
    try:
        request = requests.parse(text)
        for item in request.items:
            Catalog(build.resources).candidates(item)
    except QtandemError as error:
        build.fault(key, error.message, error.remedy)
        return None
    return request
