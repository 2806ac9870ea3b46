"""The protocol takes whole requests of bounded size, and refuses others with the right status."""

from __future__ import annotations

import pytest

from reliable_worker.http.message import HttpError, Limits, Request, Response
from reliable_worker.http.protocol import Protocol
from tests.http.loop import request

pytestmark = pytest.mark.quick


def refusal(data: bytes, limits: Limits | None = None, piece: int = 1 << 20) -> int:
    """The status with which these bytes, sent in pieces, are refused; 0: they are not."""
    protocol = Protocol(limits or Limits())
    refused: HttpError | None = None
    try:
        for start in range(0, len(data), piece):
            protocol.receive(data[start : start + piece])
            protocol.next_request()
    except HttpError as error:
        refused = error
    if refused is None:
        return 0
    answer = protocol.respond(refused.response)
    assert answer.startswith(b"HTTP/1.1 %d " % refused.status)
    assert b"connection: close" in answer.lower()
    assert protocol.closing
    return refused.status


def test_a_request_is_given_out_once_it_is_whole() -> None:
    protocol = Protocol(Limits(body_bytes=10))
    data = request("/a?b=c", method="POST", more="Content-Length: 3\r\n") + b"xyz"
    for byte in data[:-1]:
        protocol.receive(bytes([byte]))
        assert protocol.next_request() is None
        assert protocol.begun
    protocol.receive(data[-1:])
    found = protocol.next_request()
    assert isinstance(found, Request)
    assert (found.method, found.path, found.query, found.body) == ("POST", "/a", "b=c", b"xyz")
    assert found.header(b"host") == [b"x"]


def test_pipelined_requests_come_one_by_one() -> None:
    protocol = Protocol(Limits())
    protocol.receive(request("/1") + request("/2") + request("/3")[:-1])
    for path in ("/1", "/2"):
        found = protocol.next_request()
        assert found is not None
        assert found.path == path
        assert protocol.next_request() is None  # the response is due first
        assert protocol.respond(Response(200, b"ok")).endswith(b"\r\n\r\nok")
        assert not protocol.closing
        protocol.next_cycle()
    assert protocol.next_request() is None
    assert protocol.begun


@pytest.mark.parametrize("piece", [1 << 20, 1000, 7])
def test_the_head_is_bounded_however_it_arrives(piece: int) -> None:
    limits = Limits(head_bytes=4000)
    big = request(more=f"X: {'y' * 4000}\r\n")
    many = request(more="".join(f"X{n}: y\r\n" for n in range(500)))
    endless = b"GET /" + b"a" * 5000
    for data in (big, many, endless):
        assert refusal(data, limits, piece) == 431
    fits = request(more=f"X: {'y' * 3900}\r\n")
    assert refusal(fits, limits, piece) == 0


def test_a_head_counts_from_its_own_beginning() -> None:
    """The rest of an earlier piece is part of the next head; the earlier request is not."""
    protocol = Protocol(Limits(head_bytes=1000))
    data = request("/", more=f"X: {'y' * 600}\r\n")
    protocol.receive(data * 5)
    for _ in range(5):
        assert protocol.next_request() is not None
        protocol.respond(Response(200, b""))
        protocol.next_cycle()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA\x00: b\r\n\r\n", 400),
        (b"GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\nHost: x\r\n\r\n", 505),
        (request(more="Content-Length: -1\r\n"), 400),
        (request(more="Content-Length: 1\r\nContent-Length: 2\r\n"), 400),
        (request(more="Content-Length: 1\r\n"), 413),
        (request(more=f"Content-Length: {'9' * 5000}\r\n"), 400),
        (request(more="Content-Length: 99999999999\r\n"), 413),
        (request(more="Transfer-Encoding: chunked\r\n"), 411),
        (request(more="Content-Length: 0\r\nTransfer-Encoding: chunked\r\n"), 411),
        (request(more="Transfer-Encoding: gzip\r\n"), 501),
        (request(more="Expect: 100-continue\r\n"), 417),
        (b"\xff" * 100 + b"\r\n\r\n", 400),
    ],
)
def test_what_is_malformed_or_not_taken_is_refused(data: bytes, expected: int) -> None:
    assert refusal(data) == expected


def test_a_body_longer_than_announced_is_no_part_of_the_request() -> None:
    protocol = Protocol(Limits(body_bytes=10))
    protocol.receive(
        request("/", method="POST", more="Content-Length: 2\r\n") + b"ab" + b"NONSENSE\r\n\r\n"
    )
    found = protocol.next_request()
    assert found is not None
    assert found.body == b"ab"
    protocol.respond(Response(200, b""))
    protocol.next_cycle()
    with pytest.raises(HttpError):
        protocol.next_request()


def test_a_stream_that_ends_within_a_request_is_refused() -> None:
    protocol = Protocol(Limits())
    protocol.receive(b"GET / HT")
    assert protocol.next_request() is None
    protocol.receive(b"")
    with pytest.raises(HttpError):
        protocol.next_request()


def test_a_stream_that_ends_between_requests_is_over() -> None:
    protocol = Protocol(Limits())
    protocol.receive(b"")
    assert protocol.next_request() is None
    assert protocol.closing


def test_head_has_the_length_and_no_body() -> None:
    protocol = Protocol(Limits())
    protocol.receive(request(method="HEAD"))
    assert protocol.next_request() is not None
    answer = protocol.respond(Response(200, b"12345"))
    assert b"content-length: 5" in answer.lower()
    assert answer.endswith(b"\r\n\r\n")
    assert not protocol.closing


@pytest.mark.parametrize(
    "data",
    [
        request(close=True),
        b"GET / HTTP/1.0\r\n\r\n",
    ],
)
def test_a_connection_that_cannot_go_on_is_closed(data: bytes) -> None:
    protocol = Protocol(Limits())
    protocol.receive(data)
    assert protocol.next_request() is not None
    protocol.respond(Response(405, b"no"))
    assert protocol.closing


def test_a_connection_has_a_last_request() -> None:
    protocol = Protocol(Limits(requests_per_connection=2))
    protocol.receive(request() * 3)
    assert protocol.next_request() is not None
    protocol.respond(Response(200, b""))
    protocol.next_cycle()
    assert protocol.next_request() is not None
    assert b"connection: close" in protocol.respond(Response(200, b"")).lower()
    assert protocol.closing
