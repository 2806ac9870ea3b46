"""A transfer moves money once per key, whole or not at all, and says the truth about it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.ledger.client import Client, fresh_key, payload
from tests.ledger.conftest import Conn, Ledger, balance, check_books, count

COMPLETED = b'{"status":"completed"}'


@pytest.mark.quick
def test_two_posts_with_one_key_move_the_money_once(
    ledger: Callable[..., Ledger], books: Conn
) -> None:
    with ledger().client() as client:
        first = client.transfer(1, 2, 1_250, "order-1042")
        again = client.transfer(1, 2, 1_250, "order-1042")
        assert (first.status, first.body) == (200, COMPLETED)
        assert (again.status, again.body) == (200, COMPLETED)
        assert first.headers["location"] == again.headers["location"] == "/transfers/1"
        assert "idempotency-replayed" not in first.headers
        assert again.headers["idempotency-replayed"] == "true"
        assert (balance(books, 1), balance(books, 2)) == (8_750, 11_250)
        other = client.transfer(1, 2, 1_251, "order-1042")
        assert (other.status, other.code) == (409, "idempotency_conflict")
        for from_id, to_id in ((2, 1), (1, 3), (3, 2)):
            assert client.transfer(from_id, to_id, 1_250, "order-1042").status == 409
    assert (balance(books, 1), balance(books, 2)) == (8_750, 11_250)
    check_books(books)


def test_the_payload_s_spelling_is_not_the_payload(
    ledger: Callable[..., Ledger], books: Conn
) -> None:
    with ledger().client() as client:
        assert client.post("spelling-1", payload(1, 2, 5)).status == 200
        again = client.post("spelling-1", ' {"amount" :5,\n"to_id":2, "from_id":1}\r\n')
        assert again.headers["idempotency-replayed"] == "true"
    assert balance(books, 2) == 10_005


REFUSED = [
    ((1, 2, 10_001), "insufficient_funds"),
    ((1, 99, 5), "account_missing"),
    ((99, 1, 5), "account_missing"),
    ((98, 99, 5), "account_missing"),
    ((1, 7, 5), "receiver_overflow"),
]


def test_what_fails_leaves_nothing_and_keeps_no_key(
    ledger: Callable[..., Ledger], books: Conn
) -> None:
    books.execute("UPDATE accounts SET balance = 9223372036854775807 WHERE id = 7")
    before = books.execute("SELECT id, balance, last_sequence FROM accounts").fetchall()
    one = ledger()
    with one.client() as client:
        for asked, code in REFUSED:
            answer = client.transfer(*asked, key=f"refused-{code}")
            assert (answer.status, answer.code) == (409, code), asked
        assert books.execute("SELECT id, balance, last_sequence FROM accounts").fetchall() == before
        assert [count(books, name) for name in ("transfer_requests", "entries", "jobs")] == [0] * 3
        # The same key may now succeed, or stand for another transfer.
        assert client.transfer(1, 2, 10_000, key="refused-insufficient_funds").status == 200
        again = client.transfer(1, 2, 1, key="refused-account_missing")
        assert again.code == "insufficient_funds"
    assert one.metric("rollbacks_total", reason="insufficient_funds") == 2
    assert one.metric("rollbacks_total", reason="account_missing") == 3


@pytest.mark.parametrize(("outbox", "jobs"), [("on", 1), ("off", 0)])
def test_the_job_is_in_the_transfer_s_transaction(
    ledger: Callable[..., Ledger], books: Conn, outbox: str, jobs: int
) -> None:
    with ledger(outbox=outbox).client() as client:
        assert client.transfer(1, 2, 7).status == 200
        assert client.transfer(1, 2, 70_000).status == 409
    found = books.execute(
        "SELECT kind, payload - 'completed_at', xmin::text ="
        " (SELECT xmin::text FROM transfer_requests) FROM jobs"
    ).fetchall()
    facts = {"transfer_id": 1, "from_id": 1, "to_id": 2, "amount": 7}
    assert found == [("transfer.completed", facts, True)] * jobs


def test_reads_show_what_was_committed(ledger: Callable[..., Ledger], books: Conn) -> None:
    with ledger().client() as client:
        for amount in (1, 2, 3):
            assert client.transfer(1, 2, amount).status == 200
        account = client.get("/accounts/1")
        assert account.status == 200
        assert account.json["balance"] == 9_994
        page = client.get("/accounts/2/entries?limit=2").json
        assert [(e["sequence"], e["amount"], e["balance_after"]) for e in page["entries"]] == [
            (1, 1, 10_001),
            (2, 2, 10_003),
        ]
        rest = client.get(f"/accounts/2/entries?after={page['next']}").json
        assert [entry["sequence"] for entry in rest["entries"]] == [3]
        assert rest["next"] is None
        transfer = client.get("/transfers/2").json
        assert (transfer["from_id"], transfer["to_id"], transfer["amount"]) == (1, 2, 2)
        at = {
            e["sequence"]: e["created_at"]
            for e in client.get("/accounts/2/entries").json["entries"]
        }
        for sequence, expected in ((1, 10_001), (2, 10_003), (3, 10_006)):
            assert client.get(f"/accounts/2?as_of={at[sequence]}").json["balance"] == expected
        assert client.get("/accounts/2?as_of=2000-01-01T00:00:00Z").json["balance"] == 10_000
        assert client.get("/accounts/5?as_of=2000-01-01T00:00:00Z").json["balance"] == 10_000
        assert client.get("/accounts/5/entries").json == {"entries": [], "next": None}


BAD_READS = [
    ("/accounts/99", 404),
    ("/accounts/99/entries", 404),
    ("/transfers/99", 404),
    ("/accounts/0", 404),
    ("/accounts/01", 404),
    ("/accounts/-1", 404),
    ("/accounts/1e3", 404),
    ("/accounts/9223372036854775808", 404),
    ("/accounts/1/", 404),
    ("/accounts", 404),
    ("/accounts/1?as_of=yesterday", 400),
    ("/accounts/1?as_of=2026-02-30T00:00:00Z", 400),
    ("/accounts/1?as_of=2026-01-01T00:00:00", 400),
    ("/accounts/1?as_of=9999-01-01T00:00:00Z", 400),
    ("/accounts/1?as_of=", 400),
    ("/accounts/1?of=2026-01-01T00:00:00Z", 400),
    ("/accounts/1/entries?limit=0", 400),
    ("/accounts/1/entries?limit=101", 400),
    ("/accounts/1/entries?limit=1&limit=2", 400),
    ("/accounts/1/entries?after=-1", 400),
    ("/accounts/1/entries?after=%27", 400),
    ("/transfers/1?x=1", 400),
]


@pytest.mark.parametrize(("path", "status"), BAD_READS)
def test_reads_of_nothing_and_of_nonsense(shared: Ledger, path: str, status: int) -> None:
    with shared.client() as client:
        answer = client.get(path)
        assert answer.status == status
        assert answer.code == ("not_found" if status == 404 else "invalid_parameter")


def test_unknown_paths_and_wrong_methods(shared: Ledger) -> None:
    with shared.client() as client:
        assert client.get("/").code == "not_found"
        assert client.get("/transfers/1/x").code == "not_found"
        answer = client.get("/transfers")
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        for path in ("/accounts/1", "/transfers/1", "/healthz", "/metrics", "/openapi.json"):
            answer = client.ask("DELETE", path)
            assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
            assert client.ask("HEAD", "/accounts/1").body == b""


@pytest.mark.parametrize("key", [None, "short-7", "x" * 129, "tab\tinside-it", "ümlaut-key"])
def test_keys_that_are_none(shared: Ledger, key: str | None) -> None:
    with shared.client() as client:
        answer = client.post(key, payload(1, 2, 1))
        assert (answer.status, answer.code) in (
            (400, "invalid_idempotency_key"),
            (400, "malformed_http"),
        )


@pytest.mark.parametrize("key", ["12345678", "x" * 128, "with blanks and ~!{}", '"quoted-1"'])
def test_keys_that_are_some(shared: Ledger, key: str) -> None:
    with shared.client() as client:
        assert client.post(key, payload(1, 2, 1)).status == 200
        assert client.post(key, payload(1, 2, 1)).headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/jsonp", "application/json; charset=latin-1"]
)
def test_only_json_is_taken(shared: Ledger, content_type: str | None) -> None:
    with shared.client() as client:
        answer = client.post(fresh_key(), payload(1, 2, 1), content_type=content_type)
        assert (answer.status, answer.code) == (415, "unsupported_media_type")
        assert client.post(
            fresh_key(), payload(1, 2, 1), content_type="Application/JSON; charset=UTF-8"
        ).status == 200  # fmt: skip


def test_no_secret_and_no_body_reaches_the_log(
    ledger: Callable[..., Ledger], ledger_dsn: str, books: Conn
) -> None:
    books.execute("UPDATE accounts SET balance = 777888999 WHERE id = 3")
    one = ledger(log_level="debug", outbox="off")
    with one.client() as client:
        client.transfer(3, 4, 66_554_433)
        client.post("bad-body-1", '{"from_id": 66554433')
        client.get("/accounts/66554433")
    one.terminate()
    assert one.wait(20) == 0
    said = str(one.events) + one.stderr()
    password = ledger_dsn.partition("://")[2].partition("@")[0].partition(":")[2]
    for secret in (password, ledger_dsn, "66554433", "777888999"):
        assert secret not in said
    answered = one.find("transfer_answered", code="completed")
    assert answered
    assert answered[0]["transfer_key"].startswith("key-")
    assert "duration_seconds" in answered[0]


def test_the_client_used_here_is_polite(shared: Ledger) -> None:
    """A kept connection serves many requests."""
    with Client(shared.address) as client:
        for _ in range(20):
            assert client.get("/healthz").status == 204
    assert shared.metric("http_requests_total", route="/healthz", status="204") >= 20
