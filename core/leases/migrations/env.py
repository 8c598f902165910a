"""Run by alembic: migrates over the connection that `schema.migrate` brings."""

from __future__ import annotations

from alembic import context

from qtandem.core.leases import schema

context.configure(connection=context.config.attributes["connection"], target_metadata=schema.metadata)
with context.begin_transaction():
    context.run_migrations()
