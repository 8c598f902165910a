import pytest
from hypothesis import given
from hypothesis import strategies as st

from qtandem.core.errors import QtandemError
from qtandem.core.runs import JobId, RunId

JOBS = st.builds(
    JobId,
    st.sampled_from(["slurm", "pbs", "local"]),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_\-]{0,20}", fullmatch=True),
    st.from_regex(r"[0-9]{1,10}", fullmatch=True),
    st.none() | st.integers(0, 99999),
)


@given(JOBS, st.integers(0, 1000))
def test_ids_read_back_as_they_were_written(job, attempt):
    assert JobId.parse(str(job)) == job
    assert RunId.parse(str(job.run(attempt))) == job.run(attempt)


@pytest.mark.parametrize("text", ["", "5", "slurm:c:", "slurm:c:5.1.2", "slurm:../x:5", "slurm:c:5\n", "slurm:c:5.x"])
def test_what_is_no_id_is_refused(text):
    for kind in (JobId, RunId):
        with pytest.raises(QtandemError, match="not a"):
            kind.parse(text)
