"""Every answer that is not a success: RFC 9457 problems with stable codes.

Floor 6; imports http. `code` is the contract: clients decide by it. Details of our own failures are
in the log only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache

from reliable_worker.http.message import HttpError, Response

CONTENT_TYPE = "application/problem+json"

# code → status, title. The whole table of the interface; the reference and /openapi.json show it.
PROBLEMS: Mapping[str, tuple[int, str]] = {
    "malformed_http": (400, "the request is not well-formed HTTP"),
    "http_version_not_supported": (505, "this version of HTTP is not spoken here"),
    "uri_too_long": (414, "the target is longer than 1,024 bytes"),
    "headers_too_large": (431, "the headers exceed 16,384 bytes or 64 lines"),
    "request_timeout": (408, "the request did not arrive in time"),
    "length_required": (411, "the body needs a Content-Length and no Transfer-Encoding"),
    "body_too_large": (413, "the body exceeds 4,096 bytes"),
    "expectation_failed": (417, "Expect is not supported: send the body at once"),
    "unsupported_media_type": (415, "the body must be application/json"),
    "not_found": (404, "there is nothing here"),
    "method_not_allowed": (405, "the method is not allowed here"),
    "empty_body": (400, "the body is empty"),
    "byte_order_mark": (400, "the body begins with a byte order mark"),
    "invalid_utf8": (400, "the body is not UTF-8"),
    "invalid_json": (400, "the body is not JSON"),
    "trailing_bytes": (400, "something follows the JSON value"),
    "too_deep": (400, "the JSON is nested too deeply"),
    "non_finite_number": (400, "NaN and Infinity are no JSON"),
    "duplicate_field": (400, "a field stands twice"),
    "not_an_object": (400, "the body must be one JSON object"),
    "unknown_field": (400, "there is a field beside from_id, to_id and amount"),
    "missing_field": (400, "from_id, to_id and amount are required"),
    "float_not_allowed": (400, "a number has a fraction or an exponent"),
    "boolean_not_allowed": (400, "a field is a boolean, not a whole number"),
    "string_not_allowed": (400, "a field is a string, not a whole number"),
    "null_not_allowed": (400, "a field is null, not a whole number"),
    "wrong_type": (400, "a field is no whole number"),
    "out_of_range": (400, "a number is out of range"),
    "same_account": (400, "from_id and to_id are the same"),
    "invalid_idempotency_key": (400, "one Idempotency-Key of 8 to 128 printable ASCII bytes"),
    "invalid_parameter": (400, "a parameter of the query is not understood"),
    "idempotency_conflict": (409, "the key belongs to another request"),
    "in_flight": (409, "a request with this key is being carried out: try again"),
    "insufficient_funds": (409, "the sender's balance is too small"),
    "account_missing": (409, "an account does not exist"),
    "receiver_overflow": (409, "the receiver's balance would be too large"),
    "account_busy": (503, "an account is in use: try again"),
    "too_many_waiting": (503, "too many requests wait: try again"),
    "draining": (503, "the service is stopping: try again"),
    "database_unavailable": (503, "the database is away: try again"),
    "not_ready": (503, "the service is not ready"),
    "deadline_exceeded": (504, "no answer in time: ask again with the same key"),
    "outcome_unknown": (504, "it may have been carried out: ask again with the same key"),
    "internal_error": (500, "the service failed"),
}

# What a client should wait: locks, queues and restarts pass within about a second.
RETRY_AFTER_SECONDS = 1
_RETRY = {"in_flight"} | {code for code, (status, _) in PROBLEMS.items() if status in (503, 504)}

_OF_HTTP = {
    408: "request_timeout",
    411: "length_required",
    413: "body_too_large",
    414: "uri_too_long",
    417: "expectation_failed",
    431: "headers_too_large",
    500: "internal_error",
    # h11's word for a Transfer-Encoding other than chunked
    501: "length_required",
    505: "http_version_not_supported",
}


@cache
def body(code: str) -> bytes:
    """The problem's JSON: the same bytes each time."""
    status, title = PROBLEMS[code]
    return json.dumps(
        {"type": "about:blank", "title": title, "status": status, "code": code}
    ).encode()


def problem(code: str, *headers: tuple[str, str], close: bool = False) -> Response:
    """The response of a code of the table. KeyError for another."""
    retry = (("Retry-After", str(RETRY_AFTER_SECONDS)),) if code in _RETRY else ()
    return Response(
        PROBLEMS[code][0], body(code), CONTENT_TYPE, headers=(*headers, *retry), close=close
    )


def code_of(error: HttpError) -> str:
    """The code of a request that HTTP itself refuses."""
    return _OF_HTTP.get(error.status, "malformed_http")
