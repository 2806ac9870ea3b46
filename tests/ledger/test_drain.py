"""SIGTERM: what runs is answered, what cannot end is cut, and the exit code says which."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import psycopg
import pytest

from tests.fixtures.waiting import wait_until
from tests.ledger.client import Answer, connect, payload, read_all, statuses, transfer_head
from tests.ledger.conftest import Conn, Ledger, balance, check_books

PATIENT = {
    "lock_timeout_seconds": 15,
    "statement_timeout_seconds": 18,
    "request_seconds": 20,
}
# systemd's TimeoutStopSec, within which it must have ended by itself.
STOP_LIMIT_SECONDS = 15.0


@pytest.mark.quick
def test_an_idle_service_ends_at_once(ledger: Callable[..., Ledger]) -> None:
    one = ledger()
    with one.client() as client:
        assert client.transfer(1, 2, 5).status == 200
        begun = time.monotonic()
        one.terminate()
        assert one.wait(10) == 0
        assert time.monotonic() - begun < 5
    assert one.find("shutdown_complete", killed=0)


def test_of_two_held_requests_one_is_answered_and_one_is_cut(
    ledger: Callable[..., Ledger], ledger_dsn: str, books: Conn
) -> None:
    one = ledger(**PATIENT)
    answers: dict[int, Answer] = {}

    def ask(to_id: int) -> None:
        with one.client() as client:
            answers[to_id] = client.transfer(1 if to_id == 2 else 3, to_id, 5, f"held-{to_id:04}")

    with psycopg.connect(ledger_dsn) as first, psycopg.connect(ledger_dsn) as second:
        first.execute("SELECT 1 FROM accounts WHERE id = 2 FOR UPDATE")
        second.execute("SELECT 1 FROM accounts WHERE id = 4 FOR UPDATE")
        threads = [threading.Thread(target=ask, args=(to_id,)) for to_id in (2, 4)]
        for thread in threads:
            thread.start()
        wait_until(
            lambda: one.metric("pool_connections", state="acquired") == 2, 10, "both are held"
        )
        begun = time.monotonic()
        one.terminate()
        one.wait_event("shutdown_started", 10)
        wait_until(lambda: refused(one.address), 10, "new connections are refused")
        threading.Timer(1.5, first.rollback).start()
        assert one.wait(STOP_LIMIT_SECONDS) == 1
        assert time.monotonic() - begun >= 7.5
        for thread in threads:
            thread.join(10)
        assert answers[2].status == 200
        assert (answers[4].status, answers[4].code) == (504, "outcome_unknown")
        assert answers[4].headers["connection"] == "close"
        # The server was asked to end the statement: nothing waits for the account any more.
        wait_until(lambda: not waiting(books), 10, "the cut statement has ended")
    assert one.find("shutdown_complete", killed=1)
    assert (balance(books, 2), balance(books, 4)) == (10_005, 10_000)
    check_books(books)


def refused(address: str) -> bool:
    try:
        connect(address).close()
    except ConnectionRefusedError:
        return True
    return False


def waiting(conn: Conn) -> int:
    row = conn.execute(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_a_kept_connection_is_told_while_draining(
    ledger: Callable[..., Ledger], ledger_dsn: str
) -> None:
    """Its next transfer is refused and may be sent elsewhere; /readyz says no."""
    one = ledger(**PATIENT)
    with psycopg.connect(ledger_dsn) as holder, connect(one.address) as busy:
        holder.execute("SELECT 1 FROM accounts WHERE id = 2 FOR UPDATE")
        body = payload(1, 2, 5).encode()
        busy.sendall(transfer_head(body.decode()) + body)
        half = [connect(one.address) for _ in range(2)]
        for sock in half:
            sock.sendall(b"G" if sock is half[0] else b"P")  # begun: not closed as idle
        wait_until(lambda: one.metric("pool_connections", state="acquired") == 1, 10, "one is held")
        one.terminate()
        one.wait_event("shutdown_started", 10)
        half[0].sendall(b"ET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        half[1].sendall(transfer_head(body.decode())[1:] + body)
        for sock, code in zip(half, (b"not_ready", b"draining"), strict=True):
            answer = read_all(sock)
            sock.close()
            assert statuses(answer) == [503]
            assert code in answer
            assert b"connection: close" in answer.lower()
        holder.rollback()
        assert statuses(read_all(busy)) == [200]
        assert one.wait(STOP_LIMIT_SECONDS) == 0


def test_a_silent_half_request_does_not_hold_the_drain_up(ledger: Callable[..., Ledger]) -> None:
    one = ledger()
    with connect(one.address) as sock:
        sock.sendall(b"POST /transfers HTTP/1.1\r\n")
        wait_until(lambda: one.metric("http_connections") >= 1, 10, "it is connected")
        one.terminate()
        assert one.wait(STOP_LIMIT_SECONDS) == 0
        assert statuses(read_all(sock)) in ([408], [])
