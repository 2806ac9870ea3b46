"""`verify` finds every way in which books can be wrong, and nothing in books that are right."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.fixtures.waiting import wait_until
from tests.ledger.conftest import Conn, Ledger, run_ledger

MOVES = [(1, 2, 100), (2, 3, 50), (3, 1, 25), (1, 2, 7)]


def report(dsn: str, *words: str) -> dict[str, Any]:
    done = run_ledger(dsn, "verify", "--json", *words)
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (1 if found["count"] else 0), done.stderr
    return found


@pytest.fixture
def kept(books: Conn) -> Conn:
    """Books with a few transfers in them."""
    for number, (from_id, to_id, amount) in enumerate(MOVES):
        books.execute(
            "SELECT ledger_transfer(%s, %s, %s, %s, false, 500)",
            (f"verify-{number:03}", from_id, to_id, amount),
        )
    return books


def test_books_that_are_right(kept: Conn, ledger_dsn: str) -> None:
    first = report(ledger_dsn)
    assert (first["accounts"], first["entries"], first["count"]) == (3, 8, 0)
    # Nothing is new, so nothing is looked at again, unless all is asked for.
    assert report(ledger_dsn)["entries"] == 0
    assert report(ledger_dsn, "--full")["entries"] == 8
    kept.execute("SELECT ledger_transfer('verify-new', 1, 2, 5, false, 500)")
    assert report(ledger_dsn)["entries"] == 2


TAMPERED = [
    ("UPDATE accounts SET balance = balance + 1 WHERE id = 1", "its balance is"),
    ("UPDATE entries SET amount = amount + 1 WHERE account_id = 1 AND sequence = 1", "asked for"),
    ("UPDATE entries SET balance_after = 1 WHERE account_id = 1 AND sequence = 2", "says 1, not"),
    ("UPDATE entries SET sequence = 9 WHERE account_id = 1 AND sequence = 2", "comes 3"),
    ("DELETE FROM entries WHERE account_id = 1 AND sequence = 3", "last found is 2"),
    ("DELETE FROM entries WHERE transfer_id = 4", "with 0 entries"),
    ("UPDATE accounts SET last_sequence = 1 WHERE id = 3", "beyond its last sequence"),
    ("UPDATE transfer_requests SET amount = 99 WHERE transfer_id = 1", "asked for"),
    ("UPDATE transfer_requests SET status = 'pending', completed_at = NULL", "is pending"),
    ("DELETE FROM entries WHERE account_id = 2 AND sequence = 1", "not two that sum to 0"),
]


@pytest.mark.parametrize(("tamper", "word"), TAMPERED, ids=[text for text, _ in TAMPERED])
@pytest.mark.parametrize("words", [(), ("--full",)])
def test_books_that_are_wrong(
    kept: Conn, ledger_dsn: str, tamper: str, word: str, words: tuple[str, ...]
) -> None:
    kept.execute("ALTER TABLE entries DISABLE TRIGGER entries_append_only")
    kept.execute(tamper.encode())
    for _ in range(2):  # until it is mended it is found again
        found = report(ledger_dsn, *words)
        assert any(word in problem for problem in found["problems"]), found


def test_an_incremental_run_sees_a_balance_that_was_changed(kept: Conn, ledger_dsn: str) -> None:
    assert report(ledger_dsn)["count"] == 0
    kept.execute("UPDATE accounts SET balance = balance - 1 WHERE id = 2")
    assert report(ledger_dsn)["count"] == 1


def test_the_metric_shows_the_last_run(
    ledger: Callable[..., Ledger], kept: Conn, ledger_dsn: str
) -> None:
    kept.execute("UPDATE accounts SET balance = balance - 1 WHERE id = 2")
    assert report(ledger_dsn)["count"] == 1
    one = ledger()
    with one.client() as client:
        assert client.get("/readyz").status == 204
    wait_until(lambda: one.metric("verify_problems") == 1, 20, "the gauge shows it")
    assert one.metric("verify_timestamp_seconds") > 1.7e9


def test_it_runs_beside_transfers(ledger: Callable[..., Ledger], ledger_dsn: str) -> None:
    one = ledger()
    with one.client() as client:
        for _ in range(5):
            for _ in range(20):
                assert client.transfer(1, 2, 1).status == 200
            assert report(ledger_dsn)["count"] == 0
