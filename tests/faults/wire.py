"""The PostgreSQL wire protocol, read just well enough to know which statement a reply answers.

A conversation is cut into cycles: one simple query, or extended messages up to a Sync; the server
ends each with ReadyForQuery. Inside a cycle every Execute has one terminal answer, in order. That
is all the proxy needs to drop the answer to one COMMIT and nothing else.
"""

import re
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

_CANCEL, _SSL, _GSS = 80877102, 80877103, 80877104


@dataclass(frozen=True, slots=True)
class Startup:
    """The first packet of a session: what kind it is and the parameters it named."""

    kind: str  # "session", "cancel" or "encrypt"
    parameters: dict[str, str]
    raw: bytes


def startup(buffer: bytearray) -> Startup | None:
    """Take the first packet off `buffer`, or None while it is incomplete."""
    if len(buffer) < 8:
        return None
    length, code = struct.unpack_from("!ii", buffer)
    if len(buffer) < length:
        return None
    raw = bytes(buffer[:length])
    del buffer[:length]
    if code in (_SSL, _GSS):
        return Startup("encrypt", {}, raw)
    if code == _CANCEL:
        return Startup("cancel", {}, raw)
    words = raw[8:].rstrip(b"\0").split(b"\0")
    text = [word.decode() for word in words]
    return Startup("session", dict(zip(text[::2], text[1::2], strict=False)), raw)


def messages(buffer: bytearray) -> Iterator[tuple[bytes, bytes]]:
    """Take whole typed messages off `buffer`: (type, the raw message)."""
    while len(buffer) >= 5:
        length = 1 + struct.unpack_from("!i", buffer, 1)[0]
        if len(buffer) < length:
            return
        raw = bytes(buffer[:length])
        del buffer[:length]
        yield raw[:1], raw


def _cstring(raw: bytes, at: int) -> tuple[str, int]:
    end = raw.index(b"\0", at)
    return raw[at:end].decode("utf-8", "replace"), end + 1


@dataclass(slots=True)
class Conversation:
    """Statement texts of a session's requests, and how far the server has answered them."""

    statements: dict[str, str] = field(default_factory=dict)
    portals: dict[str, str] = field(default_factory=dict)
    # Texts of the executions of each cycle not yet answered; the last one may still be growing.
    cycles: deque[list[str]] = field(default_factory=lambda: deque([[]]))
    answered: int = 0  # executions of the oldest cycle that have their terminal answer

    def request(self, kind: bytes, raw: bytes) -> str | None:
        """Note a client's message; the text it executes, where it executes one."""
        text: str | None = None
        if kind == b"Q":
            text = _cstring(raw, 5)[0]
        elif kind == b"P":
            name, at = _cstring(raw, 5)
            self.statements[name] = _cstring(raw, at)[0]
        elif kind == b"B":
            portal, at = _cstring(raw, 5)
            self.portals[portal] = self.statements.get(_cstring(raw, at)[0], "")
        elif kind == b"E":
            text = self.portals.get(_cstring(raw, 5)[0], "")
        if text is not None:
            self.cycles[-1].append(text)
        if kind in (b"Q", b"S"):
            self.cycles.append([])
        return text

    def answering(self) -> str | None:
        """The text of the execution the server's next message belongs to, if there is one."""
        cycle = self.cycles[0]
        return cycle[self.answered] if self.answered < len(cycle) else None

    def reply(self, kind: bytes) -> None:
        """Note a server's message."""
        if kind in (b"C", b"I", b"s", b"E") and len(self.cycles[0]) > 1:
            self.answered += 1  # a lone execution (a simple query of many commands too) owns all
        elif kind == b"Z" and len(self.cycles) > 1:  # the first one ends the log-in
            self.cycles.popleft()
            self.answered = 0


def is_commit(text: str) -> bool:
    """Whether `text` is a COMMIT and nothing else but comments."""
    return re.sub(r"--[^\n]*", "", text).strip().rstrip(";").strip().upper() == "COMMIT"
