"""Pending jobs that were moved to another resource."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "pins",
        sa.Column("job", sa.String, primary_key=True),
        sa.Column("grants", sa.JSON, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )
