"""Tables of the database as they are at `HEAD`; `migrations/` leads there from every earlier revision."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    inspect,
    text,
)

from qtandem.core.errors import QtandemError

HEAD = "0003"
MIGRATIONS = Path(__file__).parent / "migrations"

metadata = MetaData()

about = Table("about", metadata, Column("key", String, primary_key=True), Column("value", LargeBinary, nullable=False))

runs = Table(
    "runs",
    metadata,
    Column("id", String, primary_key=True),
    Column("job", String, nullable=False),
    Column("uid", Integer, nullable=False),
    Column("user", String, nullable=False),
    Column("account", String),
    Column("partition", String),
    Column("nodes", JSON, nullable=False),
    Column("time_limit_s", Integer),
    Column("can_requeue", Boolean, nullable=False),
    Column("grants", JSON, nullable=False),
    Column("state", String, nullable=False),
    Column("asked_at", Float, nullable=False),
    Column("started_at", Float),
    Column("ended_at", Float),
    Column("reason", String, nullable=False),
    Column("exit_code", Integer),
    Index("runs_by_job", "job"),
    Index("runs_by_uid", "uid", "asked_at"),
)

# Ends that came before any start of their run; `attempt` is empty where the manager counts none.
early_ends = Table(
    "early_ends",
    metadata,
    Column("job", String, primary_key=True),
    Column("attempt", Integer),
    Column("at", Float, nullable=False),
)

claims = Table(
    "claims",
    metadata,
    Column("id", String, primary_key=True),
    Column("uid", Integer, nullable=False),
    Column("user", String, nullable=False),
    Column("account", String),
    Column("name", String, nullable=False),
    Column("state", String, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("started_at", Float),
    Column("ended_at", Float),
    Column("reason", String, nullable=False),
)

leases = Table(
    "leases",
    metadata,
    Column("id", String, primary_key=True),
    Column("owner", String, nullable=False),
    Column("resource", String, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("state", String, nullable=False),
    Column("uid", Integer, nullable=False),
    Column("user", String, nullable=False),
    Column("account", String),
    Column("token", LargeBinary),
    Column("outcome", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("held_at", Float),
    Column("changed_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("expires_at", Float),
    Index("leases_by_state", "state"),
    Index("leases_by_owner", "owner"),
    Index("leases_by_time", "created_at"),
)

tasks = Table(
    "tasks",
    metadata,
    Column("id", String, primary_key=True),
    Column("lease", String, nullable=False),
    Column("owner", String, nullable=False),
    Column("resource", String, nullable=False),
    Column("uid", Integer, nullable=False),
    Column("key", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("state", String, nullable=False),
    Column("payload_sha256", String, nullable=False),
    Column("circuit_sha256", String, nullable=False),
    Column("shots", Integer),
    Column("vendor_task", String),
    Column("created_at", Float, nullable=False),
    Column("started_at", Float),
    Column("finished_at", Float),
    Column("usage_s", Float),
    Column("cost", Float),
    Column("currency", String, nullable=False),
    Column("calibration_at", Float),
    Column("versions", JSON, nullable=False),
    Column("reason", String, nullable=False),
    UniqueConstraint("lease", "key", name="tasks_once"),
    Index("tasks_by_owner", "owner"),
    Index("tasks_by_state", "state"),
)

refusals = Table(
    "refusals",
    metadata,
    Column("job", String, primary_key=True),
    Column("count", Integer, nullable=False),
    Column("next_at", Float, nullable=False),
    Column("reason", String, nullable=False),
)

# What pending jobs were moved to, as [resource, slots] pairs: a job that has something else was changed by its owner.
pins = Table(
    "pins",
    metadata,
    Column("job", String, primary_key=True),
    Column("grants", JSON, nullable=False),
    Column("at", Float, nullable=False),
)


def migrate(connection: Connection, revision: str = HEAD) -> None:
    """Bring the database to `revision`; raises `bad-config` for one of a newer qtandem."""
    if revision_of(connection) == revision:
        return
    # Alembic is needed once an upgrade, and is not kept in the memory of a daemon that runs for months.
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, revision)
    except CommandError as error:
        raise QtandemError(
            "bad-config",
            "The database was written by another version of qtandem",
            remedy="Install the version that wrote it, or a newer one.",
            cause=str(error),
        ) from error


def revision_of(connection: Connection) -> str | None:
    """The migration that a database is at; None for an empty one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
