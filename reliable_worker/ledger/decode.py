"""One strict decoder: the bytes of a request become a transfer, or exactly one code.

Floor 6; imports nothing of the package. JSON as readers agree about it: UTF-8 without a mark, one
object, each field once, whole numbers written as such. Python's own decoder takes the last of two
equal fields, NaN, and a bool for an int; each of those is refused here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Never

MAX_BODY_BYTES = 4096
MAX_AMOUNT = 1_000_000_000_000
MAX_ID = 2**63 - 1  # a bigint
# The object itself, and room for a client's mistake to be told by its own code.
MAX_DEPTH = 16
# No number in range has more digits; int() of thousands is slow, or refused.
_DIGITS = 20

KEY = re.compile(rb"[\x20-\x7e]{8,128}")
_FIELDS = ("from_id", "to_id", "amount")


class Refused(Exception):
    """The request is not one; `code` says why and is all the client is told."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Transfer:
    """A request to move `amount` minor units; ids and amount are in range."""

    from_id: int
    to_id: int
    amount: int


class _Float:
    """A number with a fraction or an exponent, whose value nobody needs."""


def decode_key(values: list[bytes]) -> str:
    """The idempotency key of the header's values. Raises Refused."""
    if len(values) != 1 or not KEY.fullmatch(values[0]):
        raise Refused("invalid_idempotency_key")
    return values[0].decode("ascii")


def decode_transfer(body: bytes) -> Transfer:
    """The transfer that a body asks for. Raises Refused."""
    fields = _object(body)
    for name in fields:
        if name not in _FIELDS:
            raise Refused("unknown_field")
    for name in _FIELDS:
        if name not in fields:
            raise Refused("missing_field")
    from_id, to_id = _whole(fields["from_id"], MAX_ID), _whole(fields["to_id"], MAX_ID)
    amount = _whole(fields["amount"], MAX_AMOUNT)
    if from_id == to_id:
        raise Refused("same_account")
    return Transfer(from_id, to_id, amount)


def decode_number(text: str, least: int, most: int) -> int:
    """A whole number in a path or a query: digits only, no sign, no leading 0. Raises Refused."""
    if not re.fullmatch(r"0|[1-9][0-9]{0,18}", text) or not least <= int(text) <= most:
        raise Refused("invalid_parameter")
    return int(text)


def _object(body: bytes) -> dict[str, Any]:
    if not body:
        raise Refused("empty_body")
    if body.startswith((b"\xef\xbb\xbf", b"\xfe\xff", b"\xff\xfe")):
        raise Refused("byte_order_mark")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise Refused("invalid_utf8") from None
    text = text.lstrip(" \t\r\n")
    if not text:
        raise Refused("empty_body")
    _check_depth(text)
    try:
        value, end = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        raise Refused("invalid_json") from None
    if text[end:].strip(" \t\r\n"):
        raise Refused("trailing_bytes")
    if not isinstance(value, dict):
        raise Refused("not_an_object")
    return value


def _check_depth(text: str) -> None:
    """Refuse deep nesting before the decoder recurses. Brackets within strings do not count."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for mark in re.sub(r'"(?:[^"\\]|\\.)*"', "", text):
        depth += (mark in "[{") - (mark in "]}")
        if depth > MAX_DEPTH:
            raise Refused("too_deep")


def _whole(value: object, most: int) -> int:
    """`value` as a whole number from 1 to `most`."""
    if type(value) is int:  # a bool is an int, too
        if not 1 <= value <= most:
            raise Refused("out_of_range")
        return value
    if isinstance(value, bool):
        raise Refused("boolean_not_allowed")
    if isinstance(value, _Float):
        raise Refused("float_not_allowed")
    if isinstance(value, str):
        raise Refused("string_not_allowed")
    raise Refused("null_not_allowed" if value is None else "wrong_type")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Refused("duplicate_field")
    return found


def _constant(_word: str) -> Never:
    raise Refused("non_finite_number")


def _integer(digits: str) -> int:
    # -0 is the integer 0 and out of range like it.
    return int(digits) if len(digits) <= _DIGITS else MAX_ID + 1


_DECODER = json.JSONDecoder(
    object_pairs_hook=_pairs,
    parse_constant=_constant,
    parse_float=lambda _digits: _Float(),
    parse_int=_integer,
)
