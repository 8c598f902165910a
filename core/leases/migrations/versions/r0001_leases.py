"""Runs, claims and leases."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "about",
        sa.Column("key", sa.String, primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("job", sa.String, nullable=False),
        sa.Column("uid", sa.Integer, nullable=False),
        sa.Column("user", sa.String, nullable=False),
        sa.Column("account", sa.String),
        sa.Column("partition", sa.String),
        sa.Column("nodes", sa.JSON, nullable=False),
        sa.Column("time_limit_s", sa.Integer),
        sa.Column("can_requeue", sa.Boolean, nullable=False),
        sa.Column("grants", sa.JSON, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("asked_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float),
        sa.Column("ended_at", sa.Float),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("exit_code", sa.Integer),
    )
    op.create_index("runs_by_job", "runs", ["job"])
    op.create_index("runs_by_uid", "runs", ["uid", "asked_at"])
    op.create_table(
        "early_ends",
        sa.Column("job", sa.String, primary_key=True),
        sa.Column("attempt", sa.Integer),
        sa.Column("at", sa.Float, nullable=False),
    )
    op.create_table(
        "claims",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("uid", sa.Integer, nullable=False),
        sa.Column("user", sa.String, nullable=False),
        sa.Column("account", sa.String),
        sa.Column("name", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float),
        sa.Column("ended_at", sa.Float),
        sa.Column("reason", sa.String, nullable=False),
    )
    op.create_table(
        "leases",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("resource", sa.String, nullable=False),
        sa.Column("slots", sa.Integer, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("uid", sa.Integer, nullable=False),
        sa.Column("user", sa.String, nullable=False),
        sa.Column("account", sa.String),
        sa.Column("token", sa.LargeBinary),
        sa.Column("outcome", sa.String, nullable=False),
        sa.Column("reason", sa.String, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("held_at", sa.Float),
        sa.Column("changed_at", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float),
        sa.Column("expires_at", sa.Float),
    )
    op.create_index("leases_by_state", "leases", ["state"])
    op.create_index("leases_by_owner", "leases", ["owner"])
    op.create_index("leases_by_time", "leases", ["created_at"])
