"""HTTP/1.1 of one connection without any I/O: bytes in, requests out; responses in, bytes out.

Floor 1; imports `message` and h11. Whoever owns the socket (the select loop of `server`, or a
thread) feeds it and keeps the deadlines; what a client may send is bounded here.
"""

from __future__ import annotations

import re
from email.utils import formatdate
from http import HTTPStatus

import h11

from reliable_worker.http.message import HttpError, Limits, Request, Response

# In a head: control characters, line ends that are not CR LF, lines continued by a blank.
_AMBIGUOUS = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?!\n)|\n[ \t]")
_LENGTH = re.compile(rb"^content-length[ \t]*:[ \t]*(.*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_WITH_BODY = (b"POST", b"PUT", b"PATCH")


class Protocol:
    """One connection: `receive` → `next_request` → `respond` → `next_cycle`, and again."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._conn = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        # Bytes of the present request so far: h11 bounds only what it could not parse yet, so a
        # head that arrives in one piece would pass at any size.
        self._received = 0
        self._raw = bytearray()
        self._head: h11.Request | None = None
        self._body = bytearray()
        self._requests = 0
        self._closing = False

    @property
    def begun(self) -> bool:
        """Part of a request has arrived."""
        return self._received > 0

    @property
    def in_body(self) -> bool:
        """The head has arrived, the body not all of it."""
        return self._head is not None

    @property
    def closing(self) -> bool:
        """The connection ends with the response just made."""
        return self._closing

    def receive(self, data: bytes) -> None:
        """Take what the client sent; b"" says it will send no more."""
        self._received += len(data)
        if self._limits.strict and self._head is None:
            self._raw += data
        try:
            self._conn.receive_data(data)
        except RuntimeError:
            # h11's word for bytes after the end of the stream, which no socket delivers.
            self._closing = True

    def next_request(self) -> Request | None:
        """The request, once it is whole; None while it is not, or while one awaits its response.

        HttpError: it is refused; answer with the error's response, the connection then ends.
        """
        try:
            return self._advance()
        except h11.RemoteProtocolError as error:
            self._closing = True
            raise HttpError(error.error_status_hint, _reason(error.error_status_hint)) from error
        except HttpError:
            self._closing = True
            raise

    def refuse(self, response: Response) -> bytes:
        """The bytes of a response before the request is whole, or ever will be: the last one."""
        self._closing = True
        return self.respond(response)

    def respond(self, response: Response) -> bytes:
        """The bytes of the response to the request given out last, or refused."""
        if self._conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._closing = True
            return b""
        head_only = self._head is not None and self._head.method == b"HEAD"
        headers = [
            ("Date", formatdate(usegmt=True)),
            *response.headers,
        ]
        if response.status != 204:  # which has no body by itself, and may not say so
            length = str(len(response.body))
            headers += [("Content-Type", response.content_type), ("Content-Length", length)]
        self._requests += 1
        if response.close or self._requests >= self._limits.requests_per_connection:
            self._closing = True
        if self._closing:
            headers.append(("Connection", "close"))
        reason = _reason(response.status).encode()
        event = h11.Response(status_code=response.status, headers=headers, reason=reason)
        data = self._conn.send(event) or b""
        if response.body and not head_only:
            data += self._conn.send(h11.Data(data=response.body)) or b""
        data += self._conn.send(h11.EndOfMessage()) or b""
        if {self._conn.our_state, self._conn.their_state} != {h11.DONE}:
            self._closing = True
        return data

    def next_cycle(self) -> None:
        """The response is sent: begin with the next request, whose bytes may be here already."""
        self._conn.start_next_cycle()
        self._head = None
        self._body.clear()
        rest = self._conn.trailing_data[0]
        self._received = len(rest)
        self._raw[:] = rest if self._limits.strict else b""

    def _advance(self) -> Request | None:
        while True:
            event = self._conn.next_event()
            if event is h11.NEED_DATA:
                if self._head is None:
                    self._check_unfinished()
                return None
            if isinstance(event, h11.Request):
                self._head = event
                self._check_head(event)
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > self._limits.body_bytes:
                    raise HttpError(413, _reason(413))
            elif isinstance(event, h11.EndOfMessage) and self._head is not None:
                return _request(self._head, bytes(self._body))
            else:
                # PAUSED: a response is due first. ConnectionClosed: nothing will come.
                self._closing = self._closing or isinstance(event, h11.ConnectionClosed)
                return None

    def _check_unfinished(self) -> None:
        """Refuse a head that is too long already."""
        # A method, a version and two blanks beside the target.
        longest = self._limits.target_bytes + 32
        if b"\n" not in self._raw and len(self._raw) > longest:
            raise HttpError(414, _reason(414))
        if self._received > self._limits.head_bytes:
            raise HttpError(431, _reason(431))

    def _check_head(self, head: h11.Request) -> None:
        """Refuse by what the head announces, before its body is read."""
        size = self._received - len(self._conn.trailing_data[0])
        if size > self._limits.head_bytes or len(head.headers) > self._limits.header_count:
            raise HttpError(431, _reason(431))
        if len(head.target) > self._limits.target_bytes:
            raise HttpError(414, _reason(414))
        if head.http_version not in (b"1.0", b"1.1"):
            raise HttpError(505, _reason(505))
        if self._limits.strict:
            self._check_framing(head, bytes(self._raw[:size]))
            self._raw.clear()
        for name, value in head.headers:
            if name == b"transfer-encoding":
                raise HttpError(411, "Length Required: a body needs a Content-Length")
            # More than ten digits is no length of ours, and int() of thousands is slow or refused.
            if name == b"content-length" and (
                len(value) > 10 or int(value) > self._limits.body_bytes
            ):
                raise HttpError(413, _reason(413))
            if name == b"expect":
                raise HttpError(417, _reason(417))

    def _check_framing(self, head: h11.Request, raw: bytes) -> None:
        """Refuse a head that another reader could take for another request; h11 is lenient."""
        lengths = _LENGTH.findall(raw)
        if _AMBIGUOUS.search(raw) or len(lengths) > 1 or (lengths and not lengths[0].isdigit()):
            raise HttpError(400, _reason(400))
        if len([name for name, _value in head.headers if name == b"host"]) != 1:
            raise HttpError(400, _reason(400))
        if not lengths and head.method in _WITH_BODY:
            # What follows would be read as the next request.
            raise HttpError(411, "Length Required: a body needs a Content-Length")


def _request(head: h11.Request, body: bytes) -> Request:
    # h11 lets only visible ASCII through in a target and a token in a method.
    path, _, query = head.target.decode("latin-1").partition("?")
    return Request(head.method.decode("ascii"), path, query, tuple(head.headers), body)


def _reason(status: int) -> str:
    return HTTPStatus(status).phrase
