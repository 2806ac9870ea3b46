"""The parent's window: /metrics, /livez, /readyz on METRICS_ADDRESS.

Floor 5, in the parent; imports http, jobs and settings. It is bound before the first fork, so that
a taken port ends the start before anything is claimed, and served by the supervisor's own loop:

    admin = Admin(settings.metrics_address, metrics=collector.render, readiness=self.readiness)
    admin.register(selector)                      # every key of its sockets has `data is admin`
    ...
    for key, mask in selector.select(timeout):    # timeout no later than admin.next_deadline()
        if key.data is admin: admin.handle(key, mask, now)
    admin.expire(now)

A forked child calls `close_in_child()`.
"""

from __future__ import annotations

import json
import selectors
import socket
from collections.abc import Callable, Mapping

from reliable_worker.http.message import Limits, Request, Response
from reliable_worker.http.server import Server
from reliable_worker.jobs.events import emit

# Clients may queue up in the kernel while the loop is busy; more than any flood we answer (F104).
BACKLOG = 1024

# Several collectors within a second see the same numbers and cost one rendering.
CACHE_SECONDS = 1.0

# A small body is read and refused by its method; larger ones are refused unread.
LIMITS = Limits(body_bytes=1024)

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_INDEX = b"""\
/metrics  numbers for Prometheus
/livez    the supervisor's loop turns
/readyz   it can run jobs
"""

Readiness = tuple[bool, Mapping[str, object]]


class AdminError(Exception):
    """The address cannot be served; one line for the operator."""


class Admin:
    """The admin server. Raises AdminError where the address is malformed, foreign or taken."""

    def __init__(
        self,
        address: str,
        *,
        metrics: Callable[[], bytes],
        readiness: Callable[[], Readiness],
        limits: Limits | None = None,
    ) -> None:
        """Bind `host:port` or `[v6]:port` (port 0: any free one) and listen.

        `metrics()` gives the text exposition; `readiness()` gives whether jobs can run and why (a
        small JSON object without secrets). Both are called in the loop and must not wait.
        """
        self._metrics = metrics
        self._readiness = readiness
        self._cached: tuple[float, bytes] | None = None
        self._now = 0.0
        listener = _listen(address)
        self.address = _text(listener)
        self._server = Server([listener], self._route, limits or LIMITS)

    def register(self, selector: selectors.BaseSelector) -> None:
        """Join the loop, and say where we listen (event admin_listening)."""
        emit("admin_listening", address=self.address)
        self._server.register(selector, self)

    def handle(self, key: selectors.SelectorKey, mask: int, now: float) -> None:
        """Serve one ready key of ours; `now` is monotonic seconds. Never waits, never raises."""
        self._now = now
        self._server.handle(key, mask, now)

    def next_deadline(self) -> float | None:
        """The latest moment, on the clock of `now`, for the next `expire`; None: no need."""
        return self._server.next_deadline()

    def expire(self, now: float) -> None:
        """Close connections past their deadline."""
        self._server.expire(now)

    def close(self) -> None:
        """Stop listening, close every connection, leave the selector."""
        self._server.close()

    def close_in_child(self) -> None:
        """In a forked child: give up the descriptors without touching parent or clients."""
        self._server.close_in_child()

    def _route(self, request: Request) -> Response:
        routes: dict[str, Callable[[], Response]] = {
            "/": lambda: Response(200, _INDEX),
            "/metrics": self._show_metrics,
            "/livez": lambda: Response(200, b"ok\n"),
            "/readyz": self._show_readiness,
        }
        route = routes.get(request.path)
        if route is None:
            return Response(404, b"Not Found\n")
        if request.method not in ("GET", "HEAD"):
            return Response(405, b"Method Not Allowed\n", headers=(("Allow", "GET, HEAD"),))
        return route()

    def _show_metrics(self) -> Response:
        if self._cached is None or self._now - self._cached[0] >= CACHE_SECONDS:
            self._cached = (self._now, self._metrics())
        return Response(200, self._cached[1], METRICS_TYPE)

    def _show_readiness(self) -> Response:
        ready, reason = self._readiness()
        body = json.dumps({"ready": ready, **reason}, default=str) + "\n"
        return Response(200 if ready else 503, body.encode(), "application/json")


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or "[" in host or not port.isdecimal() or not port.isascii() or int(port) > 65535:
        raise AdminError(f"METRICS_ADDRESS {address!r} is not host:port")
    listener: socket.socket | None = None
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        # A restart must not wait for the connections of its predecessor to be forgotten.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
    except (OSError, UnicodeError) as error:
        if listener is not None:
            listener.close()
        raise AdminError(_explain(address, error)) from None
    return listener


def _explain(address: str, error: Exception) -> str:
    reason = getattr(error, "strerror", None) or "not a host name"
    return (
        f"METRICS_ADDRESS {address} cannot be used: {reason}"
        " (another worker on this host? give each its own METRICS_ADDRESS)"
    )


def _text(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
