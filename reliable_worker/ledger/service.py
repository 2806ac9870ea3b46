"""The routes: from a whole request to its answer, or to the thread that makes it.

Floor 6; imports http, jobs. What can be refused without the database is refused in the loop, before
a request counts as waiting. Each answer is counted; each transfer is a line of the log, with its
key, duration and code, never its body.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import psycopg

from reliable_worker.http.message import (
    Deferred,
    HttpError,
    Limits,
    Request,
    Response,
    Ticket,
)
from reliable_worker.jobs.deadline import Deadline, boottime
from reliable_worker.jobs.errors import BudgetExceeded
from reliable_worker.jobs.events import emit
from reliable_worker.ledger import metrics as exposition
from reliable_worker.ledger import openapi
from reliable_worker.ledger.decode import (
    MAX_BODY_BYTES,
    MAX_ID,
    Refused,
    decode_key,
    decode_number,
    decode_transfer,
)
from reliable_worker.ledger.health import Health
from reliable_worker.ledger.metrics import Metrics
from reliable_worker.ledger.pool import Pool
from reliable_worker.ledger.problems import code_of, problem
from reliable_worker.ledger.reads import Reads
from reliable_worker.ledger.settings import LedgerSettings
from reliable_worker.ledger.transfers import TransferFailed, Transfers
from reliable_worker.ledger.workers import Workers

COMPLETED = b'{"status":"completed"}'
_JSON = re.compile(rb'application/json[ \t]*(;[ \t]*charset[ \t]*=[ \t]*"?utf-8"?[ \t]*)?', re.I)
_ACCOUNT = re.compile(r"/accounts/([^/]+)(/entries)?")
_TRANSFER = re.compile(r"/transfers/([^/]+)")

Answer = Response | Deferred
Read = Callable[[int, str, Deadline], Response]


class Service:
    """The handler of the HTTP server. `draining` is set once, by the loop."""

    def __init__(self, settings: LedgerSettings, metrics: Metrics) -> None:
        self.pool = Pool(settings, metrics)
        self.health = Health(settings, metrics)
        self.draining = False
        self._metrics = metrics
        self._transfers = Transfers(settings, self.pool, metrics)
        self._reads = Reads(self.pool, metrics)
        self._workers = Workers(
            settings.pool_max,
            settings.max_waiting,
            settings.pool_wait_seconds,
            settings.request_seconds,
        )
        metrics.watch("requests_waiting", lambda: float(self._workers.waiting))
        metrics.watch("draining", lambda: float(self.draining))
        self._fixed: dict[str, Callable[[], Answer]] = {
            "/healthz": lambda: self.health.ask(ready=False),
            "/readyz": self._readiness,
            "/metrics": lambda: Response(200, metrics.render(), exposition.CONTENT_TYPE),
            "/openapi.json": lambda: Response(200, openapi.document(), "application/json"),
        }

    def start(self) -> None:
        """Start the threads."""
        self.health.start(self.pool)
        self._workers.start()

    def handle(self, request: Request) -> Answer:
        """The answer to a request, counted and timed. Never waits."""
        begun = boottime()
        route, allowed, act = self._route(request)
        if act is None:
            answer: Answer = problem("not_found")
        elif request.method not in allowed.split(", "):
            answer = problem("method_not_allowed", ("Allow", allowed))
        else:
            try:
                answer = act()
            except Refused as error:
                self._metrics.count("http_refusals_total", error.code)
                answer = problem(error.code)
        return self._noted(answer, route, begun)

    def refuse(self, error: HttpError) -> Response:
        """The answer to what is no request of HTTP's, or did not come in time."""
        code = code_of(error)
        self._metrics.count("http_refusals_total", code)
        self._metrics.count("http_requests_total", "-", str(error.status))
        return problem(code, close=True)

    def _route(self, request: Request) -> tuple[str, str, Callable[[], Answer] | None]:
        """(route for the metrics, methods it allows, what to do)."""
        path = request.path
        if path == "/transfers":
            return path, "POST", lambda: self._post(request)
        if path in self._fixed:
            return path, "GET, HEAD", self._fixed[path]
        if matched := _ACCOUNT.fullmatch(path):
            reads: Read = self._reads.account
            route = "/accounts/{id}"
            if matched[2]:
                reads, route = self._reads.entries, "/accounts/{id}/entries"
        elif matched := _TRANSFER.fullmatch(path):
            reads, route = self._reads.transfer, "/transfers/{id}"
        else:
            return "-", "", None
        return route, "GET, HEAD", lambda: self._read(reads, matched[1], request.query)

    def _readiness(self) -> Answer:
        return problem("not_ready") if self.draining else self.health.ask(ready=True)

    def _post(self, request: Request) -> Answer:
        """POST /transfers."""
        types = request.header(b"content-type")
        if len(types) != 1 or not _JSON.fullmatch(types[0]):
            raise Refused("unsupported_media_type")
        if len(request.body) > MAX_BODY_BYTES:
            raise Refused("body_too_large")
        if request.query:
            raise Refused("invalid_parameter")
        key = decode_key(request.header(b"idempotency-key"))
        asked = decode_transfer(request.body)
        if self.draining:
            return self._turn_away("draining")
        begun = boottime()

        def work(deadline: Deadline) -> Response:
            facts: dict[str, object] = {"transfer_key": key}
            try:
                moved = self._transfers.move(key, asked, deadline)
            except TransferFailed as error:
                facts["code"] = error.code
                response = problem(error.code)
            except Exception as error:
                emit("request_failed", "error", error=error, **facts)
                facts["code"] = "internal_error"
                response = problem("internal_error")
            else:
                facts |= {"code": "completed", "transfer_id": moved.transfer_id}
                headers = [("Location", f"/transfers/{moved.transfer_id}")]
                if moved.replayed:
                    facts["code"] = "replayed"
                    headers.append(("Idempotency-Replayed", "true"))
                response = Response(200, COMPLETED, "application/json", tuple(headers))
            seconds = boottime() - begun
            emit("transfer_answered", status=response.status, duration_seconds=seconds, **facts)
            return response

        return self._workers.defer(work, self._turn_away)

    def _read(self, read: Read, number: str, query: str) -> Answer:
        """A GET that asks the database."""
        try:
            wanted = decode_number(number, 1, MAX_ID)
        except Refused:
            return problem("not_found")

        def work(deadline: Deadline) -> Response:
            try:
                return read(wanted, query, deadline)
            except Refused as error:
                self._metrics.count("http_refusals_total", error.code)
                return problem(error.code)
            except (psycopg.Error, BudgetExceeded, OSError) as error:
                return self._reads.failed(error)

        return self._workers.defer(work, self._turn_away)

    def _turn_away(self, code: str) -> Response:
        if code in ("too_many_waiting", "draining"):
            self._metrics.count("shed_total", code)
        return problem(code)

    def _noted(self, answer: Answer, route: str, begun: float) -> Answer:
        """The same answer, counted when it is given; the last one where we are draining."""

        def note(response: Response) -> Response:
            self._metrics.count("http_requests_total", route, str(response.status))
            self._metrics.observe("request_seconds", boottime() - begun, route)
            return replace(response, close=True) if self.draining else response

        if isinstance(answer, Response):
            return note(answer)
        deferred = answer

        def start(ticket: Ticket) -> None:
            # What the loop itself decides goes another way, through `late`.
            deferred.start(ticket.noted(note))

        def late() -> Response | float:
            told = deferred.late()
            return told if isinstance(told, float) else note(told)

        return Deferred(start, deferred.seconds, late)


def limits(settings: LedgerSettings) -> Limits:
    """What one client may take of this service."""
    return Limits(
        head_bytes=16_384,
        header_count=64,
        target_bytes=1_024,
        body_bytes=MAX_BODY_BYTES,
        head_seconds=settings.header_seconds,
        request_seconds=settings.read_seconds,
        idle_seconds=settings.idle_seconds,
        write_seconds=settings.write_seconds,
        # a client of a busy service keeps its connection for as long as it has work
        requests_per_connection=100_000,
        connections=settings.max_connections,
        strict=True,
    )
