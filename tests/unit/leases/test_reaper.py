"""A run is dead when its manager has said so twice."""

from __future__ import annotations

import pytest

from qtandem.core.leases.reaper import Reaper
from qtandem.core.managers import Job, JobState


def job_of(run, state, attempt=None):
    return Job(run.id.job, state, run.uid, run.user, run.id.attempt if attempt is None else attempt)


@pytest.mark.parametrize(
    ("state", "attempt", "reason"),
    [
        (None, 0, "does not know"),
        (JobState.ENDED, 0, "is ended"),
        (JobState.PENDING, 0, "is pending"),
        (JobState.RUNNING, 1, "attempt 1"),
        (JobState.PENDING, 1, "attempt 1"),
    ],
)
def test_two_answers_kill(run, state, attempt, reason):
    one = run()
    answers = {one.id.job: None if state is None else job_of(one, state, attempt)}
    reaper = Reaper()
    assert reaper.judge([one], answers, 0.0) == []
    (dead,) = reaper.judge([one], answers, 30.0)
    assert dead.run == one.id
    assert reason in dead.reason


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.SUSPENDED])
def test_a_living_job_keeps_its_run(run, state):
    one, reaper = run(), Reaper()
    for now in (0.0, 30.0, 60.0):
        assert reaper.judge([one], {one.id.job: job_of(one, state)}, now) == []


def test_a_living_answer_clears_a_strike(run):
    one, reaper = run(), Reaper()
    for now, answer in ((0.0, None), (30.0, job_of(one, JobState.RUNNING)), (60.0, None)):
        assert reaper.judge([one], {one.id.job: answer}, now) == []
    assert reaper.judge([one], {one.id.job: None}, 90.0)


def test_no_answer_is_no_strike_and_clears_none(run):
    one, reaper = run(), Reaper()
    assert reaper.judge([one], {one.id.job: None}, 0.0) == []
    for now in (30.0, 60.0):
        assert reaper.judge([one], {}, now) == []
    assert reaper.judge([one], {one.id.job: None}, 90.0)


def test_two_answers_in_one_moment_are_one(run):
    one, reaper = run(), Reaper(apart_s=5.0)
    assert reaper.judge([one], {one.id.job: None}, 0.0) == []
    assert reaper.judge([one], {one.id.job: None}, 1.0) == []
    assert reaper.judge([one], {one.id.job: None}, 6.0)


def test_a_daemon_that_counts_attempts_itself_goes_by_the_state(run):
    one, reaper = run(attempt=3), Reaper()
    assert reaper.judge([one], {one.id.job: job_of(one, JobState.ENDED, 0)}, 0.0) == []
    assert reaper.judge([one], {one.id.job: job_of(one, JobState.ENDED, 0)}, 30.0)


def test_runs_that_are_over_are_forgotten(run):
    one, reaper = run(), Reaper()
    reaper.judge([one], {one.id.job: None}, 0.0)
    reaper.judge([], {}, 30.0)
    assert reaper.judge([one], {one.id.job: None}, 60.0) == []
