"""The database: what it keeps, what it refuses to open, and how it grows."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from qtandem.core.errors import QtandemError
from qtandem.core.leases import schema
from qtandem.core.leases.cipher import Cipher, load
from qtandem.core.leases.model import Lease, LeaseState, OwnerChange, OwnerState, run_owner
from qtandem.core.leases.queries import Filter
from qtandem.core.leases.store import Store
from qtandem.core.managers import Grant
from qtandem.core.runs import JobId

KEY = Cipher(bytes(range(32)))


def lease_of(run, id="l1", resource="fez", **changes):
    lease = Lease(id, run_owner(run.id), resource, 1, LeaseState.RESERVED, run.uid, 100.0, 100.0, 220.0)
    return replace(lease, **changes)


def test_a_lease_comes_back_as_it_was_written(store, run):
    lease = lease_of(run())
    store.reserve(run(), [lease], 100.0)
    held = replace(lease, state=LeaseState.HELD, token="secret-token", changed_at=101.0, expires_at=None)
    store.save([held], OwnerChange(lease.owner, OwnerState.HELD, 101.0))
    (opened,) = store.load()
    assert (opened.record, opened.state, opened.leases) == (run(), OwnerState.HELD, (held,))
    assert store.lease("l1") == held
    assert store.lease("l2") is None


def test_a_run_is_one_record(store, run):
    store.reserve(run(), [lease_of(run()), lease_of(run(), "l2", "garnet")], 100.0)
    store.save([], OwnerChange(run_owner(run().id), OwnerState.HELD, 102.0))
    store.save([], OwnerChange(run_owner(run().id), OwnerState.ENDED, 160.0, "ended", 137))
    (record,) = store.runs_of_job(run().id.job)
    assert record.run == run()
    assert (record.asked_at, record.started_at, record.ended_at) == (100.0, 102.0, 160.0)
    assert (record.state, record.reason, record.exit_code) == (OwnerState.ENDED, "ended", 137)
    assert record.grants == (Grant("fez", 1), Grant("garnet", 1))


def test_queries_filter(store, run):
    for number, (resource, at) in enumerate([("fez", 100.0), ("garnet", 200.0), ("fez", 300.0)]):
        one = run(str(number), uid=number)
        store.reserve(one, [lease_of(one, f"l{number}", resource, created_at=at)], at)
    store.save([lease_of(run("0"), "l0", state=LeaseState.FAILED, changed_at=105.0)])
    store.save([], OwnerChange(run_owner(run("0").id), OwnerState.REFUSED, 105.0))

    def ids(**where):
        return [lease.id for lease in store.leases(Filter(**where))]

    def jobs(**where):
        return [record.run.id.job.job for record in store.runs(Filter(**where))]

    assert ids() == ["l0", "l1", "l2"]
    assert ids(open=True) == ["l1", "l2"]
    assert ids(open=False) == ["l0"]
    assert ids(resource="fez") == ["l0", "l2"]
    assert ids(since=200.0, until=300.0) == ["l1"]
    assert ids(user="user2") == ["l2"]
    assert ids(owner="run slurm:c:1.0") == ["l1"]
    assert ids(limit=2) == ["l1", "l2"]
    assert jobs() == ["0", "1", "2"]
    assert jobs(resource="fez") == ["0", "2"]
    assert jobs(uid=1) == ["1"]
    assert jobs(owner="run slurm:c:1.0") == ["1"]
    assert jobs(open=True, since=150.0) == ["1", "2"]
    assert jobs(account="physics", limit=1) == ["2"]
    assert jobs(account="chemistry") == []


def test_no_token_is_readable_in_the_files_or_kept_after_the_end(store, run):
    lease = lease_of(run(), state=LeaseState.HELD, token="secret-token-4711")
    store.reserve(run(), [lease], 100.0)
    files = list(Path(store.url.database).parent.glob("qtandem.db*"))
    assert len(files) > 1
    assert not any(b"secret-token" in path.read_bytes() for path in files)
    assert "secret-token" not in repr(lease)
    store.save([replace(lease, state=LeaseState.RELEASED, token=None)])
    with sqlite3.connect(store.url.database) as connection:
        assert connection.execute("SELECT token FROM leases").fetchall() == [(None,)]


def test_every_commit_is_on_disk(store):
    with store.reading() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_the_files_are_private(tmp_path):
    Store(f"sqlite:///{tmp_path}/new.db", KEY).close()
    assert [path.stat().st_mode & 0o077 for path in tmp_path.iterdir()] == [0] * len(list(tmp_path.iterdir()))


def test_a_wrong_key_is_said_so(database):
    Store(f"sqlite:///{database}", KEY).close()
    with pytest.raises(QtandemError, match="key does not fit") as caught:
        Store(f"sqlite:///{database}", Cipher(bytes(32)))
    assert caught.value.code == "bad-config"


def test_a_file_that_is_no_database_is_said_so(tmp_path):
    (tmp_path / "x.db").write_text("hello " * 1000)
    with pytest.raises(QtandemError, match="cannot be opened") as caught:
        Store(f"sqlite:///{tmp_path}/x.db", KEY)
    assert caught.value.code == "bad-config"


def test_a_missing_folder_is_said_so(tmp_path):
    with pytest.raises(QtandemError, match="cannot be opened") as caught:
        Store(f"sqlite:///{tmp_path}/none/x.db", KEY)
    assert caught.value.code == "bad-config"


def test_a_second_daemon_is_kept_out(store):
    program = (
        "import sys; from qtandem.core.leases.store import Store; from qtandem.core.leases.cipher import Cipher\n"
        "try: Store(sys.argv[1], Cipher(bytes(range(32))))\n"
        "except Exception as error: print(error)"
    )
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", program, store.url.render_as_string()],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "in use by another daemon" in done.stdout


def test_migrations_lead_from_nothing_to_the_schema(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path}/x.db")
    with engine.begin() as connection:
        schema.migrate(connection)
        context = MigrationContext.configure(connection)
        assert compare_metadata(context, schema.metadata) == []
        assert schema.revision_of(connection) == schema.HEAD
    engine.dispose()


def test_the_newest_migration_is_the_one_that_the_code_expects():
    assert ScriptDirectory(str(schema.MIGRATIONS)).get_current_head() == schema.HEAD


def test_a_database_of_the_previous_revision_keeps_its_leases(tmp_path, run):
    engine = create_engine(f"sqlite:///{tmp_path}/x.db")
    with engine.begin() as connection:
        schema.migrate(connection, "0001")
        assert not engine.dialect.has_table(connection, "tasks")
    engine.dispose()
    old = object.__new__(Store)
    old.cipher, old.engine, old._committed, old._group = KEY, engine, lambda: None, threading.local()
    old.reserve(run(), [lease_of(run(), token="secret-token")], 100.0)
    engine.dispose()
    store = Store(f"sqlite:///{tmp_path}/x.db", KEY)
    assert store.load()[0].leases == (lease_of(run(), token="secret-token"),)
    assert store.refuse("slurm:c:1", 0.0, 15.0, 600.0, "busy").count == 1
    store.close()


def test_a_database_of_a_newer_version_is_left_alone(database):
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with pytest.raises(QtandemError, match="another version") as caught:
        Store(f"sqlite:///{database}", KEY)
    assert caught.value.code == "bad-config"


def test_refusals_double_the_wait(store):
    job = str(JobId("slurm", "c", "1"))
    waits = [store.refuse(job, 1000.0, 15.0, 60.0, "busy").next_at - 1000.0 for _ in range(4)]
    assert waits == [15.0, 30.0, 60.0, 60.0]
    assert store.refusal(job).count == 4
    store.clear_refusals(job)
    assert store.refusal(job) is None


class TestKeyFile:
    def test_it_is_made_for_the_owner_alone_and_read_again(self, tmp_path):
        path = tmp_path / "master.key"
        sealed = load(path).seal("token", "l1")
        assert path.stat().st_mode & 0o777 == 0o600
        assert load(path).unseal(sealed, "l1") == "token"

    def test_a_sealed_text_fits_one_label_only(self):
        with pytest.raises(QtandemError, match="does not fit"):
            KEY.unseal(KEY.seal("token", "l1"), "l2")

    def test_a_key_that_others_can_read_is_refused(self, tmp_path):
        path = tmp_path / "master.key"
        load(path)
        path.chmod(0o644)
        with pytest.raises(QtandemError, match="open to others") as caught:
            load(path)
        assert caught.value.code == "bad-config"
        assert caught.value.remedy == f"chmod 0600 {path}"

    def test_a_file_that_is_no_key_is_refused(self, tmp_path):
        path = tmp_path / "master.key"
        path.write_text("hunter2")
        path.chmod(0o600)
        with pytest.raises(QtandemError, match="does not hold") as caught:
            load(path)
        assert "hunter2" not in caught.value.one_line()

    def test_a_missing_folder_is_said_so(self, tmp_path):
        with pytest.raises(QtandemError, match="cannot be read") as caught:
            load(tmp_path / "none" / "master.key")
        assert caught.value.code == "bad-config"
