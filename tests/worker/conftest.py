"""The parts of one worker process on a real database, in this process, without a supervisor."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import psycopg
import pytest

from reliable_worker.jobs import events
from reliable_worker.jobs.board import Board
from reliable_worker.jobs.job import ClaimedJob
from reliable_worker.postgres import store
from reliable_worker.postgres.database import make_pool
from reliable_worker.settings import Settings
from reliable_worker.worker.control import Control
from reliable_worker.worker.finish import Finisher
from reliable_worker.worker.renewal import LeaseBook
from reliable_worker.worker.shared import Shared
from reliable_worker.worker.worker import policy

Log = list[events.Event]


@pytest.fixture
def log() -> Iterator[Log]:
    """Every event of the test."""
    heard: Log = []
    events.subscribe(heard.append)
    yield heard
    events.clear()


@pytest.fixture
def shared(dsn: str, settings: Callable[..., Settings], log: Log) -> Iterator[Shared]:
    """A process's parts; its finisher is made and not started."""
    made = settings(dsn, lease_seconds=6, retry_jitter=0)
    boot = secrets.token_hex(16)
    board = Board(1, 4).child(0)
    control = Control(made, boot, board)
    parts = Shared(
        settings=made,
        boot=boot,
        board=board,
        policy=policy(made),
        control=control,
        book=LeaseBook(made, control, board),
        pool=make_pool(made, lane="work", boot=boot, size=4),
    )
    parts.finisher = Finisher(parts)
    parts.pool.open()
    yield parts
    parts.finisher.close()
    if parts.finisher.thread.ident is not None:
        parts.finisher.thread.join(10)
    control.close()
    parts.pool.close()


@pytest.fixture
def claimed(shared: Shared, conn: psycopg.Connection) -> Callable[..., list[ClaimedJob]]:
    """Enqueue so many jobs and claim them for `shared`."""

    def claim(
        count: int = 1, *, kind: str = "message", max_attempts: int = 5, payload: str = "{}"
    ) -> list[ClaimedJob]:
        conn.execute(
            "INSERT INTO jobs (idempotency_key, payload, kind, max_attempts)"
            " SELECT gen_random_uuid(), %s, %s, %s FROM generate_series(1, %s)",
            (payload, kind, max_attempts, count),
        )
        owners = [f"{shared.boot}.{index}" for index in range(count)]
        with shared.control.use(2, "claim_timeout_seconds") as control:
            places = [(place, 0) for place in store.combinations(control)]
            taken = store.claim(control, places, owners, lease_seconds=6, margin_seconds=0.6)
        shared.book.add(taken.jobs)
        assert len(taken.jobs) == count
        return taken.jobs

    return claim
