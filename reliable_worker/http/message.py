"""What the two sides of the HTTP floor say to each other: limits, a request, a response, a refusal.

Floor 1; imports nothing of the package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one client may take. Seconds are measured by the clock the caller reads."""

    # The usual bound of servers and proxies: request line and headers together.
    head_bytes: int = 16_384
    # Lines of headers, and bytes of the target: no client of ours comes near either.
    header_count: int = 100
    target_bytes: int = 8_192
    # Nothing is sent to a page that is only read; a service that takes bodies says how large.
    body_bytes: int = 0
    # From the first byte (or the connect) to the last: dripping bytes extends nothing.
    request_seconds: float = 5.0
    # For the head alone, within the above; the whole of it unless said otherwise.
    head_seconds: float = 5.0
    # Shorter than the scrape interval of most collectors: an idle connection is cheap to reopen.
    idle_seconds: float = 15.0
    # From the first byte of the answer to its last.
    write_seconds: float = 5.0
    # After an answer that ends the connection: time for the client to read it before a reset.
    linger_seconds: float = 1.0
    # Then the connection is closed, so that no client keeps its place for ever.
    requests_per_connection: int = 1_000
    connections: int = 32
    # Refuse what readers of HTTP disagree about: bare line ends, folded lines, control characters,
    # a length said twice, a POST without one. A service behind a proxy must see what that saw.
    strict: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One whole request. `path` is the target without its query, as sent: nothing is decoded."""

    method: str
    path: str
    query: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes = b""

    def header(self, name: bytes) -> list[bytes]:
        """Every value of a header, in order; `name` in lower case."""
        return [value for key, value in self.headers if key == name]


@dataclass(frozen=True, slots=True)
class Response:
    """`headers` beside the length, type, date and connection, which the protocol adds."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()
    # The connection ends with it.
    close: bool = False


class HttpError(Exception):
    """This request is refused with `status` and one line of `reason`; the connection then ends."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason

    @property
    def response(self) -> Response:
        return Response(self.status, f"{self.reason}\n".encode())


class Ticket:
    """The right to answer one request later, from any thread, once."""

    __slots__ = ("_deliver", "_note", "_taken")

    def __init__(self, deliver: Callable[[Ticket, Response], None]) -> None:
        self._deliver = deliver
        self._taken = False
        self._note: Callable[[Response], Response] | None = None

    def noted(self, note: Callable[[Response], Response]) -> Ticket:
        """This ticket, every answer through it seen (and perhaps changed) by `note` first."""
        self._note = note
        return self

    @property
    def over(self) -> bool:
        """The client has its answer, or has left: nobody waits any more."""
        return self._taken

    def answer(self, response: Response) -> None:
        """Hand the response to the loop. The second one, or one that comes too late, is dropped."""
        if not self._taken:
            self._deliver(self, self._note(response) if self._note else response)

    def close(self) -> None:
        """The loop's side: nobody waits any more."""
        self._taken = True


@dataclass(frozen=True, slots=True)
class Deferred:
    """What a handler returns that cannot answer at once.

    `start` is called with the ticket, in the loop, and must not wait. After `seconds` without an
    answer `late` gives one, or so many seconds more.
    """

    start: Callable[[Ticket], None]
    seconds: float
    late: Callable[[], Response | float]
