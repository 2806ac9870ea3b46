"""A session that was reset over and over still executes: nothing is prepared that is not there."""

import psycopg
import pytest

from reliable_worker.postgres import statements, store

# psycopg prepares what it executes for the sixth time, the reset itself included.
ROUNDS = 20


@pytest.mark.parametrize("executions", [1, 6, 13])
def test_statements_survive_the_resets_between_jobs(dsn: str, executions: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        for _ in range(ROUNDS):
            for _ in range(executions):
                store.begin(conn)
                statements.run(conn, "commit")
            store.discard_all(conn)
            left = conn.execute("SELECT count(*) FROM pg_prepared_statements", prepare=False)
            assert left.fetchone() == (0,)
