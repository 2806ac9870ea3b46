"""Connections under a deadline, and what their errors mean.

Floor 1: imports jobs and settings. statement_timeout alone is not enough: a stopped backend or a
silent network never sends the timeout, so every wait of a `Connection` also ends on this side.
The server's limit comes first (its error is the clearer one), ours half a second later.
"""

from __future__ import annotations

import math
import select
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from psycopg import conninfo as pq_conninfo
from psycopg import errors as pg_errors
from psycopg.rows import TupleRow
from psycopg_pool import ConnectionPool, PoolTimeout

from reliable_worker.jobs.deadline import Deadline, boottime
from reliable_worker.jobs.errors import BudgetExceeded, ReliableWorkerError
from reliable_worker.postgres import copies
from reliable_worker.postgres.dsn import find_mistake
from reliable_worker.settings import Settings

T = TypeVar("T")

# The client waits so much longer than the server is allowed to work: on a healthy connection the
# server's own, clearer error always arrives first.
CLIENT_SLACK_SECONDS = 0.5

# Keepalives find a dead peer between statements, tcp_user_timeout one that stopped in the middle
# of ours (keepalives do not run while data is unacknowledged).
_KEEPALIVES = {
    "keepalives": "1",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "2",
}

# A backend notices every so often, while it works, that its client is gone; without it a dead
# worker's statement is found only when it ends.
_CHECK_CLIENT = "client_connection_check_interval"
_CHECK_CLIENT_MS = 500
# Servers on platforms without the needed poll() flag refuse the setting at connect.
_REFUSED_SETTING = "22023"


class Fault(StrEnum):
    """What an error of the database says about whose fault it is."""

    INFRASTRUCTURE = "infrastructure"  # the database or the way to it: nobody's attempt
    TRANSIENT = "transient"  # a lock or a serialisation: the same statement may go through later
    SCHEMA = "schema"  # tables other than this code expects
    FAILURE = "failure"  # the statement itself


class DeadlineExceeded(psycopg.OperationalError):
    """No answer within the client's deadline; the connection was closed."""


class InvalidUrl(ReliableWorkerError, ValueError):
    """DATABASE_URL is not a connection string; never repeats it."""


# Classes of SQLSTATE (PostgreSQL documentation, appendix A): 08 connection, 53 resources,
# 57P shutdown and crash, 58 system, XX internal, 28 refused, 3D no such database.
_INFRASTRUCTURE_CLASSES = ("08", "53", "57P", "58", "XX", "28", "3D", "F0")
# 25006: a read-only server, in the middle of a failover.
_INFRASTRUCTURE = {"25006"}
_TRANSIENT = {"40001", "40P01", "55P03", "57014", "25P03", "25P04"}
_SCHEMA = {"42P01", "42703", "42883", "3F000"}


def classify(error: BaseException) -> Fault:
    """The fault behind an error raised while talking to the database."""
    if isinstance(error, BudgetExceeded | PoolTimeout | DeadlineExceeded):
        return Fault.INFRASTRUCTURE
    if not isinstance(error, psycopg.Error):
        return Fault.FAILURE
    state = error.sqlstate or ""
    if not state:
        # libpq's own errors (connection closed, refused, cut) carry no SQLSTATE
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return Fault.INFRASTRUCTURE if lost else Fault.FAILURE
    if state in _INFRASTRUCTURE or state.startswith(_INFRASTRUCTURE_CLASSES):
        return Fault.INFRASTRUCTURE
    if state in _TRANSIENT:
        return Fault.TRANSIENT
    if state in _SCHEMA:
        return Fault.SCHEMA
    return Fault.FAILURE


def proves_rollback(error: BaseException) -> bool:
    """True when an error of COMMIT says that nothing was committed.

    An answer with a SQLSTATE is the server's word, except those sent while it goes down.
    """
    state = getattr(error, "sqlstate", None) or ""
    return bool(state) and not state.startswith(("08", "57P"))


class Connection(psycopg.Connection[TupleRow]):
    """A psycopg connection whose every wait has a deadline."""

    _limit: Deadline | None = None
    _fallback_seconds: float = 3.0  # the spec's budget of one query, until connect() sets it
    backend: tuple[int, str] | None = None
    used_at: float = 0.0
    lane: str = "other"  # what it is for: the label of its statements' metrics

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        copies.watch(self)

    @contextmanager
    def budget(self, seconds: float, name: str) -> Iterator[None]:
        """Everything inside ends within `seconds` + slack; an outer, shorter budget stays."""
        before = self._limit
        limit = Deadline(seconds + CLIENT_SLACK_SECONDS, name)
        if before is None or limit.at < before.at:
            self._limit = limit
        try:
            yield
        finally:
            self._limit = before
            self.used_at = boottime()

    def wait(
        self,
        gen: Generator[Any, Any, T],
        interval: float = 0.1,  # how soon a signal is noticed; psycopg's own default
        timeout: float | None = None,
    ) -> T:
        """psycopg's wait, ended by the budget; raises `DeadlineExceeded` and closes."""
        limit = self._limit or Deadline(self._fallback_seconds, "query_timeout_seconds")
        left = limit.remaining()
        try:
            return super().wait(gen, interval, left if timeout is None else min(left, timeout))
        except pg_errors._WaitTimeout:
            if timeout is not None and timeout <= left:
                raise  # the caller's own, shorter wait (notifies): not a failure
            self.pgconn.finish()
            raise DeadlineExceeded(
                f"no answer from the database within {limit.name} "
                f"({limit.seconds:g} s); the connection was closed"
            ) from None

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> Generator[Any, Any, Any]:
        # psycopg counts connect_timeout in whole seconds, at least 2, per host; a budget counts
        # in all and may be shorter. The wait calls this generator every 0.1 s.
        gen = super()._connect_gen(conninfo)
        limit: Deadline | None = getattr(_connecting, "limit", None)
        ready: Any = None
        try:
            while True:
                wanted = gen.send(ready)
                ready = yield wanted
                if limit is not None and limit.passed:
                    raise pg_errors.ConnectionTimeout(
                        f"no connection within {limit.name} ({limit.seconds:g} s)"
                    )
        except StopIteration as ended:
            return ended.value
        finally:
            gen.close()


# The calling thread's running connect.
_connecting = threading.local()


def check_dsn(url: str) -> dict[str, Any]:
    """The parts of a connection string; raises `InvalidUrl` with one line that hides it."""
    try:
        given = dict(pq_conninfo.conninfo_to_dict(url))
    except psycopg.Error:
        raise InvalidUrl(
            "DATABASE_URL is not a PostgreSQL connection string; "
            "write it as postgresql://user@host:5432/database"
        ) from None
    mistake = find_mistake(given)
    if mistake:
        raise InvalidUrl(f"DATABASE_URL cannot be used: {mistake}; mend it")
    return given


def parameters(settings: Settings, *, lane: str, boot: str = "") -> dict[str, Any]:
    """The connection's parameters, the password read afresh from `password_file`.

    Raises `InvalidUrl`, or `OSError` when the password file cannot be read.
    """
    given = check_dsn(settings.database_url)
    query_ms = int((settings.query_timeout_seconds + CLIENT_SLACK_SECONDS) * 1000)
    made: dict[str, Any] = {
        "target_session_attrs": "read-write",  # a standby could only refuse our writes
        # Without it texts would be sent in the database's encoding, SQL_ASCII's being none.
        "client_encoding": "utf8",
        "tcp_user_timeout": str(query_ms),
        **_KEEPALIVES,
        **given,
        "application_name": f"rw:{boot}:{lane}",
        # the floor psycopg knows; the exact budget is kept by Connection._connect_gen
        "connect_timeout": str(max(2, math.ceil(settings.connect_timeout_seconds))),
    }
    if settings.password_file:
        made["password"] = Path(settings.password_file).read_text(encoding="utf-8").strip("\r\n")
    made["options"] = " ".join([str(given.get("options") or ""), *_session(settings, lane)]).strip()
    return made


def _session(settings: Settings, lane: str) -> list[str]:
    """Session settings as start-up options: RESET ALL and DISCARD ALL return to these."""
    statement = settings.statement_timeout_seconds
    if lane == "control":
        # the claim shares this lane with the renewals: it must not hold it longer than a claim
        statement = min(settings.claim_timeout_seconds, statement)
    idle_ms = int(settings.idle_in_transaction_timeout_seconds * 1000)
    return [
        f"-c statement_timeout={int(statement * 1000)}",
        f"-c lock_timeout={int(settings.lock_timeout_seconds * 1000)}",
        f"-c idle_in_transaction_session_timeout={idle_ms}",
        r"-c default_transaction_isolation=read\ committed",
        # A generic plan made while the table was empty reads all of it after a burst: a claim
        # took 4 s among 500,000 rows. Planning anew costs 0.02 to 0.3 ms.
        "-c plan_cache_mode=force_custom_plan",
        f"-c {_CHECK_CLIENT}={_CHECK_CLIENT_MS}",
    ]


def connect(
    settings: Settings, *, lane: str, boot: str = "", autocommit: bool = True
) -> Connection:
    """A new connection, within connect_timeout_seconds in all.

    Raises psycopg.Error (see `classify`), `InvalidUrl`, or `OSError` for an unreadable
    password file.
    """
    made = parameters(settings, lane=lane, boot=boot)
    return _connect(made, settings, lane, autocommit=autocommit)


def _connect(
    made: dict[str, Any], settings: Settings, lane: str, *, autocommit: bool
) -> Connection:
    _connecting.limit = Deadline(settings.connect_timeout_seconds, "connect_timeout_seconds")
    try:
        try:
            conn = Connection.connect(autocommit=autocommit, **made)
        except psycopg.OperationalError as error:
            if error.sqlstate != _REFUSED_SETTING and _CHECK_CLIENT not in str(error):
                raise
            options = str(made["options"])
            made["options"] = options.replace(f"-c {_CHECK_CLIENT}={_CHECK_CLIENT_MS}", "")
            conn = Connection.connect(autocommit=autocommit, **made)
    finally:
        _connecting.limit = None
    conn._fallback_seconds = settings.query_timeout_seconds + CLIENT_SLACK_SECONDS
    conn.used_at = boottime()
    conn.lane = lane
    return conn


class Pool(ConnectionPool[Connection]):
    """A pool that lends no connection which the server has ended while it lay idle.

    After a restart all of them are such; one job could meet four in a row, which is more than its
    refunds. The pool's own check would pause for a second and longer after each it finds.
    """

    def getconn(self, timeout: float | None = None) -> Connection:
        """A connection within `timeout` seconds; raises `PoolTimeout`."""
        limit = Deadline(self.timeout if timeout is None else timeout, "pool")
        while True:
            conn = super().getconn(limit.remaining())
            if not _spoken_to(conn):
                return conn
            conn.close()
            self.putconn(conn)


def _spoken_to(conn: Connection) -> bool:
    """Whether the server said something to an idle connection: hardly ever anything but its end."""
    if conn.closed:
        return True
    poll = select.poll()
    poll.register(conn.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def make_pool(settings: Settings, *, lane: str, boot: str, size: int) -> Pool:
    """A pool of at most `size` connections for the handlers' transactions; not yet open.

    Open it after the fork only: its threads would not exist in the child.
    """

    def configure(conn: Connection) -> None:
        conn._fallback_seconds = settings.query_timeout_seconds + CLIENT_SLACK_SECONDS
        conn.used_at = boottime()
        conn.lane = lane

    def check(conn: Connection) -> None:
        # One round trip per job would cost more than it finds: only a connection that lay idle
        # for the health period is asked.
        if boottime() - conn.used_at >= settings.pool_health_seconds:
            with conn.budget(settings.query_timeout_seconds, "query_timeout_seconds"):
                ConnectionPool.check_connection(conn)

    return Pool(
        lambda: pq_conninfo.make_conninfo("", **parameters(settings, lane=lane, boot=boot)),
        connection_class=Connection,
        kwargs={"autocommit": True},
        min_size=0,
        max_size=size,
        open=False,
        configure=configure,
        check=check,
        name=lane,
        timeout=settings.query_timeout_seconds,
        max_lifetime=settings.pool_lifetime_seconds,
        max_idle=settings.pool_idle_seconds,
        # The pool doubles its pauses up to 128 s; given up after this, the next getconn starts
        # over, so a database that is back is found within seconds.
        reconnect_timeout=settings.connect_timeout_seconds + 1.0,
        num_workers=2,
    )
