"""Shows what a child's main loop hears and says: signals, the parent, the parent's death.

Each test forks a real child whose main is a few lines around `Loop`, and speaks to it over its
real channel.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from reliable_worker.jobs.board import Board
from reliable_worker.process import Child, Loop, Role, Stop, route_signals
from tests.fixtures.waiting import wait_until

pytestmark = pytest.mark.quick

Body = Callable[[Child], int]


class Offspring:
    """The parent's end of a forked child: its pid, its board's row, its channel."""

    def __init__(self, pid: int, channel: socket.socket, board: Board) -> None:
        self.pid = pid
        self.channel = channel
        self.board = board.child(0)
        self._lines = channel.makefile("rb")

    def hear(self) -> Any:
        """The child's next message; fails after 10 s."""
        self.channel.settimeout(10)
        return json.loads(self._lines.readline())

    def say(self, message: dict[str, object]) -> None:
        self.channel.sendall(json.dumps(message).encode() + b"\n")

    def hang_up(self) -> None:
        """Close every copy of the parent's end."""
        self._lines.close()
        self.channel.close()

    def status(self) -> int:
        """The exit code (negative: the signal), waited for at most 10 s."""
        pidfd = os.pidfd_open(self.pid)
        try:
            assert select.select([pidfd], [], [], 10)[0], "the child did not end"
        finally:
            os.close(pidfd)
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)


@contextmanager
def forked(body: Body) -> Iterator[Offspring]:
    board = Board(children=1, slots=1)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            ours.close()
            child = Child(
                role=Role.WORKER,
                index=0,
                boot="0" * 32,
                slots=1,
                settings=cast(Any, None),
                channel=theirs,
                board=board.child(0),
                meters=cast(Any, None),
                wakeup=route_signals(),
            )
            code = body(child)
        finally:
            os._exit(code)
    theirs.close()
    offspring = Offspring(pid, ours, board)
    try:
        yield offspring
    finally:
        ours.close()
        if offspring.pid:
            os.kill(offspring.pid, signal.SIGKILL)
            os.waitpid(offspring.pid, 0)


def _reporting(child: Child, end: Stop) -> int:
    """Says "ready", echoes messages, reports each level, and leaves at level `end`."""
    loop = Loop(
        child,
        on_stop=lambda level: loop.send({"say": "level", "level": int(level)}),
        on_message=lambda message: loop.send({"say": "echo", "message": message}),
    )
    loop.send({"say": "ready"})
    loop.run(lambda: loop.level >= end)
    return 7


def test_levels_rise_and_repeated_signals_change_nothing() -> None:
    with forked(lambda child: _reporting(child, Stop.ORPHANED)) as child:
        assert child.hear() == {"say": "ready"}
        os.kill(child.pid, signal.SIGINT)
        os.kill(child.pid, signal.SIGUSR1)
        assert child.hear() == {"say": "level", "level": Stop.RETIRE}
        os.kill(child.pid, signal.SIGUSR1)
        os.kill(child.pid, signal.SIGTERM)
        assert child.hear() == {"say": "level", "level": Stop.DRAIN}
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            os.kill(child.pid, number)
        child.say({"say": "hello"})
        assert child.hear() == {"say": "echo", "message": {"say": "hello"}}
        child.hang_up()
        assert child.status() == 7


def test_a_long_message_and_a_storm_of_them_arrive_whole_both_ways() -> None:
    with forked(lambda child: _reporting(child, Stop.DRAIN)) as child:
        assert child.hear() == {"say": "ready"}
        child.say({"say": "long", "text": "x" * 300_000})
        assert len(child.hear()["message"]["text"]) == 300_000
        for number in range(500):
            child.say({"say": "short", "number": number})
        assert [child.hear()["message"]["number"] for _ in range(500)] == list(range(500))


def test_the_loop_beats_while_nothing_happens() -> None:
    with forked(lambda child: _reporting(child, Stop.DRAIN)) as child:
        child.hear()
        first = wait_until(lambda: child.board.beat_at, 10, "the first beat")
        wait_until(lambda: child.board.beat_at > first, 10, "another beat")


def test_an_orphan_whose_work_never_ends_is_gone_by_the_kernels_alarm() -> None:
    def stubborn(child: Child) -> int:
        loop = Loop(child, on_stop=lambda level: None, on_message=lambda message: None)
        loop.send({"say": "ready"})
        loop.run(lambda: False)
        return 0

    with forked(stubborn) as child:
        child.hear()
        child.hang_up()
        assert child.status() == -signal.SIGALRM


def test_a_deaf_parent_blocks_no_child() -> None:
    def talker(child: Child) -> int:
        loop = Loop(child, on_stop=lambda level: None, on_message=lambda message: None)
        for number in range(100):
            loop.send({"say": "long", "number": number, "text": "x" * 100_000})
        return 5

    with forked(talker) as child:
        assert child.status() == 5
