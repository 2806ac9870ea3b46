"""The maintenance process as a real fork, with the parent's end of its channel in hand."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from reliable_worker.jobs import events
from reliable_worker.jobs.board import Board, ChildBoard
from reliable_worker.jobs.counters import Arena
from reliable_worker.process import Child, Role, route_signals
from reliable_worker.settings import Settings
from tests.fixtures.waiting import wait_until

Message = dict[str, Any]

# Generous: a starved machine must not fail a test.
SECONDS = 20.0


class Forked:
    """One maintenance process, seen by its parent."""

    def __init__(self, pid: int, boot: str, channel: socket.socket, board: ChildBoard) -> None:
        self.pid = pid
        self.boot = boot
        self.board = board
        self.messages: list[Message] = []
        self._channel = channel
        self._code: int | None = None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def say(self, **message: object) -> None:
        self._channel.sendall(json.dumps(message).encode() + b"\n")

    def bury(self, boot: str, cause: str, **facts: object) -> None:
        """Send an obituary."""
        self.say(say="obituary", boot=boot, role="worker", cause=cause, **facts)

    def heard(self, say: str, **match: object) -> list[Message]:
        """The messages of that kind so far."""
        wanted = {"say": say, **match}
        return [m for m in list(self.messages) if all(m.get(k) == v for k, v in wanted.items())]

    def wait_for(self, say: str, **match: object) -> Message:
        what = f"message {say} {match}; heard {self.messages[-5:]}"
        return wait_until(lambda: self.heard(say, **match), SECONDS, what)[0]

    def wait_ready(self) -> None:
        """Ready: the schema fits, the services run."""
        wait_until(lambda: self.board.ready, SECONDS, "the maintenance process is ready")

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def hang_up(self) -> None:
        """What the death of the parent looks like from inside."""
        self._channel.shutdown(socket.SHUT_RDWR)

    def wait(self, seconds: float) -> int:
        """Its exit code, negative for a signal."""

        def ended() -> bool:
            if self._code is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self._code = os.waitstatus_to_exitcode(status) if pid else None
            return self._code is not None

        wait_until(ended, seconds, f"the end of process {self.pid}")
        assert self._code is not None
        return self._code

    def close(self) -> None:
        """End it whatever it does."""
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait(SECONDS)
        self._channel.close()

    def _read(self) -> None:
        try:
            with self._channel.makefile("rb") as lines:
                self.messages.extend(map(json.loads, lines))
        except OSError:
            return


@contextmanager
def forked(settings: Settings, **child: bool) -> Iterator[Forked]:
    """Fork a maintenance process; ended afterwards."""
    board = Board(1, 1).child(0)
    meters = Arena(children=1, threads=8).child(0)
    boot = secrets.token_hex(16)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _live(
            Child(
                role=Role.MAINTENANCE,
                index=0,
                boot=boot,
                slots=0,
                settings=settings,
                channel=theirs,
                board=board,
                meters=meters,
                **child,
                wakeup=route_signals(),
            )
        )
    theirs.close()
    process = Forked(pid, boot, ours, board)
    try:
        yield process
    finally:
        process.close()


def _live(child: Child) -> None:
    code = 70
    events.clear()  # the test's own ears are not the child's
    try:
        from reliable_worker.maintenance import service

        main: Callable[[Child], int] = service.main
        code = main(child)
    except BaseException as error:
        sys.stderr.write(f"maintenance: {error!r}\n")
    finally:
        os._exit(code)
