"""The server answers in any company: half-open, dripping, oversized, pipelining, deaf clients."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from reliable_worker.http.message import Limits
from reliable_worker.jobs import events
from reliable_worker.jobs.events import Event
from tests.fixtures.waiting import wait_until
from tests.http.loop import Loop, read_all, request, serving, status

# Short, so that what must be cut off is cut off within the test; nothing here asserts speed.
QUICK = Limits(request_seconds=0.5, idle_seconds=0.5, write_seconds=0.5, linger_seconds=0.2)
PATIENT = Limits(request_seconds=60, idle_seconds=60, write_seconds=60)


@pytest.fixture
def heard() -> Iterator[list[Event]]:
    """The events emitted during the test."""
    found: list[Event] = []
    before = events._subscribers
    events.subscribe(found.append)
    yield found
    events._subscribers = before


@pytest.mark.quick
def test_it_answers_and_keeps_the_connection() -> None:
    with serving() as loop, loop.connect() as sock:
        for number in range(5):
            sock.sendall(request(f"/{number}"))
            answer = sock.recv(65536)
            assert status(answer) == 200
            assert answer.endswith(f"GET /{number}  ".encode())
        sock.sendall(request(close=True))
        assert status(read_all(sock)) == 200


def test_five_hundred_silent_and_dripping_clients_do_not_shut_out_a_good_one() -> None:
    with ExitStack() as stack, serving(PATIENT) as loop:
        for number in range(500):
            sock = stack.enter_context(loop.connect())
            if number % 2:
                sock.sendall(b"GET / HTTP/1.1\r\nHo")
            if number % 50 == 0:
                assert status(loop.fetch()) == 200
        assert status(loop.fetch()) == 200
        assert loop.open_connections <= PATIENT.connections


def test_a_drip_extends_nothing() -> None:
    with serving(QUICK) as loop, loop.connect() as sock:
        sock.settimeout(0.05)
        answer, sent = b"", 0
        data = request(more=f"X: {'y' * 2000}\r\n")
        while sent < len(data):
            try:
                sent += sock.send(data[sent : sent + 1])
                answer += sock.recv(4096)
            except TimeoutError:
                continue
            except OSError:
                break
            if not answer or answer.endswith(b"\n"):
                break
        assert sent < len(data)
        assert status(answer) in (0, 408)
        wait_until(lambda: loop.open_connections == 0, 10, "the dripping connection is closed")


def test_a_client_that_says_nothing_is_closed_and_an_idle_one_too() -> None:
    with serving(QUICK) as loop, loop.connect() as silent, loop.connect() as idle:
        idle.sendall(request())
        assert status(idle.recv(4096)) == 200
        assert read_all(silent) == b""
        assert read_all(idle) == b""


def test_a_half_sent_request_is_told_when_its_time_is_up() -> None:
    with serving(QUICK) as loop, loop.connect() as sock:
        sock.sendall(b"GET / HTTP/1.1\r\n")
        assert status(read_all(sock)) == 408


def test_a_deaf_client_is_cut_off_and_holds_up_nobody() -> None:
    with serving(QUICK) as loop, loop.connect() as deaf:
        deaf.sendall(request("/large"))
        wait_until(lambda: loop.open_connections == 1, 10, "the deaf client is connected")
        assert status(loop.fetch()) == 200
        wait_until(lambda: loop.open_connections == 0, 10, "the deaf client is closed")


def test_a_slow_reader_gets_all_of_a_large_answer() -> None:
    with serving(PATIENT) as loop:
        assert len(loop.fetch("/large")) > 20_000_000


def test_an_oversized_head_is_refused_and_the_refusal_arrives() -> None:
    """The client is still sending when it is refused: a careless close would reset its answer."""
    with serving() as loop:
        assert status(loop.ask(request(more=f"X: {'y' * 30_000}\r\n"))) == 431


def test_an_endless_head_is_not_read_for_ever() -> None:
    with serving() as loop, loop.connect() as sock:
        with pytest.raises(OSError):
            sock.sendall(b"y" * 100_000_000)
        wait_until(lambda: loop.open_connections == 0, 10, "the connection is closed")


@pytest.mark.quick
def test_pipelined_requests_are_all_answered_in_order() -> None:
    with serving() as loop:
        data = b"".join(request(f"/{n}") for n in range(50)) + request("/end", close=True)
        answer = loop.ask(data)
        assert answer.count(b"HTTP/1.1 200") == 51
        places = [answer.index(f"GET /{n} ".encode()) for n in range(50)]
        assert places == sorted(places)


def test_malformed_requests_are_refused_and_the_loop_goes_on() -> None:
    with serving() as loop:
        for data in (b"\0" * 100, b"GET\r\n\r\n", b"\r\n", os.urandom(3000) + b"\r\n\r\n"):
            assert status(loop.ask(data)) in (400, 431), data
        assert status(loop.fetch()) == 200


def test_a_client_that_closes_its_sending_side_is_still_answered() -> None:
    with serving() as loop, loop.connect() as sock:
        sock.sendall(request())
        sock.shutdown(socket.SHUT_WR)
        assert status(read_all(sock)) == 200


def test_resets_harm_nobody() -> None:
    reset = b"\1\0\0\0\0\0\0\0"  # SO_LINGER on, 0 seconds
    with serving() as loop:
        for data in (b"", b"GET /", request("/large"), request()):
            with loop.connect() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                sock.sendall(data)
        assert status(loop.fetch()) == 200
        wait_until(lambda: loop.open_connections == 0, 10, "every connection is forgotten")


def test_a_handler_that_fails_is_a_500_and_an_event(heard: list[Event]) -> None:
    with serving() as loop:
        answer = loop.fetch("/boom")
        assert status(answer) == 500
        assert b"inside" not in answer
        assert status(loop.fetch()) == 200
    assert [event.name for event in heard] == ["http_failed"]


def test_without_descriptors_it_pauses_and_comes_back() -> None:
    """The loop must not spin on a backlog it cannot accept from."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving(PATIENT) as loop, ExitStack() as stack:
        waiting = [stack.enter_context(socket.socket()) for _ in range(3)]
        try:
            # The lowest free number is the limit: nothing can be opened in this process.
            probe = os.dup(0)
            os.close(probe)
            resource.setrlimit(resource.RLIMIT_NOFILE, (probe, hard))
            for sock in waiting:
                sock.connect(loop.address)
                sock.sendall(request(close=True))
            before, started = loop.turns, time.monotonic()
            wait_until(lambda: loop.server._resume_at is not None, 10, "accepting pauses")
            wait_until(lambda: loop.turns > before + 3, 10, "the loop still turns")
            assert loop.turns - before < 2000 * (time.monotonic() - started + 1)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for sock in waiting:
            sock.settimeout(20)
            assert status(read_all(sock)) == 200


def test_a_forked_child_gives_up_its_copies_and_the_connection_lives() -> None:
    loop = Loop(Limits())
    loop.start()
    try:
        with loop.connect() as sock:
            sock.sendall(request())
            assert status(sock.recv(4096)) == 200
            pid = os.fork()
            if not pid:
                loop.server.close_in_child()
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
            sock.sendall(request(close=True))
            assert status(read_all(sock)) == 200
    finally:
        loop.stop()
