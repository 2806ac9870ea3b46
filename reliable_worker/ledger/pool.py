"""A few connections, never more than the hard size, each used by one request at a time.

Floor 6; imports postgres. Every wait is under the request's own deadline: for a free place, for a
connect, for a check. A connection that failed is closed and never given out again, and with it go
all idle ones: what broke one (a restart, a failover) has broken them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psycopg

from reliable_worker.jobs.deadline import Deadline, boottime
from reliable_worker.jobs.errors import BudgetExceeded
from reliable_worker.ledger import schema
from reliable_worker.ledger.metrics import Metrics
from reliable_worker.ledger.settings import LedgerSettings
from reliable_worker.postgres.database import CLIENT_SLACK_SECONDS, Connection, connect
from reliable_worker.settings import Settings as DatabaseSettings
from reliable_worker.settings import SettingsError

LANE = "ledger"
# Less than this is not worth beginning a connect or a statement for.
LEAST_SECONDS = 0.01
# For cancelling what still runs when the service is cut; systemd allows seconds more.
CANCEL_SECONDS = 0.5


@dataclass(slots=True)
class _Idle:
    conn: Connection
    made_at: float
    used_at: float


class Pool:
    """At most `pool_max` connections; the one used last is given out first."""

    def __init__(self, settings: LedgerSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._database = settings.database
        self._metrics = metrics
        self._free = threading.Condition()
        self._idle: list[_Idle] = []
        self._made_at: dict[Connection, float] = {}  # of those given out
        self._opening = 0
        metrics.watch("pool_connections", lambda: float(len(self._idle)), "idle")
        metrics.watch("pool_connections", lambda: float(len(self._made_at)), "acquired")
        metrics.set("pool_size_max", settings.pool_max)

    def acquire(self, deadline: Deadline) -> Connection:
        """A connection for one caller, to be given back by `release` or `discard`.

        Raises BudgetExceeded, or psycopg.Error where no connection can be made.
        """
        found = self._take(deadline)
        while found is not None:
            if self._sound(found, deadline):
                return found.conn
            self.discard(found.conn)
            found = self._take(deadline)
        return self._open(deadline)

    def release(self, conn: Connection) -> None:
        """Give back a connection that worked."""
        with self._free:
            made_at = self._made_at.pop(conn)
            self._idle.append(_Idle(conn, made_at, boottime()))
            self._free.notify()

    def discard(self, conn: Connection) -> None:
        """Give back a connection that failed: it is closed, and the idle ones with it."""
        self._metrics.count("pool_discards_total")
        with self._free:
            self._made_at.pop(conn, None)
            doubtful, self._idle = self._idle, []
            self._free.notify()
        for one in (conn, *(each.conn for each in doubtful)):
            _close(one)

    @contextmanager
    def lent(self, deadline: Deadline) -> Iterator[Connection]:
        """A connection for a block whose statements end with the deadline. Raises as `acquire`."""
        conn = self.acquire(deadline)
        with self.using(conn, deadline):
            yield conn

    @contextmanager
    def using(self, conn: Connection, deadline: Deadline) -> Iterator[None]:
        """A block on a connection already acquired, which is given back however the block ends."""
        try:
            with within(conn, deadline):
                yield
        except psycopg.Error as error:
            self.discard(conn) if is_lost(conn, error) else self.release(conn)
            raise
        except BaseException:
            self.discard(conn)
            raise
        else:
            self.release(conn)

    def tend(self) -> None:
        """Close what is old or long idle, open what is missing to `pool_min`; every second."""
        now, s = boottime(), self._settings
        with self._free:
            kept = [
                each
                for place, each in enumerate(self._idle)
                if now - each.made_at < s.pool_lifetime_seconds
                # the most recently used stand last; the first few are the spare ones
                and (now - each.used_at < s.pool_idle_seconds or place >= self._spare())
            ]
            gone = [each for each in self._idle if each not in kept]
            self._idle = kept
        for each in gone:
            _close(each.conn)
        while self._size < s.pool_min:
            with self._free:
                self._opening += 1
            try:
                self.release(self._open(Deadline(s.connect_timeout_seconds, "connect")))
            except (psycopg.Error, OSError, BudgetExceeded):
                return  # /healthz tells of it; the next request tries by itself

    def cancel(self) -> None:
        """Ask the server to end every running statement, whose answer nobody waits for any more."""
        running = list(self._made_at)

        def ask() -> None:
            for conn in running:
                with contextlib.suppress(Exception):
                    conn.cancel_safe(timeout=CANCEL_SECONDS)

        thread = threading.Thread(target=ask, name="cancel", daemon=True)
        thread.start()
        thread.join(CANCEL_SECONDS)

    @property
    def _size(self) -> int:
        return len(self._idle) + len(self._made_at) + self._opening

    def _spare(self) -> int:
        """How many idle connections may be closed before the pool is at its least size."""
        return max(0, self._size - self._settings.pool_min)

    def _take(self, deadline: Deadline) -> _Idle | None:
        """An idle connection, or None and the right to open one."""
        with self._free:
            while not self._idle and self._size >= self._settings.pool_max:
                if not self._free.wait(deadline.remaining()) and deadline.passed:
                    raise BudgetExceeded("wait for a connection", deadline.seconds)
            if not self._idle:
                self._opening += 1
                return None
            found = self._idle.pop()
            self._made_at[found.conn] = found.made_at
            return found

    def _sound(self, found: _Idle, deadline: Deadline) -> bool:
        now, s = boottime(), self._settings
        if found.conn.closed or now - found.made_at >= s.pool_lifetime_seconds:
            return False
        if now - found.used_at < s.pool_health_seconds:
            return True
        try:
            with within(found.conn, deadline):
                schema.run(found.conn, "ping")
        except psycopg.Error:
            return False
        return True

    def _open(self, deadline: Deadline) -> Connection:
        """A new connection, given out, in the place of `_opening` that the caller has taken."""
        conn: Connection | None = None
        try:
            conn = self._connect(deadline)
        finally:
            with self._free:
                self._opening -= 1
                if conn is not None:
                    self._made_at[conn] = boottime()
                self._free.notify()
        return conn

    def _connect(self, deadline: Deadline) -> Connection:
        left = deadline.remaining()
        if left < LEAST_SECONDS:
            raise BudgetExceeded(deadline.name, deadline.seconds)
        budget = min(left, self._database.connect_timeout_seconds)
        conn = connect(replace(self._database, connect_timeout_seconds=budget), lane=LANE)
        try:
            with within(conn, deadline):
                schema.run(conn, "session")
        except BaseException:
            _close(conn)
            raise
        self._metrics.count("pool_connects_total")
        return conn


def is_lost(conn: Connection, error: psycopg.Error) -> bool:
    """Whether the connection went with the error. Any other SQLSTATE came over one that works."""
    state = error.sqlstate or ""
    return conn.closed or not state or state.startswith(("08", "57P"))


def connect_once(database: DatabaseSettings, lane: str) -> Connection:
    """A connection beside the pool, for a command. Raises as `connect`; SettingsError for a
    password file that cannot be read."""
    try:
        return connect(database, lane=lane)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise SettingsError(
            f"LEDGER_PASSWORD_FILE {database.password_file} cannot be read ({reason}): mend it"
        ) from None


@contextmanager
def within(conn: Connection, deadline: Deadline) -> Iterator[None]:
    """Every wait of the block ends with the deadline, the slack of the client's side included."""
    left = max(LEAST_SECONDS, deadline.remaining())
    with conn.budget(left - CLIENT_SLACK_SECONDS, deadline.name):
        yield


def _close(conn: Connection) -> None:
    with contextlib.suppress(psycopg.Error, OSError):
        conn.close()
