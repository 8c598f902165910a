"""Clusters for the scenarios: one a session, or one of its own for a module that takes it apart."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.cluster import QPUS, Cluster
from tests.live.gridengine_cluster import GridEngineCluster
from tests.live.hosts import no_docker, unique_project
from tests.live.images import build, chosen, required
from tests.live.lsf_cluster import LsfCluster
from tests.live.pbs_cluster import PbsCluster
from tests.live.slurm_cluster import SlurmCluster

CLUSTERS: dict[str, type[Cluster]] = {
    "slurm": SlurmCluster,
    "gridengine": GridEngineCluster,
    "pbs": PbsCluster,
    "lsf": LsfCluster,
}
# Of these QTANDEM_NAME_IMAGE names an image with the manager in it, which the tester has; the rest is built on it.
SUPPLIED = ("pbs", "lsf")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "manager" in metafunc.fixturenames:
        only = getattr(metafunc.module, "MANAGERS", tuple(CLUSTERS))
        reason = "run it by make live, or with QTANDEM_LIVE={}"
        metafunc.parametrize(
            "manager",
            [
                name if chosen(name) else pytest.param(name, marks=pytest.mark.skip(reason=reason.format(name)))
                for name in only
            ],
            scope="session",
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `-n N --dist loadgroup` a file with a cluster of its own goes to one test process; else each test by itself.

    Tests of one manager come together, so that a process has one cluster of it.
    """
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.live)
            manager = item.callspec.params.get("manager") if hasattr(item, "callspec") else None
            own = getattr(getattr(item, "module", None), "OWN_CLUSTER", False)
            item.add_marker(pytest.mark.xdist_group(f"{manager}-{item.path.stem if own else item.nodeid}"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    cluster = getattr(item, "funcargs", {}).get("module_cluster")
    if report.failed and isinstance(cluster, Cluster):
        folder = Path(tempfile.mkdtemp(prefix=f"qtandem-live-{item.name.partition('[')[0]}-"))
        # A module's own cluster may be gone by the time that its last test is taken down.
        with contextlib.suppress(RuntimeError):
            cluster.collect(folder)
        report.sections.append(("logs of the cluster", str(folder)))


@pytest.fixture(scope="session")
def image(manager: str) -> str:
    """The image of the manager's cluster, built if need be; skips (or fails where required) without Docker."""
    name = f"QTANDEM_{manager.upper()}_IMAGE"
    given = os.environ.get(name, "")
    lack = no_docker()
    if not lack and manager in SUPPLIED and not given:
        lack = f"{name} names no image with {manager} in it"
    if lack and required(manager):
        pytest.fail(f"the live suite of {manager} is required: {lack}", pytrace=False)
    if lack:
        pytest.skip(f"no live {manager} cluster: {lack}")
    if manager in SUPPLIED:
        os.environ[f"QTANDEM_{manager.upper()}_BASE"], given = given, ""
    if not given:
        failed = build(manager)
        if failed:
            pytest.fail(failed, pytrace=False)
    return given or f"qtandem-{manager}"


def bring_up(manager: str, image: str) -> Iterator[Cluster]:
    cluster = CLUSTERS[manager](unique_project(manager), {f"QTANDEM_{manager.upper()}_IMAGE": image})
    try:
        yield cluster.up()
    finally:
        cluster.down()


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Have a line of figures printed at the end of the run."""
    return lambda text: record_property("measured", text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for group in ("passed", "failed") for report in terminalreporter.stats.get(group, ())]
    lines = [str(value) for report in reports for name, value in report.user_properties if name == "measured"]
    if lines:
        terminalreporter.section("measured on the live clusters")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def session_cluster(manager: str, image: str) -> Iterator[Cluster]:
    yield from bring_up(manager, image)


@pytest.fixture(scope="module")
def module_cluster(request: pytest.FixtureRequest, manager: str, image: str) -> Iterator[Cluster]:
    """A cluster of the module's own if it sets OWN_CLUSTER, else the session's."""
    if getattr(request.module, "OWN_CLUSTER", False):
        yield from bring_up(manager, image)
    else:
        yield request.getfixturevalue("session_cluster")


@pytest.fixture
def cluster(module_cluster: Cluster) -> Iterator[Cluster]:
    """A cluster with every daemon up, every QPU online and no lease, before and after each test."""
    tidy(module_cluster)
    yield module_cluster
    for job, view in module_cluster.jobs().items():
        if view.state != "ended":
            module_cluster.cancel(job)


def tidy(cluster: Cluster) -> None:
    cluster.heal()
    for job, view in cluster.jobs().items():
        if view.state not in ("ended", "ending"):
            cluster.cancel(job)
    cluster.wait_no_leases()
    cluster.wait_sensors(QPUS)
