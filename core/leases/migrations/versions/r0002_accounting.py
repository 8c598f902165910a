"""Tasks, and refusals of jobs at their start."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "tasks",
        sa.Column("id", sa.String, primary_key=True),
        sa.Column("lease", sa.String, nullable=False),
        sa.Column("owner", sa.String, nullable=False),
        sa.Column("resource", sa.String, nullable=False),
        sa.Column("uid", sa.Integer, nullable=False),
        sa.Column("key", sa.String, nullable=False),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("payload_sha256", sa.String, nullable=False),
        sa.Column("circuit_sha256", sa.String, nullable=False),
        sa.Column("shots", sa.Integer),
        sa.Column("vendor_task", sa.String),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float),
        sa.Column("finished_at", sa.Float),
        sa.Column("usage_s", sa.Float),
        sa.Column("cost", sa.Float),
        sa.Column("currency", sa.String, nullable=False),
        sa.Column("calibration_at", sa.Float),
        sa.Column("versions", sa.JSON, nullable=False),
        sa.Column("reason", sa.String, nullable=False),
        sa.UniqueConstraint("lease", "key", name="tasks_once"),
    )
    op.create_index("tasks_by_owner", "tasks", ["owner"])
    op.create_index("tasks_by_state", "tasks", ["state"])
    op.create_table(
        "refusals",
        sa.Column("job", sa.String, primary_key=True),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("next_at", sa.Float, nullable=False),
        sa.Column("reason", sa.String, nullable=False),
    )
