"""Whether the database answers: asked on a connection of its own, in a thread of its own.

Floor 6; imports http, postgres. A pool that is used up must not look like a database that is down,
else an orchestrator restarts a service that is merely busy. All who ask while a ping runs get the
answer of the next one.
"""

from __future__ import annotations

import contextlib
import threading
from queue import Empty, SimpleQueue

import psycopg

from reliable_worker.http.message import Deferred, Response, Ticket
from reliable_worker.jobs.errors import ReliableWorkerError
from reliable_worker.jobs.events import emit
from reliable_worker.ledger import schema
from reliable_worker.ledger.metrics import Metrics
from reliable_worker.ledger.pool import Pool
from reliable_worker.ledger.problems import problem
from reliable_worker.ledger.schema import LEDGER
from reliable_worker.ledger.settings import LedgerSettings
from reliable_worker.postgres.database import CLIENT_SLACK_SECONDS, Connection, connect
from reliable_worker.postgres.marks import check_range

LANE = "ledger-health"
# Between looks of its own, for the gauges.
LOOK_SECONDS = 5.0
# Between rounds of closing old connections and opening missing ones.
TEND_SECONDS = 1.0


class Health:
    """Answers /healthz and /readyz; looks by itself in between."""

    def __init__(self, settings: LedgerSettings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._asked: SimpleQueue[tuple[Ticket, bool]] = SimpleQueue()
        self._conn: Connection | None = None
        metrics.set("database_up", 1)

    def start(self, pool: Pool) -> None:
        """Begin to look, and to tend the pool."""

        def tend() -> None:
            pause = threading.Event()
            while not pause.wait(TEND_SECONDS):
                pool.tend()

        for name, run in (("health", self._run), ("pool", tend)):
            threading.Thread(target=run, name=name, daemon=True).start()

    def ask(self, *, ready: bool) -> Deferred:
        """204 within the budget, or 503. `ready`: the schema must fit as well."""
        late = problem("not_ready" if ready else "database_unavailable")
        return Deferred(
            lambda ticket: self._asked.put((ticket, ready)),
            self._settings.health_seconds,
            lambda: late,
        )

    def _run(self) -> None:
        while True:
            asked = []
            with contextlib.suppress(Empty):
                asked.append(self._asked.get(timeout=LOOK_SECONDS))
                while True:
                    asked.append(self._asked.get(block=False))
            up, fits = self._look(schema_too=not asked or any(ready for _, ready in asked))
            self._metrics.set("database_up", float(up))
            for ticket, ready in asked:
                if ready and not (up and fits):
                    ticket.answer(problem("not_ready"))
                else:
                    ticket.answer(Response(204, b"") if up else problem("database_unavailable"))

    def _look(self, *, schema_too: bool) -> tuple[bool, bool]:
        """(the database answers and takes writes, its schema fits)."""
        try:
            conn = self._conn
            if conn is None or conn.closed:
                conn = self._conn = connect(self._settings.health, lane=LANE)
            with conn.budget(self._settings.health_seconds - CLIENT_SLACK_SECONDS, "healthz"):
                ((standby,),) = schema.run(conn, "ping")
                if standby or not schema_too:
                    return not standby, True
                check_range(conn, LEDGER)
                for problems, at in schema.run(conn, "last_verification"):
                    self._metrics.set("verify_problems", problems)
                    self._metrics.set("verify_timestamp_seconds", at)
        except (psycopg.Error, OSError) as error:
            emit("health_failed", "warning", error=error)
            if self._conn is not None:
                with contextlib.suppress(psycopg.Error, OSError):
                    self._conn.close()
                self._conn = None
            return False, False
        except ReliableWorkerError as error:
            emit("schema_misfit", "error", error=error)
            return True, False
        return True, True
