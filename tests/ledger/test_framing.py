"""No bytes a client can send are a second request, an error of ours, or an answer without a
code."""

from __future__ import annotations

import random
import re

import pytest

from tests.ledger.client import (
    ask_raw,
    fresh_key,
    head,
    payload,
    statuses,
    transfer_head,
)
from tests.ledger.conftest import Ledger

BODY = payload(1, 2, 1)
JSON = "Content-Type: application/json"
KEY = "Idempotency-Key: framing-key"
LENGTH = f"Content-Length: {len(BODY)}"
CHUNKED = f"{len(BODY):x}\r\n{BODY}\r\n0\r\n\r\n"


def post(*lines: str, body: str = BODY) -> bytes:
    return head("POST", "/transfers", JSON, KEY, *lines) + body.encode()


def raw(text: str) -> bytes:
    return text.encode("latin-1")


REFUSED = [
    # the request line
    (b"\r\n\r\n", 400),
    (b"GET\r\n\r\n", 400),
    (b"GET /healthz\r\n\r\n", 400),
    (b"GET  /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"G\x00T /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    (head("GET", "/healthz", version="HTTP/2.0"), 505),
    (head("GET", "/healthz", version="HTTP/0.9"), 505),
    (head("GET", "/healthz", version="http/1.1"), 400),
    (head("GET", "/" + "a" * 1_024), 414),
    (head("GET", "/" + "a" * 20_000), 414),
    (b"GET /" + b"a" * 20_000, 414),
    # Host
    (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
    (b"GET /healthz HTTP/1.0\r\n\r\n", 400),
    (head("GET", "/healthz", "Host: y"), 400),
    (head("GET", "/healthz", "Host: x"), 400),
    # headers
    (head("GET", "/healthz", f"X: {'y' * 16_384}"), 431),
    (head("GET", "/healthz", *[f"X{n}: y" for n in range(64)]), 431),
    (head("GET", "/healthz", "no colon"), 400),
    (head("GET", "/healthz", "X : y"), 400),
    (head("GET", "/healthz", "X: a\x00b"), 400),
    (head("GET", "/healthz", "X: a\x01b"), 400),
    (head("GET", "/healthz", "X: a\rb"), 400),
    (head("GET", "/healthz", "X: a", " folded"), 400),
    (head("GET", "/healthz", " X: a"), 400),
    (raw("GET /healthz HTTP/1.1\nHost: x\n\n"), 400),
    (raw("GET /healthz HTTP/1.1\r\nHost: x\nX: y\r\n\r\n"), 400),
    # the length
    (post(), 411),
    (post("Transfer-Encoding: chunked", body=CHUNKED), 411),
    (post("Transfer-Encoding: gzip", body=CHUNKED), 411),
    (post(LENGTH, "Transfer-Encoding: chunked", body=CHUNKED), 411),
    (post("Transfer-Encoding: chunked", LENGTH, body=CHUNKED), 411),
    (post("Transfer-Encoding: identity", LENGTH), 411),
    (post("Content-Length: 4097"), 413),
    (post("Content-Length: 99999999999"), 413),
    (post(f"Content-Length: {'9' * 500}"), 400),
    (post("Content-Length: -1"), 400),
    (post(f"Content-Length: +{len(BODY)}"), 400),
    (post(f"Content-Length: 0x{len(BODY):x}"), 400),
    (post("Content-Length: 1e1"), 400),
    (post("Content-Length:"), 400),
    (post(LENGTH, LENGTH), 400),
    (post(LENGTH, "Content-Length: 1"), 400),
    (post(f"Content-Length: {len(BODY)}, {len(BODY)}"), 400),
    (post(f"Content-Length: {len(BODY)} {len(BODY)}"), 400),
    (post(LENGTH, "Expect: 100-continue"), 417),
    (post(LENGTH, KEY), 400),
    (post(LENGTH, "idempotency-key: another-key"), 400),
]


@pytest.mark.parametrize(("data", "status"), REFUSED)
def test_what_is_ambiguous_is_refused_and_the_connection_ends(
    shared: Ledger, data: bytes, status: int
) -> None:
    answer = ask_raw(shared.address, data)
    assert statuses(answer)[:1] == [status], answer[:300]
    assert b'"code": "' in answer
    # A repeated key is refused by the route; the framing is sound, so the connection may go on.
    if b"invalid_idempotency_key" not in answer:
        assert len(statuses(answer)) == 1
        assert re.search(rb"(?i)connection: close", answer)


HIDDEN = transfer_head(BODY, "hidden-request") + BODY.encode()


@pytest.mark.parametrize(
    "outer",
    [
        post("Content-Length: 5000", body=""),
        post("Transfer-Encoding: chunked", body="0\r\n\r\n"),
        post(f"Content-Length: {len(HIDDEN)}", "Transfer-Encoding: chunked", body="0\r\n\r\n"),
        post(body=""),
        post(LENGTH, "Content-Length: 0", body=""),
        post("Content-Length: 0", "Content-Length: 0", body=""),
        post("Content-Length: 0x0", body=""),
        head("GET", "/accounts/1", "Content-Length: 9999"),
        head("GET", "/accounts/1", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
        head("POST", "/nowhere", "Content-Length: 9999"),
    ],
)
def test_no_request_hides_in_a_refused_body(shared: Ledger, outer: bytes) -> None:
    before = shared.metric("transfers_total")
    answer = ask_raw(shared.address, outer + HIDDEN)
    assert len(statuses(answer)) == 1
    assert 400 <= statuses(answer)[0] < 500
    assert shared.metric("transfers_total") == before


def test_a_body_is_never_a_request(shared: Ledger) -> None:
    """A whole request as the body of another: refused as JSON, and not carried out."""
    before = shared.metric("transfers_total")
    answer = ask_raw(shared.address, transfer_head(HIDDEN.decode()) + HIDDEN)
    assert statuses(answer) == [400]
    assert b"invalid_json" in answer
    assert shared.metric("transfers_total") == before


def test_pipelined_requests_are_answered_in_order(shared: Ledger) -> None:
    one = transfer_head(BODY, key := fresh_key()) + BODY.encode()
    read = head("GET", "/accounts/1")
    answer = ask_raw(shared.address, (one + read) * 10)
    assert statuses(answer) == [200] * 20
    assert answer.count(b"Idempotency-Replayed: true") == 9
    assert key.encode() not in answer


def test_http_1_0_is_answered_and_closed(shared: Ledger) -> None:
    answer = ask_raw(
        shared.address, head("GET", "/accounts/1", version="HTTP/1.0"), half_close=False
    )
    assert statuses(answer) == [200]


def test_noise_is_refused_and_never_an_error_of_ours(shared: Ledger) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    source = random.Random(seed)
    good = transfer_head(BODY) + BODY.encode()
    for _ in range(300):
        data = bytearray(good)
        for _ in range(source.randint(1, 4)):
            place = source.randrange(len(data))
            kind = source.random()
            if kind < 0.5:
                data[place] = source.randrange(256)
            elif kind < 0.75:
                del data[place : place + source.randint(1, 9)]
            else:
                data[place:place] = source.randbytes(source.randint(1, 9))
        for status in statuses(ask_raw(shared.address, bytes(data))):
            assert status < 500 or status == 505, bytes(data)
    assert not shared.find("http_failed")
    assert not shared.find("request_failed")
