"""Answers to GET: accounts, their entries, transfers. Floor 6; imports http, postgres.

Plain reads of committed rows: a transfer is seen whole or not at all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from urllib.parse import unquote

import psycopg

from reliable_worker.http.message import Response
from reliable_worker.jobs.deadline import Deadline
from reliable_worker.jobs.errors import BudgetExceeded
from reliable_worker.jobs.events import emit
from reliable_worker.ledger import schema
from reliable_worker.ledger.decode import MAX_ID, Refused, decode_number
from reliable_worker.ledger.metrics import Metrics
from reliable_worker.ledger.pool import Pool
from reliable_worker.ledger.problems import problem
from reliable_worker.postgres.database import DeadlineExceeded, Fault, classify

MOST_ENTRIES = 100
# RFC 3339 with a zone: a time without one means another instant everywhere.
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_BAD_TIME = {"22007", "22008", "22009"}  # the shape of a time, and none of the calendar's


class Reads:
    """The read side. One object for all threads; raises Refused for what is malformed."""

    def __init__(self, pool: Pool, metrics: Metrics) -> None:
        self._pool = pool
        self._metrics = metrics

    def account(self, account_id: int, query: str, deadline: Deadline) -> Response:
        """Balance now, or as of a time."""
        asked = _parameters(query, {"as_of"})
        if "as_of" not in asked:
            rows = self._rows("account", [account_id], deadline)
            return _found(
                {"id": account_id, "balance": balance, "updated_at": at} for balance, at in rows
            )
        if not _TIME.fullmatch(asked["as_of"]):
            raise Refused("invalid_parameter")
        rows = self._rows("account_as_of", [account_id, asked["as_of"]], deadline)
        if rows and rows[0][0] is None:
            raise Refused("invalid_parameter")  # not yet
        return _found(
            {"id": account_id, "balance": balance, "as_of": asked["as_of"]} for (balance,) in rows
        )

    def entries(self, account_id: int, query: str, deadline: Deadline) -> Response:
        """A page of entries, oldest first; `next` is the `after` of the following page."""
        asked = _parameters(query, {"after", "limit"})
        after = decode_number(asked.get("after", "0"), 0, MAX_ID)
        limit = decode_number(asked.get("limit", str(MOST_ENTRIES)), 1, MOST_ENTRIES)
        rows = self._rows("entries", [account_id, after, limit], deadline)
        if not rows and not self._rows("account", [account_id], deadline):
            return problem("not_found")
        names = ("sequence", "transfer_id", "amount", "balance_after", "created_at")
        page = [dict(zip(names, row, strict=True)) for row in rows]
        return _json({"entries": page, "next": rows[-1][0] if len(rows) == limit else None})

    def transfer(self, transfer_id: int, query: str, deadline: Deadline) -> Response:
        """One transfer."""
        _parameters(query, set())
        names = ("from_id", "to_id", "amount", "status", "created_at", "completed_at")
        rows = self._rows("transfer_show", [transfer_id], deadline)
        return _found({"id": transfer_id, **dict(zip(names, row, strict=True))} for row in rows)

    def _rows(
        self, name: str, params: list[object], deadline: Deadline
    ) -> list[tuple[object, ...]]:
        with self._pool.lent(deadline) as conn:
            return schema.run(conn, name, params)

    def failed(self, error: Exception) -> Response:
        """The answer for an error of a read."""
        if isinstance(error, psycopg.Error) and error.sqlstate in _BAD_TIME:
            return problem("invalid_parameter")
        emit("read_failed", "warning", error=error)
        if isinstance(error, DeadlineExceeded | BudgetExceeded):
            by_client = isinstance(error, DeadlineExceeded)
            if by_client:
                self._metrics.count("query_deadline_expiries_total", "client")
            return problem("deadline_exceeded")
        if getattr(error, "sqlstate", None) == "57014":
            self._metrics.count("query_deadline_expiries_total", "server")
            return problem("deadline_exceeded")
        if classify(error) in (Fault.INFRASTRUCTURE, Fault.TRANSIENT):
            return problem("database_unavailable")
        return problem("internal_error")


def _parameters(query: str, known: set[str]) -> dict[str, str]:
    """The query's parameters, each at most once. Raises Refused."""
    found: dict[str, str] = {}
    for part in query.split("&") if query else []:
        name, equals, value = part.partition("=")
        if not equals or name not in known or name in found:
            raise Refused("invalid_parameter")
        found[name] = unquote(value)
    return found


def _found(values: Iterable[Mapping[str, object]]) -> Response:
    """The first value, or 404."""
    for value in values:
        return _json(value)
    return problem("not_found")


def _json(value: Mapping[str, object]) -> Response:
    return Response(200, json.dumps(value, separators=(",", ":")).encode(), "application/json")
