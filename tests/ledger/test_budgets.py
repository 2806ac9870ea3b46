"""Each budget cuts what it is for, when that thing really stalls; the client is told the truth."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.faults.cluster import BreakableServer
from tests.faults.link import Mode, Then
from tests.faults.proxy import Proxy
from tests.fixtures.waiting import wait_until
from tests.ledger.client import Answer
from tests.ledger.conftest import SCHEMAS, Conn, Ledger, balance, check_books, open_accounts

# Beyond the request's budget of 2 s an answer is late; the machine may be busy.
REQUEST_SECONDS = 2.0
SLACK_SECONDS = 2.0


@pytest.fixture
def link(ledger_dsn: str) -> Iterator[Proxy]:
    """A proxy before the database; `link.url(ledger_dsn)` leads through it."""
    parts = conninfo_to_dict(ledger_dsn)
    with Proxy(str(parts["host"]), int(parts["port"] or 0)) as one:
        yield one


@pytest.fixture
def broken(own_server: BreakableServer) -> Iterator[tuple[BreakableServer, str]]:
    """A server that may be stopped, and a ledger's database on it."""
    own_server.thaw()
    own_server.start()
    own_server.create("ledger")
    for schema in SCHEMAS:
        own_server.psql("ledger", "-f", str(schema))
    open_accounts(own_server.dsn("ledger"))
    yield own_server, own_server.dsn("ledger")
    own_server.thaw()
    own_server.start()
    own_server.drop("ledger")


@contextmanager
def held(dsn: str, statement: str) -> Iterator[Conn]:
    """A transaction that has run this statement and stays open."""
    with psycopg.connect(dsn) as conn:
        conn.execute(statement.encode())
        yield conn
        conn.rollback()


def timed(ask: Callable[[], Answer]) -> tuple[Answer, float]:
    begun = time.monotonic()
    return ask(), time.monotonic() - begun


@pytest.mark.parametrize("strength", ["UPDATE", "NO KEY UPDATE"])
def test_a_lock_at_an_account_is_503(
    ledger: Callable[..., Ledger], ledger_dsn: str, strength: str
) -> None:
    """Also where the foreign key's own look at the account waits, before the key is ours."""
    one = ledger()
    query = f"SELECT 1 FROM accounts WHERE id = 2 FOR {strength}"  # noqa: S608 -- a test's words
    with held(ledger_dsn, query), one.client() as client:
        answer, seconds = timed(lambda: client.transfer(1, 2, 5))
        assert (answer.status, answer.code) == (503, "account_busy")
        assert answer.headers["retry-after"] == "1"
        assert seconds >= 0.4
        assert client.transfer(3, 4, 5).status == 200
    assert one.metric("lock_timeout_expiries_total", at="account") == 1
    assert one.metric("rollbacks_total", reason="account_busy") == 1


def test_a_lock_at_the_key_is_409(
    ledger: Callable[..., Ledger], ledger_dsn: str, books: Conn
) -> None:
    one = ledger()
    insert = (
        "INSERT INTO transfer_requests (idempotency_key, from_id, to_id, amount, status)"
        " VALUES ('in-flight-1', 1, 2, 5, 'pending')"
    )
    with held(ledger_dsn, insert), one.client() as client:
        answer = client.transfer(1, 2, 5, "in-flight-1")
        assert (answer.status, answer.code) == (409, "in_flight")
        assert answer.headers["retry-after"] == "1"
    assert one.metric("lock_timeout_expiries_total", at="key") == 1
    with one.client() as client:
        assert client.transfer(1, 2, 5, "in-flight-1").status == 200
    check_books(books)


def test_statement_timeout_ends_what_holds_no_lock(
    ledger: Callable[..., Ledger], books: Conn
) -> None:
    books.execute(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_sleep(30); RETURN new; END $$"
    )
    books.execute(
        "CREATE TRIGGER slow BEFORE INSERT ON entries FOR EACH ROW EXECUTE FUNCTION dawdle()"
    )
    one = ledger(statement_timeout_seconds=0.7)
    with one.client() as client:
        answer = client.transfer(1, 2, 5)
        assert (answer.status, answer.code) == (504, "deadline_exceeded")
        assert client.get("/accounts/1").json["balance"] == 10_000
    assert one.metric("query_deadline_expiries_total", by="server") == 1
    assert one.metric("pool_discards_total") == 0


def test_a_stopped_backend_is_given_up(
    ledger: Callable[..., Ledger], broken: tuple[BreakableServer, str]
) -> None:
    server, dsn = broken
    one = ledger(dsn, pool_min=1, pool_max=1)
    with one.client() as client, psycopg.connect(dsn, autocommit=True) as conn:
        assert client.transfer(1, 2, 5).status == 200
        row = conn.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'rw::ledger'"
        ).fetchone()
        assert row is not None
        server.freeze(row[0])
        answer, seconds = timed(lambda: client.transfer(1, 2, 5, "stopped-1"))
        assert (answer.status, answer.code) == (504, "outcome_unknown")
        assert REQUEST_SECONDS - 0.5 <= seconds <= REQUEST_SECONDS + SLACK_SECONDS
        assert one.metric("query_deadline_expiries_total", by="client") == 1
        # The connection is discarded: the next request has another one.
        assert client.transfer(1, 2, 5).status == 200
        server.thaw()
        wait_until(
            lambda: client.transfer(1, 2, 5, "stopped-1").status == 200, 20, "the key is settled"
        )
        assert balance(conn, 2) == 10_015


def test_a_silent_socket_is_given_up(
    ledger: Callable[..., Ledger], ledger_dsn: str, link: Proxy, books: Conn
) -> None:
    one = ledger(link.url(ledger_dsn))
    with one.client() as client:
        assert client.transfer(1, 2, 5).status == 200
        link.set_mode(Mode.STALL)
        for path in ("/healthz", "/readyz"):
            answer, seconds = timed(lambda path=path: client.get(path))  # type: ignore[misc]
            assert answer.status == 503
            assert seconds <= 0.5 + SLACK_SECONDS
        answer, seconds = timed(lambda: client.transfer(1, 2, 5))
        assert answer.status == 504
        assert seconds <= REQUEST_SECONDS + SLACK_SECONDS
        answer, seconds = timed(lambda: client.get("/accounts/1"))
        assert answer.status in (503, 504)
        assert seconds <= REQUEST_SECONDS + SLACK_SECONDS
        link.heal()
        wait_until(lambda: client.transfer(1, 2, 5).status == 200, 20, "it recovers by itself")
        wait_until(lambda: client.get("/healthz").status == 204, 20, "and /healthz with it")
    wait_until(lambda: one.metric("database_up") == 1, 20, "the gauge follows")
    check_books(books)


@pytest.mark.parametrize("lose", ["reply", "request"])
def test_a_lost_answer_is_looked_up_by_the_key(
    ledger: Callable[..., Ledger], ledger_dsn: str, link: Proxy, books: Conn, lose: str
) -> None:
    one = ledger(link.url(ledger_dsn))
    with one.client() as client:
        assert client.transfer(1, 2, 5).status == 200
        drop = link.drop_reply if lose == "reply" else link.drop_request
        trap = drop("ledger_transfer", then=Then.CUT)
        answer = client.transfer(1, 2, 5, "lost-answer-1")
        trap.wait(10)
        assert answer.status == 200
        assert answer.headers["location"].startswith("/transfers/")
    assert one.metric("retries_total", reason="connection") == 1
    assert balance(books, 2) == 10_010
    check_books(books)


def test_a_database_that_is_away_is_503_and_found_again(
    ledger: Callable[..., Ledger], broken: tuple[BreakableServer, str]
) -> None:
    server, dsn = broken
    one = ledger(dsn)
    with one.client() as client:
        assert client.transfer(1, 2, 5).status == 200
        server.crash()
        answers = [client.transfer(1, 2, 5) for _ in range(3)]
        assert {answer.status for answer in answers} <= {503, 504}
        assert answers[-1].code == "database_unavailable"
        assert answers[-1].headers["retry-after"] == "1"
        assert client.get("/healthz").status == 503
        assert client.get("/readyz").status == 503
        server.start()
        wait_until(lambda: client.transfer(1, 2, 5).status == 200, 20, "it works again")
        wait_until(lambda: client.get("/healthz").status == 204, 20, "and says so")


def test_waiting_for_the_pool_counts_and_ends(
    ledger: Callable[..., Ledger], ledger_dsn: str
) -> None:
    """All connections wait for a lock; who comes then is turned away, and /healthz is well."""
    one = ledger(
        pool_min=1,
        pool_max=2,
        max_waiting=1,
        lock_timeout_seconds=4,
        statement_timeout_seconds=4.5,
        request_seconds=5,
        pool_wait_seconds=0.5,
    )
    assert one.address
    answers: list[Answer] = []

    def ask(from_id: int, to_id: int) -> None:
        with one.client() as client:
            answers.append(client.transfer(from_id, to_id, 5))

    with held(ledger_dsn, "SELECT 1 FROM accounts WHERE id = 2 FOR UPDATE"):
        holders = [threading.Thread(target=ask, args=(1, 2)) for _ in range(2)]
        for thread in holders:
            thread.start()
        wait_until(
            lambda: one.metric("pool_connections", state="acquired") == 2, 10, "the pool is empty"
        )
        with one.client() as client:
            answer, seconds = timed(lambda: client.transfer(3, 4, 5))
            assert (answer.status, answer.code) == (503, "too_many_waiting")
            assert 0.4 <= seconds <= 0.5 + SLACK_SECONDS
            assert client.get("/healthz").status == 204
            assert client.get("/readyz").status == 204
        crowd = [threading.Thread(target=ask, args=(5, 6)) for _ in range(6)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join(20)
        assert [answer.code for answer in answers] == ["too_many_waiting"] * 6
        assert one.metric("shed_total", reason="too_many_waiting") == 7
    for thread in holders:
        thread.join(20)
    assert [answer.status for answer in answers[6:]] == [200, 200]
    assert one.metric("pool_wait_seconds_count") == 2


def test_server_and_pool_sizes_agree(ledger: Callable[..., Ledger], ledger_dsn: str) -> None:
    """However many ask, the service has no more connections than its pool and one for /healthz."""
    one = ledger(pool_min=2, pool_max=5)
    most = 0
    with psycopg.connect(ledger_dsn, autocommit=True) as conn:
        assert one.address
        stop = threading.Event()

        def ask() -> None:
            with one.client() as client:
                while not stop.is_set():
                    client.transfer(1, 2, 1)

        crowd = [threading.Thread(target=ask) for _ in range(20)]
        for thread in crowd:
            thread.start()
        for _ in range(200):
            row = conn.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'rw::ledger%'"
            ).fetchone()
            assert row is not None
            most = max(most, row[0])
        stop.set()
        for thread in crowd:
            thread.join(20)
    assert 2 <= most <= 6
