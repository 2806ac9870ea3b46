"""One connection through the proxy: what is read, kept, lost and passed on. See proxy.py."""

import enum
import fnmatch
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from tests.faults import wire


class Then(enum.StrEnum):
    """What the client sees after a trap has sprung."""

    CUT = "cut"  # an orderly end of the stream
    RESET = "reset"  # RST
    SILENT = "silent"  # nothing, for ever


class Where(enum.StrEnum):
    """Which message a trap takes away."""

    REPLY = "reply"
    REQUEST = "request"
    HOLD = "hold"


class Mode(enum.StrEnum):
    """How all traffic of a link is treated."""

    PASS = "pass"
    STALL = "stall"  # nothing moves, nothing is lost
    HALF_OPEN = "half_open"  # the server's end is gone, the client is not told
    DELAY = "delay"
    ONE_BYTE = "one_byte"


class Trap:
    """Waits for one matching statement of one application; the test waits for it to spring."""

    def __init__(
        self,
        match: Callable[[str], bool] | str,
        where: Where,
        then: Then,
        app: str,
        *,
        times: int,
        skip: int,
    ) -> None:
        self._match = match if callable(match) else (lambda text: match in text)
        self._app = app
        self._left = times
        self._skip = skip
        self._sprung = threading.Semaphore(0)
        self.where = where
        self.then = then
        self.outcome = ""  # the server's answer that was lost: a command tag or a SQLSTATE

    @property
    def spent(self) -> bool:
        """Whether it springs no more."""
        return self._left <= 0

    def takes(self, app: str, text: str) -> bool:
        """Whether the statement is for this trap; counts it when it is."""
        if self.spent or not fnmatch.fnmatch(app, self._app) or not self._match(text):
            return False
        if self._skip > 0:
            self._skip -= 1
            return False
        self._left -= 1
        return True

    def spring(self) -> None:
        """The message is gone (a lost reply: the server had answered by then)."""
        self._sprung.release()

    def wait(self, seconds: float) -> None:
        """Return once the trap has sprung (once per call); AssertionError after `seconds`."""
        assert self._sprung.acquire(timeout=seconds), "the trap did not spring"


Chooser = Callable[[str, str], Trap | None]
_CHUNK: Final = 65536


class Link:
    """A client's connection and the server's that answers it; driven by the proxy's thread."""

    def __init__(self, client: socket.socket, server: socket.socket, choose: Chooser) -> None:
        self.app = ""
        self.trap: Trap | None = None
        self.closed = False
        self._client, self._server = client, server
        for end in (client, server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._choose = choose
        self._mode, self._delay = Mode.PASS, 0.0
        self._started = False  # the first packet of the client has passed
        self._typed = False  # what follows it has the framing of a session
        self._talk = wire.Conversation()
        self._in_client, self._in_server = bytearray(), bytearray()
        self._to_client: deque[tuple[float, bytes]] = deque()
        self._to_server: deque[tuple[float, bytes]] = deque()
        self._taken: tuple[list[str], int] | None = None  # the execution whose reply is lost
        self._held = bytearray()
        self._holding = self._mute = self._client_gone = self._orphan = False

    # -- orders -----------------------------------------------------------------------------

    def set_mode(self, mode: Mode, seconds: float) -> None:
        """Treat this link so from now on; a half-open one stays so."""
        if self._mode is Mode.HALF_OPEN:
            return
        self._mode, self._delay = mode, seconds
        if mode is Mode.HALF_OPEN:
            self._server.close()

    def cut(self, *, abort: bool = False) -> None:
        """End both sides; with `abort` the client gets an RST."""
        if abort and not self._client_gone:
            self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def let_go(self) -> None:
        """Send what was held; the server's side ends after its answer."""
        self._to_server.append((0.0, bytes(self._held)))
        self._held.clear()
        self._holding = False

    def close(self) -> None:
        """Close both sockets."""
        self._client.close()
        self._server.close()
        self.closed = True

    # -- the loop ---------------------------------------------------------------------------

    def next_due(self, now: float) -> float:
        """When delayed bytes are due, on the clock of `now`; far away when there are none."""
        if self._mode is Mode.STALL:
            return now + 60.0
        heads = [queue[0][0] for queue in (self._to_client, self._to_server) if queue]
        return min((due for due in heads if due > 0.0), default=now + 60.0)

    def interest(self, now: float) -> Iterator[tuple[int, int]]:
        """(fd, poll events) this link waits for."""
        if self._mode is Mode.STALL or self.closed:
            return
        ends = (
            (self._client, self._to_client, self._client_gone),
            (self._server, self._to_server, self._mode is Mode.HALF_OPEN),
        )
        for end, queue, gone in ends:
            if not gone:
                writable = bool(queue) and queue[0][0] <= now
                yield end.fileno(), select.POLLIN | (select.POLLOUT if writable else 0)

    def pump(self, now: float) -> None:
        """Read, decide, write; closes the link when either side is gone."""
        if self.closed or self._mode is Mode.STALL:
            return
        client_open = self._client_gone or self._read(self._client, self._in_client)
        half = self._mode is Mode.HALF_OPEN
        server_open = half or self._read(self._server, self._in_server)
        if not (self._requests(now) and self._replies(now)):
            return
        written = self._write(self._client, self._to_client, now, gone=self._client_gone)
        written &= self._write(self._server, self._to_server, now, gone=half)
        if not client_open and self._kept():
            self._drop_client()
        elif not client_open or not server_open or not written:
            self.close()

    @staticmethod
    def _read(end: socket.socket, buffer: bytearray) -> bool:
        try:
            data = end.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        buffer += data
        return bool(data)

    def _write(
        self, end: socket.socket, queue: deque[tuple[float, bytes]], now: float, *, gone: bool
    ) -> bool:
        while queue and queue[0][0] <= now:
            due, data = queue.popleft()
            if gone:
                continue
            piece = data[:1] if self._mode is Mode.ONE_BYTE else data
            try:
                sent = end.send(piece)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                return False
            if sent < len(data):
                queue.appendleft((due, data[sent:]))
            if sent < len(piece):
                break
        return True

    def _pass(self, queue: deque[tuple[float, bytes]], raw: bytes, now: float) -> None:
        queue.append((now + self._delay if self._delay else 0.0, raw))

    # -- what passes ------------------------------------------------------------------------

    def _requests(self, now: float) -> bool:
        """Pass on or keep what the client said; whether the link is still open."""
        while not self._started and (first := wire.startup(self._in_client)) is not None:
            if first.kind == "encrypt":
                self._to_client.append((0.0, b"N"))
                continue
            self._started, self._typed = True, first.kind == "session"
            self.app = first.parameters.get("application_name", "")
            self._pass(self._to_server, first.raw, now)
        if self._started and not self._typed and self._in_client:
            self._pass(self._to_server, bytes(self._in_client), now)
            self._in_client.clear()
        if not self._typed:
            return True
        for kind, raw in wire.messages(self._in_client):
            text = self._talk.request(kind, raw)
            trap = None if text is None or self.trap else self._choose(self.app, text)
            if trap is not None:
                self.trap = trap
                if trap.where is Where.REPLY:
                    cycle = self._talk.cycles[-1] or self._talk.cycles[-2]
                    self._taken = (cycle, len(cycle) - 1)
                else:
                    self._holding = True
            if self._holding:
                self._held += raw
            else:
                self._pass(self._to_server, raw, now)
        if self._holding and self.trap is not None and not self._mute:
            self._sprung(self.trap)
        return not self.closed

    def _replies(self, now: float) -> bool:
        """Pass on or lose what the server said; whether the link is still open."""
        if not self._typed:
            if self._in_server:
                self._pass(self._to_client, bytes(self._in_server), now)
                self._in_server.clear()
            return True
        for kind, raw in wire.messages(self._in_server):
            cycle, at = self._talk.cycles[0], self._talk.answered
            lost = self._taken is not None and self._taken[0] is cycle and self._taken[1] == at
            self._talk.reply(kind)
            if not (lost or self._mute):
                self._pass(self._to_client, raw, now)
            if lost and kind in (b"C", b"E", b"I", b"s") and self.trap is not None:
                self._taken = None
                self.trap.outcome = _outcome(kind, raw)
                self._sprung(self.trap)
                break
            if self._orphan and kind == b"Z":
                self.close()  # a held request has its answer, and there is nobody to hear it
                break
        return not self.closed

    def _sprung(self, trap: Trap) -> None:
        self._mute = True
        if trap.then is Then.SILENT:
            pass
        elif trap.where is Where.HOLD:
            if trap.then is Then.RESET:
                self._client.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
            self._drop_client()
        else:
            self.cut(abort=trap.then is Then.RESET)
        trap.spring()

    def _kept(self) -> bool:
        return self._holding and self.trap is not None and self.trap.where is Where.HOLD

    def _drop_client(self) -> None:
        if not self._client_gone:
            self._client.close()
            self._client_gone = self._orphan = True


def _outcome(kind: bytes, raw: bytes) -> str:
    if kind == b"C":
        return raw[5:-1].decode()
    if kind == b"E":
        for part in raw[5:].split(b"\0"):
            if part[:1] == b"C":
                return part[1:].decode()
    return kind.decode()
