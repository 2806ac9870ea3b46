"""`reliable-ledger serve`: checks, then one loop for the sockets until it is told to stop.

Floor 6; imports http, jobs, logs, postgres. Nothing is listened on before the database has
answered, its schema fits and the pool fits the server. SIGTERM: no new connections, what runs is
awaited until `shutdown_seconds`, then cut.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import types

from reliable_worker import logs
from reliable_worker.http.server import Server
from reliable_worker.jobs.deadline import Deadline, boottime
from reliable_worker.jobs.errors import ReliableWorkerError
from reliable_worker.jobs.events import emit
from reliable_worker.ledger import schema
from reliable_worker.ledger.metrics import Metrics
from reliable_worker.ledger.pool import connect_once
from reliable_worker.ledger.problems import problem
from reliable_worker.ledger.schema import LEDGER
from reliable_worker.ledger.service import Service, limits
from reliable_worker.ledger.settings import LedgerSettings
from reliable_worker.postgres.marks import SchemaMismatch, check_range
from reliable_worker.settings import SettingsError, split_address

# Clients may queue in the kernel while the loop is busy; the kernel caps it at somaxconn.
BACKLOG = 1024
# How exactly deadlines of connections are kept while there are any; looking costs a walk over all.
LOOK_SECONDS = 0.05
# The connection of /healthz stands beside the pool.
OWN_CONNECTIONS = 1
_WAKE = "wake"


class CannotServe(ReliableWorkerError):
    """The address cannot be listened on; one line for the operator."""


def serve(settings: LedgerSettings) -> int:
    """Serve until SIGTERM or SIGINT; returns 0, or 1 if requests were cut.

    Raises psycopg.Error (the database does not answer), SchemaMismatch, SettingsError, CannotServe.
    """
    check(settings)
    listener = _listen(settings.address)
    logs.take_stdout()
    logs.start(settings.log_level)
    logs.start_child()
    try:
        return _Loop(settings, listener).run()
    finally:
        logs.close()


def check(settings: LedgerSettings) -> None:
    """Whether it may start on this database. Raises as `serve` does."""
    with connect_once(settings.database, "ledger-start") as conn:
        check_range(conn, LEDGER)
        ((connections, may_enqueue),) = schema.run(conn, "server")
    wanted = settings.pool_max + OWN_CONNECTIONS + settings.reserve_connections
    if wanted > connections:
        raise SettingsError(
            f"LEDGER_POOL_MAX {settings.pool_max} + {OWN_CONNECTIONS} for /healthz +"
            f" LEDGER_RESERVE_CONNECTIONS {settings.reserve_connections} exceed the server's"
            f" {connections} connections: lower them or raise max_connections"
        )
    if settings.outbox and may_enqueue is None:
        raise SchemaMismatch(
            "the database has no table of jobs for the outbox: run `reliable-worker migrate up`,"
            " or set LEDGER_OUTBOX=off"
        )
    if settings.outbox and not may_enqueue:
        raise SchemaMismatch(
            "this role may not enqueue jobs for the outbox: GRANT INSERT ON jobs TO it,"
            " or set LEDGER_OUTBOX=off"
        )


class _Loop:
    """The sockets' thread: it alone reads and writes them, keeps deadlines, and never waits."""

    def __init__(self, settings: LedgerSettings, listener: socket.socket) -> None:
        self._settings = settings
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._reader, self._writer = socket.socketpair()
        self._woken = False
        self._stopping: Deadline | None = None
        metrics = Metrics()
        self._service = Service(settings, metrics)
        self._server = Server(
            [listener],
            self._service.handle,
            limits(settings),
            refuse=self._service.refuse,
            wake=self._wake,
        )
        metrics.watch("http_connections", lambda: float(self._server.connections))

    def run(self) -> int:
        """Serve until stopped; the exit code."""
        for end in (self._reader, self._writer):
            end.setblocking(False)
        self._selector.register(self._reader, selectors.EVENT_READ, _WAKE)
        self._server.register(self._selector)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self._service.pool.tend()
        self._service.start()
        emit("ledger_listening", address=_text(self._listener))
        while not self._over():
            self._turn()
        return self._end()

    def _turn(self) -> None:
        seconds = LOOK_SECONDS if self._server.connections or self._stopping else 1.0
        self._woken = False
        self._server.deliver(boottime())
        for key, mask in self._selector.select(seconds):
            if key.data is _WAKE:
                with contextlib.suppress(BlockingIOError):
                    self._reader.recv(4096)
                self._woken = False
            else:
                self._server.handle(key, mask, boottime())
        now = boottime()
        self._server.deliver(now)
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._server.expire(now)

    _look_at = 0.0

    def _over(self) -> bool:
        if self._stopping is None:
            return False
        if not self._service.draining:
            self._service.draining = True
            emit("shutdown_started")
            self._server.stop_accepting()
        return self._stopping.passed or not self._server.owing

    def _end(self) -> int:
        """Cut what still runs; say so."""
        assert self._stopping is not None
        cut = self._server.cut(problem("outcome_unknown", close=True), boottime())
        if cut:
            self._service.pool.cancel()
        self._server.close()
        took = self._stopping.seconds - self._stopping.remaining()
        emit("shutdown_complete", duration_seconds=took, killed=cut)
        return 1 if cut else 0

    def _on_signal(self, number: int, frame: types.FrameType | None) -> None:
        if self._stopping is None:
            self._stopping = Deadline(self._settings.shutdown_seconds, "LEDGER_SHUTDOWN_SECONDS")

    def _wake(self) -> None:
        """Called in the threads that answer; one byte wakes for any number of answers."""
        if not self._woken:
            self._woken = True
            with contextlib.suppress(BlockingIOError, OSError):
                self._writer.send(b"\0")


def leave(code: int) -> None:
    """End the process without waiting for threads that hang on a silent database."""
    os._exit(code)


def _listen(address: str) -> socket.socket:
    host, port = split_address(address)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        # A restart must not wait for the connections of its predecessor to be forgotten.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Answers are written whole: nothing is gained by holding a small one back.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not a host name"
        raise CannotServe(
            f"LEDGER_ADDRESS {address} cannot be used: {reason}; choose another"
        ) from None
    return listener


def _text(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
