"""Shows that a child is named, signalled and reaped alike by pidfd and by pid, and that what a
child writes on its channel by accident harms nobody."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Callable

import pytest

from reliable_worker.supervisor.channel import Channel
from reliable_worker.supervisor.child import Handle, Pid, Pidfd
from tests.fixtures.waiting import wait_until

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("name", [Pidfd, Pid])
def test_a_child_is_signalled_and_reaped(name: Callable[[int], Handle]) -> None:
    pid = os.fork()
    if pid == 0:
        select.select([], [], [], 60)
        os._exit(0)
    handle = name(pid)
    assert handle.reap() is None
    handle.signal(signal.SIGKILL)
    assert wait_until(handle.reap, 10, "its death") == -signal.SIGKILL
    handle.signal(signal.SIGTERM)  # nobody's any more
    handle.close()


@pytest.mark.parametrize("name", [Pidfd, Pid])
def test_an_exit_code_is_kept(name: Callable[[int], Handle]) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    handle = name(pid)
    assert wait_until(handle.reap, 10, "its death") == 7
    handle.close()


def test_strays_between_messages_are_skipped() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    deep = b'{"a":' * 5000
    theirs.sendall(
        b'stray\n{"say":"ready"}\n[1]\n' + deep + b'\n\xff\xfe\n{"say":"failed"}\n{"half'
    )
    assert [message["say"] for message in channel.receive()] == ["ready", "failed"]
    theirs.sendall(b'":1}\n')
    assert channel.receive() == [{"half": 1}]
    theirs.close()
    assert channel.receive() == []
    assert channel.ended
    channel.close()


def test_a_flood_without_an_end_is_bounded_and_then_forgotten() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    channel = Channel(ours)
    sent = 0
    while sent < 10_000_000:  # more than the longest message
        try:
            sent += theirs.send(b"x" * 65536)
        except BlockingIOError:
            assert channel.receive() == []
    wait_until(lambda: not channel.receive() and _empty(ours), 10, "all read")
    theirs.sendall(b'\n{"say":"ready"}\n')
    assert channel.receive() == [{"say": "ready"}]
    theirs.close()
    channel.close()


def _empty(line: socket.socket) -> bool:
    return not select.select([line], [], [], 0)[0]


def test_what_a_child_does_not_take_is_kept_for_it() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    for number in range(2000):
        channel.send({"say": "obituary", "number": number, "text": "x" * 1000})
    assert channel.behind
    lines = theirs.makefile("rb")
    for number in range(2000):
        channel.flush()
        assert b'"number":%d,' % number in lines.readline()
    wait_until(lambda: not channel.behind, 10, "all taken")
    lines.close()
    theirs.close()
    channel.send({"say": "kinds"})  # to the dead: no error
    channel.close()
