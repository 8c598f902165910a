"""A recorded cluster of 24.11: five nodes: one drained, one reserved now, one half full, one with GPUs."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from qtandem.core.inventory import Placed, Shape, Trial
from qtandem.core.managers import Grant
from qtandem.slurm import features, inventory, jobs, placing
from tests.fakes.slurm.cluster import RECORDED

AT = 1796012240.0
OWN = inventory.Own("lab", "qtandem", {"east": "east"}, {})


def records(kind: str) -> list[Any]:
    return jobs.records((RECORDED / f"{kind}-24.11.json").read_text(), kind)


@pytest.fixture(scope="module")
def place() -> inventory.Site:
    return inventory.site(records("nodes"), records("partitions"), records("reservations"))


@pytest.fixture(scope="module")
def waiting(place: inventory.Site) -> dict[str, Any]:
    found, masks = inventory.waiting(records("jobs"), place, OWN, AT)
    return {str(one.id).rpartition(":")[2]: (one, masks[one.mask]) for one in found}


def test_hosts_are_those_that_take_jobs_with_what_is_left() -> None:
    found = {host.name: host for host in inventory.hosts(records("nodes"), inventory.running(records("jobs")))}
    assert set(found) == {"b1", "b2", "c1", "g1"}, "c2 is drained"
    assert (found["c1"].free_cpus, found["c1"].free_memory_mb, found["c1"].running) == (12, 700, 1)
    assert (found["g1"].gpus, found["g1"].free_gpus, found["g1"].free_cpus) == (2, 1, 12)
    assert (found["b1"].running, found["b1"].watts) == (0, None)


@pytest.mark.parametrize(
    ("shape", "nodes"),
    [
        (Shape(partitions=("main",), time_limit_s=600), {"c1"}),
        (Shape(partitions=("wide",), time_limit_s=600), {"b1", "c1", "g1"}),
        (Shape(partitions=("wide",), qos="batch"), set()),
        (Shape(partitions=("wide",), reservation="now1", time_limit_s=600), {"b2"}),
        (Shape(partitions=("gpu",), account="physics"), {"g1"}),
        (Shape(partitions=("gpu",), account="Physics"), {"g1"}),
        (Shape(partitions=("gpu",), account="chemistry"), set()),
        (Shape(partitions=("gpu", "main"), account="chemistry"), {"c1"}),
        (Shape(partitions=("wide",), features="ib&gpu80"), {"g1"}),
        (Shape(partitions=("wide",), features="ib,gpu80"), {"g1"}),
        (Shape(partitions=("wide",), features="gpu80|none"), {"g1"}),
        (Shape(partitions=("wide",), features="(ib|none)&(gpu80)"), {"g1"}),
        (Shape(partitions=("wide",), gpu_type="a100"), {"g1"}),
        (Shape(partitions=("wide",), gpu_type="h100"), set()),
        (Shape(partitions=("wide",), memory_mb=1500), {"b1", "g1"}),
        (Shape(partitions=("wide",), excluded=("b1",), required=("b1", "g1")), {"g1"}),
        (Shape(partitions=("gone",)), set()),
    ],
)  # fmt: skip
def test_the_mask_is_the_managers_own_answer(place: inventory.Site, shape: Shape, nodes: set[str]) -> None:
    assert place.permitted(shape, AT) == nodes


def test_a_reservation_to_come_keeps_its_nodes_from_jobs_that_would_not_end_before() -> None:
    nodes = [{**record, "state": ["IDLE"]} for record in records("nodes")]
    free = inventory.site(nodes, records("partitions"), records("reservations"))
    assert free.permitted(Shape(partitions=("main",), time_limit_s=600), AT) == {"c1", "c2"}
    assert free.permitted(Shape(partitions=("main",), time_limit_s=2 * 3600), AT) == {"c1"}
    assert free.permitted(Shape(partitions=("main",)), AT) == {"c1"}, "without a limit it may run that long"


@pytest.mark.parametrize("text", ["ib*2", "[ib|gpu80]", "ib&", "(ib", "ib)", "&ib", "(" * 3000 + "ib", "ib gpu80"])
def test_a_constraint_that_is_about_several_nodes_or_wrong_is_not_guessed(place: inventory.Site, text: str) -> None:
    assert features.parse(text) is None
    assert place.permitted(Shape(partitions=("wide",), features=text), AT) is None


def test_a_constraint_without_an_end_holds_nobody_up(place: inventory.Site) -> None:
    began = time.process_time()
    for text in ("ib|" * 20_000 + "ib", "(" * 39 + "ib|" * 200 + "gpu80" + ")" * 39, "none&" * 249 + "ib"):
        place.permitted(Shape(partitions=("wide",), features=text), AT)
    assert time.process_time() - began < 1.0
    assert features.parse("ib|" * 20_000 + "ib") is None
    test = features.parse("none|" * 249 + "ib")
    assert test is not None
    assert (test({"ib"}), test({"gpu80"})) == (True, False)


def test_pending_jobs_and_why_some_are_left_to_the_manager(waiting: dict[str, Any]) -> None:
    assert set(waiting) == {
        "18", "19", "20", "21", "22_0", "22_1", "23", "24", "26", "27", "28", "29", "31", "33", "34", "36", "37",
    }, "of the array as many as may run at once"  # fmt: skip
    skipped = {name: one.skipped for name, (one, _) in waiting.items() if one.skipped}
    assert skipped == {
        "23": "it is held",
        "28": "it waits for Dependency",
        "29": "it waits for BeginTime",
        "31": "it names nodes for a part of it",
        "34": "it waits for Dependency",
        "36": "it is part of a heterogeneous job",
        "37": "it is part of a heterogeneous job",
    }
    assert {name for name, (one, _) in waiting.items() if one.fixed and not one.skipped} == {"20", "22_0", "22_1", "33"}


def test_what_a_job_asks_for(waiting: dict[str, Any]) -> None:
    plain, permitted = waiting["18"]
    assert (plain.shape.cpus, plain.shape.memory_mb, plain.shape.time_limit_s) == (20, 300, 600)
    assert permitted == {"c1"}
    assert waiting["19"][1] == {"c1"}, "bob's account may not use the partition gpu"
    assert (waiting["20"][0].shape.nodes, waiting["20"][0].shape.cpus) == (2, 4)
    assert waiting["21"][0].shape.exclusive
    assert waiting["24"][0].shape.exclusive, "the partition gives whole nodes"
    assert waiting["24"][1] == {"g1"}
    assert waiting["26"][0].grants == (Grant("east", 1),)
    assert waiting["27"][1] == set()
    assert waiting["33"][0].shape.memory_mb == 300, "a memory for each CPU counts for all of them"
    running = next(record for record in records("jobs") if record["job_id"] == 17)
    assert (inventory.shape(running).gpus, inventory.shape(running).gpu_type) == (1, "a100")


def test_a_note_of_the_hook_is_read_and_a_pin_of_ours_may_change() -> None:
    record = next(record for record in records("jobs") if record["job_id"] == 33)
    note = {**record, "admin_comment": "site | qtandem:placed=pin%3Ac1 | qtandem:choices=a%2Fb;pinned=a@qtandem:1"}
    assert inventory.placed(note["admin_comment"]) == Placed("pin", ("c1",))
    assert inventory.placed("qtandem:placed=exclude%3Ac%5B1-3%5D") == Placed("exclude", ("c1", "c2", "c3"))
    assert inventory.placed("qtandem:placed=sit%3Ac1") is None
    nodes = [{**each, "state": ["IDLE"]} for each in records("nodes")]
    site = inventory.site(nodes, records("partitions"), [])
    [(one,), masks] = inventory.waiting([note], site, OWN, AT)
    assert not one.fixed
    assert masks == ({"c1", "c2"},), "a pin of ours is no wish of its owner"
    [(other,), masks] = inventory.waiting([{**note, "required_nodes": "c2"}], site, OWN, AT)
    assert other.fixed, "its owner has named another node since"
    assert masks == ({"c2"},)
    [(applied,), masks] = inventory.waiting([record], site, replace(OWN, pins={"slurm:lab:33": ("c1",)}), AT)
    assert not applied.fixed
    assert masks == ({"c1", "c2"},)
    barred = {**record, "required_nodes": "", "excluded_nodes": "c1", "admin_comment": "qtandem:placed=exclude%3Ac1"}
    assert inventory.waiting([barred], site, OWN, AT)[1] == ({"c1", "c2"},)
    assert inventory.waiting([{**barred, "admin_comment": ""}], site, OWN, AT)[1] == ({"c2"},)


@pytest.mark.parametrize(
    ("text", "asked"),
    [("gres/gpu:a100:2", (2, "a100")), ("gres/gpu:3,gres/qpu:1", (3, "")), ("gres:gpu", (1, "")), ("gpu=2", (2, "")),
     ("gres/gpu:h100", (1, "h100")), ("gres/gpux:2", (0, "")), ("", (0, ""))],
)  # fmt: skip
def test_gpus_in_the_text_of_a_submission(text: str, asked: tuple[int, str]) -> None:
    assert inventory.gpus(text) == asked


def test_what_a_tested_submission_types_and_says() -> None:
    shape = Shape(
        cpus=4, memory_mb=100, gpus=2, gpu_type="a100", partitions=("gpu", "main"), features="ib", exclusive=True,
        reservation="now1", time_limit_s=61, account="physics", qos="high",
    )  # fmt: skip
    assert placing.trial_arguments(shape, ("c1", "c2")) == [
        "--test-only", "--nodes=1", "--ntasks=1", "--cpus-per-task=4", "--nodelist=c[1-2]", "--partition=gpu,main",
        "--mem=100M", "--gres=gpu:a100:2", "--constraint=ib", "--reservation=now1", "--time=2", "--exclusive",
        "--wrap=true",
    ]  # fmt: skip
    said = (RECORDED / "trials-24.11.txt").read_text().splitlines()
    assert placing.read_trial(said[0]).starts_at is not None
    assert placing.read_trial(said[1]).starts_at - placing.read_trial(said[0]).starts_at == 9 * 60 + 24
    assert placing.read_refusal(said[2]) == Trial("Requested node configuration is not available")
    assert placing.read_refusal(said[3]) == placing.read_refusal(said[4]) == Trial()


def test_json_with_nothing_in_it_is_an_empty_cluster() -> None:
    empty = inventory.site([], [], [])
    assert empty.permitted(Shape(partitions=("main",)), AT) == frozenset()
    assert json.loads((RECORDED / "jobs-24.11.json").read_text())["jobs"]
