"""Clients that say nothing, drip, or do not read cost a place for a while, and nobody else
anything."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.fixtures.waiting import wait_until
from tests.ledger.client import connect, head, payload, read_all, statuses, transfer_head
from tests.ledger.conftest import Ledger

HALF_OPEN = 200
BODY = payload(1, 2, 1)


def threads_of(one: Ledger) -> int:
    return len(list(Path(f"/proc/{one.pid}/task").iterdir()))


def test_a_good_client_is_served_among_two_hundred_slow_ones(ledger: Callable[..., Ledger]) -> None:
    """Each of its requests is answered, in a time far below any budget a slow client could use up.

    The bound is generous, for a busy machine; the median says more and is printed.
    """
    one = ledger()
    stop = threading.Event()
    with ExitStack() as stack, one.client() as good:
        assert good.transfer(1, 2, 1).status == 200
        threads = threads_of(one)
        slow = [stack.enter_context(connect(one.address)) for _ in range(HALF_OPEN)]
        drips = [sock for number, sock in enumerate(slow) if number % 2]

        def drip() -> None:
            data = transfer_head("x" * 4_000) + b"x" * 4_000
            for byte in data:
                for sock in drips:
                    try:
                        sock.send(bytes([byte]))
                    except OSError:
                        continue
                if stop.wait(0.05):
                    return

        dripper = threading.Thread(target=drip, daemon=True)
        dripper.start()
        took = []
        for _ in range(100):
            begun = time.monotonic()
            assert good.transfer(1, 2, 1).status == 200
            took.append(time.monotonic() - begun)
        assert one.metric("http_connections") > 1
        stop.set()
        dripper.join(10)
        took.sort()
        print(f"median {took[50]:.4f} s, slowest {took[-1]:.4f} s")
        assert took[98] < 1.0
        assert threads_of(one) <= threads + 20  # the pool's
        # Whoever sent nothing, or not enough, is gone when its time is up.
        wait_until(lambda: one.metric("http_connections") <= 2, 20, "the slow clients are closed")


def test_a_head_and_a_body_that_come_too_slowly_are_told(ledger: Callable[..., Ledger]) -> None:
    one = ledger(header_seconds=0.5, read_seconds=1.5)
    for data in (b"POST /tr", transfer_head(BODY), transfer_head(BODY) + b"{"):
        with connect(one.address) as sock:
            sock.sendall(data)
            answer = read_all(sock)
        assert statuses(answer) == [408]
        assert b"request_timeout" in answer
    assert one.metric("http_refusals_total", code="request_timeout") == 3


def test_an_idle_connection_is_closed(ledger: Callable[..., Ledger]) -> None:
    one = ledger(idle_seconds=0.5)
    with connect(one.address) as sock:
        sock.sendall(head("GET", "/accounts/1"))
        assert statuses(read_all(sock)) == [200]


def test_a_client_that_does_not_read_is_cut(ledger: Callable[..., Ledger]) -> None:
    one = ledger(write_seconds=0.5)
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, _, port = one.address.rpartition(":")
        deaf.connect((host, int(port)))
        deaf.setblocking(False)
        ask = head("GET", "/openapi.json") * 50

        def gone() -> bool:
            try:
                for _ in range(100):
                    deaf.send(ask)
            except BlockingIOError:
                return False
            except OSError:
                return True
            return False

        wait_until(gone, 20, "the deaf client is reset")
    with one.client() as client:
        assert client.get("/healthz").status == 204


def test_resets_in_the_middle_leave_nothing_behind(ledger: Callable[..., Ledger]) -> None:
    one = ledger()
    reset = b"\1\0\0\0\0\0\0\0"  # SO_LINGER on, 0 seconds
    whole = transfer_head(BODY) + BODY.encode()
    for end in (0, 10, len(whole) - 5, len(whole)):
        for _ in range(5):
            with connect(one.address) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                sock.sendall(whole[:end])
    with one.client() as client:
        assert client.transfer(1, 2, 1).status == 200
    wait_until(
        lambda: one.metric("pool_connections", state="acquired") == 0, 10, "no connection leaks"
    )
