"""A lane: one connection of the maintenance process, kept up through outages.

On a job's way: below every service of this floor; each call to the database goes through here, so
that it has a budget and its outcome is known to the hold-back. Floor 4. Imports postgres and jobs.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.events import emit
from reliable_worker.maintenance.holdback import Holdback
from reliable_worker.postgres.database import Connection, Fault, classify, connect
from reliable_worker.settings import Settings

T = TypeVar("T")

# Connections retire up to a tenth of their lifetime early, not all at one moment.
_LIFETIME_JITTER = 0.1


class Lane:
    """One connection with a name. Used by one thread."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        boot: str,
        *,
        holdback: Holdback,
        contact: Callable[[float], None],
    ) -> None:
        self.name = name
        self._settings = settings
        self._boot = boot
        self._holdback = holdback
        self._contact = contact  # told the time of every answer
        self._conn: Connection | None = None
        self._retires_at = 0.0

    @property
    def connected(self) -> bool:
        """Whether it has a connection; may be asked from another thread."""
        return self._conn is not None

    def call(self, statement: Callable[[Connection], T]) -> T:
        """Run `statement` on the connection within query_timeout_seconds, connecting first if
        need be. Raises what it raises; a connection of no use any more is closed.
        """
        conn = self._connected()

        def within_budget() -> T:
            with conn.budget(self._settings.query_timeout_seconds, "query_timeout_seconds"):
                return statement(conn)

        return self._send(within_budget)

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.close()

    def _connected(self) -> Connection:
        if self._conn is not None and boottime() >= self._retires_at:
            self.close()
        if self._conn is None:
            self._conn = self._send(
                lambda: connect(self._settings, lane=self.name, boot=self._boot)
            )
            lifetime = self._settings.pool_lifetime_seconds
            self._retires_at = boottime() + lifetime * (1 - random.uniform(0, _LIFETIME_JITTER))
            emit("database_connected", lane=self.name)
        return self._conn

    def _send(self, ask: Callable[[], T]) -> T:
        sent_at = boottime()
        try:
            answer = ask()
        except Exception as error:
            self._holdback.failed(self.name, sent_at)
            if classify(error) is Fault.INFRASTRUCTURE or (self._conn and self._conn.closed):
                self.close()
            raise
        answered_at = boottime()
        self._holdback.answered(self.name, sent_at, answered_at)
        self._contact(answered_at)
        return answer
