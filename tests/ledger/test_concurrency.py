"""Many at once: no deadlock, no overdraft, no key twice, and money is conserved, whoever is
killed."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from tests.fixtures.waiting import wait_until
from tests.ledger.client import Answer, Client, at_once, fresh_key, payload
from tests.ledger.conftest import Conn, Ledger, balance, check_books, count

# The specification's 30 s are the benchmark's; the same conflicts happen within these.
SECONDS = 4.0


def shuttle(one: Ledger, from_id: int, to_id: int, end: float) -> Counter[tuple[int, str]]:
    """Move 1 again and again; the answers by status and code."""
    seen: Counter[tuple[int, str]] = Counter()
    with one.client() as client:
        while time.monotonic() < end:
            answer = client.transfer(from_id, to_id, 1)
            seen[answer.status, answer.code] += 1
    return seen


@pytest.mark.parametrize(("clients", "allowed"), [(8, {200}), (64, {200, 503})])
def test_a_hot_pair_in_both_directions(
    ledger: Callable[..., Ledger], books: Conn, clients: int, allowed: set[int]
) -> None:
    one = ledger()
    end = time.monotonic() + SECONDS
    ways = [(1, 2), (2, 1)] * (clients // 2)
    seen = sum(at_once([partial(shuttle, one, *way, end) for way in ways]), Counter())
    print(seen)
    assert {status for status, _ in seen} <= allowed
    assert seen[200, ""] == count(books, "transfer_requests")
    if clients == 8:
        assert one.metric("retries_total") == 0
    check_books(books)


def test_an_overdraft_race_has_one_winner(ledger: Callable[..., Ledger], books: Conn) -> None:
    one = ledger(max_waiting=200)
    books.execute("UPDATE accounts SET balance = 100 WHERE id = 1")

    def overdraw() -> Answer:
        with one.client() as client:
            return client.transfer(1, 2, 60)

    answers = at_once([overdraw] * 50)
    assert Counter((a.status, a.code) for a in answers) == {
        (200, ""): 1,
        (409, "insufficient_funds"): 49,
    }
    assert (balance(books, 1), balance(books, 2)) == (40, 10_060)
    assert count(books, "entries") == 2


def test_identical_requests_at_once_move_the_money_once(
    ledger: Callable[..., Ledger], books: Conn
) -> None:
    one = ledger(max_waiting=200)

    def repeat(keys: list[str]) -> list[Answer]:
        with one.client() as client:
            return [client.transfer(1, 2, 1, key) for key in keys]

    keys = [fresh_key() for _ in range(20)]
    rounds = at_once([partial(repeat, keys)] * 50)
    for number in range(len(keys)):
        answers = [answers[number] for answers in rounds]
        good = [answer for answer in answers if answer.status == 200]
        assert {(a.body, a.headers["location"]) for a in good} == {
            (good[0].body, good[0].headers["location"])
        }
        assert sum("idempotency-replayed" not in answer.headers for answer in good) == 1
        assert {(a.status, a.code) for a in answers} <= {(200, ""), (409, "in_flight")}
    assert balance(books, 2) == 10_000 + len(keys)
    check_books(books)


def test_two_payloads_race_for_one_key(ledger: Callable[..., Ledger], books: Conn) -> None:
    one = ledger()
    for _ in range(20):
        key = fresh_key()

        def post(amount: int, key: str = key) -> Answer:
            with one.client() as client:
                return client.transfer(1, 2, amount, key)

        answers = at_once([partial(post, amount) for amount in (1, 2) * 4])
        amounts = {n % 2 for n, answer in enumerate(answers) if answer.status == 200}
        assert len(amounts) == 1
        assert {a.code for a in answers if a.status != 200} == {"idempotency_conflict"}
    assert count(books, "transfer_requests") == 20
    check_books(books)


def test_a_loser_carries_the_transfer_out_when_the_winner_rolls_back(
    ledger: Callable[..., Ledger], ledger_dsn: str, books: Conn
) -> None:
    one = ledger(lock_timeout_seconds=1.2)
    with books.transaction(force_rollback=True):
        books.execute(
            "INSERT INTO transfer_requests (idempotency_key, from_id, to_id, amount, status)"
            " VALUES ('the-winner-1', 1, 2, 5, 'pending')"
        )
        answers: list[Answer] = []
        with one.client() as client:
            loser = threading.Thread(
                target=lambda: answers.append(client.transfer(1, 2, 5, "the-winner-1"))
            )
            loser.start()
            wait_until(lambda: waits_for_a_lock(ledger_dsn), 10, "the loser waits")
    loser.join(20)
    assert [answer.status for answer in answers] == [200]
    assert "idempotency-replayed" not in answers[0].headers
    check_books(books)


def waits_for_a_lock(dsn: str) -> bool:
    import psycopg

    with psycopg.connect(dsn, autocommit=True) as conn:
        row = conn.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        ).fetchone()
    return row is not None and row[0] > 0


def test_each_key_moves_once_though_the_service_is_killed_at_random(
    ledger: Callable[..., Ledger], books: Conn
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    source = random.Random(seed)
    current: list[Ledger] = [ledger()]
    assert current[0].address  # it listens, before anybody may kill it
    bodies: dict[str, set[bytes]] = {}
    keys = [f"killed-{number:05}" for number in range(60)]
    done = threading.Event()

    def insist(mine: list[str]) -> None:
        """Ask until each key has been answered with 200, twice."""
        for key in mine:
            good = 0
            while good < 2:
                try:
                    with Client(current[0].address) as client:
                        answer = client.post(key, payload(1, 2, 1))
                except (OSError, http.client.HTTPException):
                    continue
                assert answer.status in (200, 409, 503, 504), answer
                if answer.status == 200:
                    good += 1
                    bodies.setdefault(key, set()).add(answer.body)

    def kill() -> None:
        for _ in range(4):
            if done.wait(source.uniform(0.05, 0.4)):
                return
            victim = current[0]
            successor = ledger()
            assert successor.address
            current[0] = successor
            victim.process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    at_once([partial(insist, keys[n % 2 :: 2]) for n in range(8)])
    done.set()
    killer.join(60)
    assert set(bodies) == set(keys)
    assert all(found == {b'{"status":"completed"}'} for found in bodies.values())
    assert count(books, "transfer_requests") == len(keys)
    assert balance(books, 2) == 10_000 + len(keys)
    check_books(books)
