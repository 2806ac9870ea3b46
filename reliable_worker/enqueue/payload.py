"""Payloads as text: JSON made from what a caller hands in, JSON read before a handler gets it.

Floor 2, first and last step of a payload's way. Imports jobs only. Both ways refuse what the other
end could not read, before anything is stored and without ever quoting the payload:

- NaN and infinity, NUL characters and lone surrogates, which PostgreSQL's jsonb has not;
- integers of more digits than Python reads, numbers beyond a float;
- nesting deeper than every supported Python's parser can follow.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields, is_dataclass
from typing import Any

from reliable_worker.jobs.errors import DecodeError, InvalidJob

MAX_PAYLOAD_BYTES = 1_048_576  # the table's CHECK, on the payload as jsonb prints it
# Python 3.11 parses some 990 levels less its own stack; half of that works from any handler.
MAX_DEPTH = 500
# Python converts 4,300 digits between text and int; 2**13950 has 4,200.
_MAX_INTEGER_BITS = 13_950
_MAX_INTEGER_DIGITS = 4_200
_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|([\[{])|([\]}])', re.DOTALL)


class _Refused(ValueError):
    """Why a payload cannot be; made into the error of the side that asked."""


def encode(payload: object, limit: int = MAX_PAYLOAD_BYTES) -> str:
    """`payload` as JSON text: dicts with text keys, lists, tuples, dataclasses and plain values.

    Raises InvalidJob, which says what is wrong and never quotes the payload.
    """
    try:
        _check(payload)
        text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"), default=_as_dict)
    except _Refused as refused:
        raise InvalidJob(f"payload {refused}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidJob(f"payload cannot be written as JSON: {type(error).__name__}") from None
    return check_size(text, limit)


def check_text(text: str, limit: int = MAX_PAYLOAD_BYTES) -> str:
    """`text` itself, once it is certain that it is JSON a worker can read. Raises InvalidJob."""
    check_size(text, limit)
    try:
        _check(_parse(text))
    except _Refused as refused:
        raise InvalidJob(f"payload {refused}") from None
    return text


def check_size(text: str, limit: int) -> str:
    """`text` unless it is longer than `limit` bytes in UTF-8. Raises InvalidJob."""
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > limit:
        raise InvalidJob(
            f"payload has {size} bytes, more than {limit}:"
            " store the data elsewhere and enqueue its name"
        )
    return text


def decode(text: str) -> Any:
    """The JSON value of a stored payload.

    Raises DecodeError, "decode payload: …", whatever the text is.
    """
    try:
        return _parse(text)
    except _Refused as refused:
        raise DecodeError(f"decode payload: {refused}") from None


def _parse(text: str) -> Any:
    if _too_deep(text):
        raise _Refused(f"is nested deeper than {MAX_DEPTH} levels: flatten it")
    try:
        return json.loads(text, parse_constant=_constant, parse_float=_float, parse_int=_integer)
    except json.JSONDecodeError as error:
        # the parser's words and the place, never the text around it
        place = f"line {error.lineno} column {error.colno}"
        raise _Refused(f"is not JSON: {error.msg} at {place}") from None
    except RecursionError:
        raise _Refused("is nested too deep for this stack: flatten it") from None


def _constant(name: str) -> Any:
    raise _Refused(f"holds {name}, which JSON has not: use null or a text")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _Refused("holds a number too large for a float: write it as a text")
    return value


def _integer(text: str) -> int:
    if len(text) > _MAX_INTEGER_DIGITS:
        raise _Refused(
            f"holds an integer of more than {_MAX_INTEGER_DIGITS} digits: write it as a text"
        )
    return int(text)


def _too_deep(text: str) -> bool:
    # Counting is enough for all but the rare text with more brackets than levels allowed.
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    depth = 0
    for match in _BRACKETS.finditer(text):
        if match[1]:
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif match[2]:
            depth -= 1
    return False


def _check(payload: object) -> None:
    """Walk everything in `payload`. A stack of its own, since a payload may be nested too deep."""
    stack: list[tuple[object, int]] = [(payload, 0)]
    while stack:
        value, depth = stack.pop()
        if value is None or isinstance(value, bool):
            continue
        if isinstance(value, str):
            _check_string(value)
        elif isinstance(value, int):
            if value.bit_length() > _MAX_INTEGER_BITS:
                raise _Refused(
                    f"holds an integer of more than {_MAX_INTEGER_DIGITS} digits: make it a text"
                )
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise _Refused("holds NaN or infinity, which JSON has not: use None or a text")
        else:
            depth += 1
            if depth > MAX_DEPTH:  # also the end of a structure that holds itself
                raise _Refused(f"is nested deeper than {MAX_DEPTH} levels: flatten it")
            stack.extend((part, depth) for part in _parts(value))


def _parts(value: object) -> list[object]:
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise _Refused(
                    f"has a key of type {type(key).__name__}: JSON's keys are texts, so convert it"
                )
            _check_string(key)
        return list(value.values())
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value)]
    raise _Refused(
        f"holds a {type(value).__name__}, which JSON has not: convert it to a text or a number"
    )


def _check_string(text: str) -> None:
    if "\0" in text:
        raise _Refused("holds a NUL character, which PostgreSQL cannot store: remove it")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise _Refused("holds a lone surrogate, which is no Unicode text: remove it") from None


def _as_dict(value: Any) -> dict[str, object]:
    """A dataclass of the payload, one level: json.dumps comes back for the levels below."""
    return {field.name: getattr(value, field.name) for field in fields(value)}
