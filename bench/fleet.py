"""This worker, as a user runs it: `reliable-worker run --drain` on a queue that is full."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
from psycopg import RawCursor

SQL = Path(__file__).parent / "sql"
ROOT = Path(__file__).parents[1]


def statement(name: str) -> bytes:
    """A statement of the benchmark."""
    return (SQL / f"{name}.sql").read_bytes()


def rate(dsn: str, kind: str, *, jobs: int, workers: int, processes: int, prefetch: int) -> float:
    """Jobs per second from the first claim to the last completion, by the database's clock."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        RawCursor(conn).execute(statement("enqueue"), (kind, jobs))
        conn.execute("VACUUM ANALYZE jobs")
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PG")},
            "DATABASE_URL": dsn,
            "METRICS_ADDRESS": "127.0.0.1:0",
            "WORKERS": str(workers),
            "PROCESSES": str(processes),
            "RELIABLE_WORKER_PREFETCH": str(prefetch),
            "RELIABLE_WORKER_LOG_LEVEL": "warning",
        }
        subprocess.run(
            [
                *(sys.executable, "-m", "reliable_worker"),
                *("run", "--app", "bench.handlers:app", "--drain"),
            ],
            check=True,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            timeout=600,
        )
        row = RawCursor(conn).execute(statement("rate")).fetchone()
    assert row is not None
    count, seconds = row
    if count != jobs:
        raise RuntimeError(f"{count} of {jobs} jobs succeeded")
    return float(count / seconds)
