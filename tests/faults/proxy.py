"""A loopback proxy between worker and PostgreSQL that loses, holds, delays and cuts what passes.

One thread owns every socket; a test talks to it through methods that return within a deadline.
Links are chosen by a pattern over application_name (`*:work` is one lane of every child). Traps are
for one statement (drop the reply of COMMIT); modes are for all traffic (stall, half-open, delay).
"""

import fnmatch
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.faults.link import Link, Mode, Then, Trap, Where

# The thread answers a test's order within milliseconds; more than this means that it is dead.
_ORDER_SECONDS: Final = 10.0


class Proxy:
    """Listens on 127.0.0.1:`port` and forwards to `target`; use as a context manager."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._orders: deque[Callable[[], None]] = deque()
        self._links: list[Link] = []
        self._traps: list[Trap] = []
        self._modes: list[tuple[str, Mode, float]] = []
        self._refuse = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="wire-proxy", daemon=True)

    def __enter__(self) -> "Proxy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        os.write(self._wake_write, b"x")
        self._thread.join(_ORDER_SECONDS)
        assert not self._thread.is_alive(), "the proxy's thread did not end"
        os.close(self._wake_read)
        os.close(self._wake_write)

    def dsn(self, dsn: str) -> str:
        """`dsn` led through this proxy, unencrypted so that it can be read."""
        return make_conninfo(
            dsn,
            host="127.0.0.1",
            port=self.port,
            sslmode="disable",
            gssencmode="disable",
        )

    def url(self, dsn: str) -> str:
        """The same as a URL, for DATABASE_URL."""
        parts = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
        who = quote(parts.get("user", "postgres"), safe="")
        if "password" in parts:
            who += ":" + quote(parts["password"], safe="")
        return (
            f"postgresql://{who}@127.0.0.1:{self.port}/{parts['dbname']}"
            "?sslmode=disable&gssencmode=disable"
        )

    # -- traps: one statement ---------------------------------------------------------------

    def drop_reply(
        self,
        match: Callable[[str], bool] | str,
        *,
        app: str = "*",
        then: Then = Then.CUT,
        times: int = 1,
        skip: int = 0,
    ) -> Trap:
        """Let the server execute what matches, and lose its answer."""
        return self._trap(Trap(match, Where.REPLY, then, app, times=times, skip=skip))

    def drop_request(
        self,
        match: Callable[[str], bool] | str,
        *,
        app: str = "*",
        then: Then = Then.CUT,
        times: int = 1,
        skip: int = 0,
    ) -> Trap:
        """Lose what matches before the server has seen it."""
        return self._trap(Trap(match, Where.REQUEST, then, app, times=times, skip=skip))

    def hold_request(
        self,
        match: Callable[[str], bool] | str,
        *,
        app: str = "*",
        then: Then = Then.CUT,
        skip: int = 0,
    ) -> Trap:
        """Cut the client off, and give the server what matched only at `let_go(trap)`.

        Until then the server's session sits in its transaction, as with a COMMIT in its buffer.
        """
        return self._trap(Trap(match, Where.HOLD, then, app, times=1, skip=skip))

    def let_go(self, trap: Trap) -> None:
        """Send a held request to the server at last; nobody hears its answer."""

        def apply() -> None:
            for link in self._links:
                if link.trap is trap:
                    link.let_go()

        self._order(apply)

    def forget_traps(self) -> None:
        """Spring none of those that still wait."""
        self._order(self._traps.clear)

    def _trap(self, trap: Trap) -> Trap:
        self._order(lambda: self._traps.append(trap))
        return trap

    # -- modes: all traffic -----------------------------------------------------------------

    def set_mode(self, mode: Mode, *, app: str = "*", seconds: float = 0.0) -> None:
        """Treat present and future links of `app` so; `seconds` is the delay of Mode.DELAY."""

        def apply() -> None:
            self._modes = [entry for entry in self._modes if entry[0] != app]
            self._modes.append((app, mode, seconds))
            for link in self._links:
                self._apply_mode(link)

        self._order(apply)

    def heal(self) -> None:
        """Pass everything again; what a stall kept back is delivered, a half-open link is not."""

        def apply() -> None:
            self._modes, self._refuse = [], False
            for link in self._links:
                link.set_mode(Mode.PASS, 0.0)

        self._order(apply)

    def reset(self, *, app: str = "*") -> int:
        """Abort the links of `app` now (RST both ways); how many."""
        hit: list[Link] = []

        def apply() -> None:
            hit.extend(link for link in self._links if fnmatch.fnmatch(link.app, app))
            for link in hit:
                link.cut(abort=True)

        self._order(apply)
        return len(hit)

    def refuse(self) -> None:
        """Abort every new connection at once, until `heal()`."""

        def apply() -> None:
            self._refuse = True

        self._order(apply)

    def apps(self) -> list[str]:
        """application_name of every link that has logged in and is open."""
        names: list[str] = []
        self._order(lambda: names.extend(link.app for link in self._links if link.app))
        return names

    # -- the thread -------------------------------------------------------------------------

    def _order(self, act: Callable[[], object]) -> None:
        done = threading.Event()

        def run() -> None:
            act()
            done.set()

        self._orders.append(run)
        os.write(self._wake_write, b"x")
        assert done.wait(_ORDER_SECONDS), "the proxy's thread does not answer"

    def _apply_mode(self, link: Link) -> None:
        for app, mode, seconds in self._modes:
            if link.app and fnmatch.fnmatch(link.app, app):
                link.set_mode(mode, seconds)

    def _trap_for(self, app: str, text: str) -> Trap | None:
        for trap in self._traps:
            if trap.takes(app, text):
                if trap.spent:
                    self._traps.remove(trap)
                return trap
        return None

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        finally:
            for link in self._links:
                link.close()
            self._listener.close()

    def _turn(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        by_fd: dict[int, Link] = {}
        now = time.monotonic()
        due = now + 1.0
        for link in self._links:
            due = min(due, link.next_due(now))
            for fd, events in link.interest(now):
                poll.register(fd, events)
                by_fd[fd] = link
        ready = poll.poll(max(0.0, (due - now) * 1000))
        touched = {by_fd[fd] for fd, _ in ready if fd in by_fd}
        now = time.monotonic()
        for link in self._links:
            if link in touched or link.next_due(now) <= now:
                named = bool(link.app)
                link.pump(now)
                if link.app and not named:
                    self._apply_mode(link)
        if any(fd == self._wake_read for fd, _ in ready):
            os.read(self._wake_read, 4096)
            while self._orders:
                self._orders.popleft()()
        if any(fd == self._listener.fileno() for fd, _ in ready):
            self._accept()
        self._links = [link for link in self._links if not link.closed]

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except BlockingIOError:
            return
        if self._refuse:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            return
        try:
            server = socket.create_connection(self._target, timeout=1.0)
        except OSError:
            client.close()  # a server that is down looks so through the proxy too
            return
        self._links.append(Link(client, server, self._trap_for))
