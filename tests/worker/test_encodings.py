"""A database in another encoding than UTF-8 (an initdb without a locale makes SQL_ASCII)."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import psycopg
import pytest

from reliable_worker.postgres import store
from reliable_worker.postgres.database import connect
from reliable_worker.settings import Settings
from tests.fixtures.commands import run_cli
from tests.fixtures.postgres import Server


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_failure_is_recorded_in_any_encoding(
    server: Server, settings: Callable[..., Settings], encoding: str
) -> None:
    name = f"rw_{encoding.lower()}_{secrets.token_hex(4)}"
    dsn = server.dsn(name)
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}'"
            " LC_COLLATE 'C' LC_CTYPE 'C'"
        )
        try:
            assert run_cli(["migrate", "up"], {"DATABASE_URL": dsn}).returncode == 0
            with connect(settings(dsn), lane="work", boot="b") as conn:
                conn.execute("INSERT INTO jobs (idempotency_key, payload) VALUES ('ä', '{}')")
                places = [(place, store.HEAD_US) for place in store.combinations(conn)]
                claim = store.claim(conn, places, ["b.0"], lease_seconds=9, margin_seconds=1)
                (job,) = claim.jobs
                assert job.key == "ä"
                assert store.retry(conn, job.lease, 0, "Fehler: […] 日本")
                row = conn.execute("SELECT last_error FROM jobs").fetchone()
                assert row is not None
                assert row[0].startswith("Fehler: ")
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
