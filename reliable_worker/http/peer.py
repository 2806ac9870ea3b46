"""One connection of the server: what it has read, what it still has to send, until when.

Floor 1; imports `message`, `protocol` and `jobs.events`. Nothing here waits; the server's loop says
when to go on.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from selectors import EVENT_READ, EVENT_WRITE

from reliable_worker.http.message import (
    Deferred,
    HttpError,
    Limits,
    Request,
    Response,
    Ticket,
)
from reliable_worker.http.protocol import Protocol
from reliable_worker.jobs.events import emit

READ, WRITE = EVENT_READ, EVENT_WRITE

Handler = Callable[[Request], Response | Deferred]
Refuse = Callable[[HttpError], Response]

# One turn of a connection reads this much and answers this many pipelined requests, then others
# have theirs.
READ_BYTES = 8_192
ANSWERS_PER_TURN = 4

# Bytes thrown away while lingering; a client that sends more than this after a refusal is reset.
LINGER_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class House:
    """What all connections of a server share. `take` keeps a late answer for the loop."""

    handler: Handler
    refuse: Refuse
    take: Callable[[Ticket, Response], None]
    limits: Limits


class Peer:
    """One connection. `interest` is what it waits for in the selector; 0, and no ticket: it ends.

    With a `ticket` the answer to its request is somebody else's work, and nothing is read.
    """

    def __init__(
        self,
        sock: socket.socket,
        house: House,
        now: float,
    ) -> None:
        self.sock = sock
        self.interest = READ
        self.registered = 0
        self.ticket: Ticket | None = None
        self.deferred: Deferred | None = None
        self._house = house
        self._limits = house.limits
        self._protocol = Protocol(self._limits)
        self._since = self._began = now
        self.deadline = now + self._head_seconds
        self._unsent = memoryview(b"")
        self._lingering = 0
        self._idle = False
        self._timed_out = False

    @property
    def silent(self) -> bool:
        """Nothing is asked, owed or being said."""
        busy = self.ticket is not None or bool(self._unsent) or self._lingering > 0
        return not busy and not self._protocol.begun

    @property
    def lingering(self) -> bool:
        """Its last answer is sent."""
        return self._lingering > 0

    def worth(self) -> tuple[int, float]:
        """Whose place is given away first: the lowest. Then the one that has waited longest."""
        if self._lingering or self._idle:
            return 0, self._since
        if self.ticket is not None:
            return 3, self._since
        return (1 if not self._unsent else 2), self._since

    def turn(self, now: float, response: Response | None = None) -> None:
        """Read, answer and write as far as it goes without waiting."""
        if response is not None:
            self._put(response, now)
        elif self._lingering:
            self._discard()
            return
        elif self.ticket is not None:
            return
        if not self._unsent and self.interest & READ:
            self._read(now)
        for _ in range(ANSWERS_PER_TURN):
            if not self._unsent and not self._answer(now):
                return
            if not self._send() or not self._begin_next(now):
                return
        # Pipelined requests are left, and no readable byte will tell us so: a writable socket will.
        self.interest = WRITE

    def time_out(self) -> Response | float | None:
        """What the client is told when its time is up; None: nothing, the connection ends. A number
        gives it so many seconds more."""
        if self.deferred is not None:
            return self.deferred.late()
        if self._protocol.begun and not self._unsent and not self._lingering:
            self._timed_out = True
            return self._house.refuse(HttpError(408, "Request Timeout"))
        return None

    @property
    def _head_seconds(self) -> float:
        return min(self._limits.head_seconds, self._limits.request_seconds)

    def _read(self, now: float) -> None:
        try:
            data = self.sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        if data and self._idle:
            self._idle = False
            self._since = self._began = now
            self.deadline = now + self._head_seconds
        self._protocol.receive(data)

    def _answer(self, now: float) -> bool:
        """Take the next request and make its response; False: there is none yet."""
        try:
            request = self._protocol.next_request()
            if request is None:
                self.interest = 0 if self._protocol.closing else READ
                if self._protocol.in_body:
                    self.deadline = self._began + self._limits.request_seconds
                return False
            answer = self._handled(request)
        except HttpError as error:
            answer = self._house.refuse(error)
        if isinstance(answer, Deferred):
            self.deferred = answer
            self.ticket = Ticket(self._house.take)
            self.interest = 0
            self._since = now
            self.deadline = now + answer.seconds
            return False
        self._put(answer, now)
        return True

    def _put(self, response: Response, now: float) -> None:
        """Begin to send."""
        self.ticket = self.deferred = None
        make = self._protocol.refuse if self._timed_out else self._protocol.respond
        self._unsent = memoryview(make(response))
        self._since = now
        self.deadline = now + self._limits.write_seconds

    def _handled(self, request: Request) -> Response | Deferred:
        try:
            return self._house.handler(request)
        except Exception as error:
            emit("http_failed", "error", error=error)
            return self._house.refuse(HttpError(500, "Internal Server Error"))

    def _send(self) -> bool:
        """Send what goes; False: the rest must wait for the socket."""
        try:
            self._unsent = self._unsent[self.sock.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            pass
        if self._unsent:
            self.interest = WRITE
        return not self._unsent

    def _begin_next(self, now: float) -> bool:
        """The answer is sent: begin anew, or say goodbye and return False."""
        self._since = now
        if self._protocol.closing:
            # A close with unread bytes resets the connection and may take the answer with it.
            self._lingering = LINGER_BYTES
            self.deadline = now + self._limits.linger_seconds
            self.interest = READ
            self.sock.shutdown(socket.SHUT_WR)
            self._discard()
            return False
        self._protocol.next_cycle()
        self._began = now
        self._idle = not self._protocol.begun
        seconds = self._limits.idle_seconds if self._idle else self._head_seconds
        self.deadline = now + seconds
        return True

    def _discard(self) -> None:
        try:
            data = self.sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        self._lingering -= len(data)
        if not data or self._lingering <= 0:
            self.interest = 0
