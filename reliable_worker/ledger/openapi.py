"""GET /openapi.json: the interface for machines, made from the tables that the code itself uses.

Floor 6; imports `decode`, `problems`.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from reliable_worker.ledger.decode import MAX_AMOUNT, MAX_ID
from reliable_worker.ledger.problems import CONTENT_TYPE, PROBLEMS
from reliable_worker.ledger.reads import MOST_ENTRIES

_ID = {"type": "integer", "minimum": 1, "maximum": MAX_ID}
_BALANCE = {"type": "integer", "minimum": 0, "maximum": MAX_ID}
_AMOUNT = {"type": "integer", "minimum": 1, "maximum": MAX_AMOUNT}
_INSTANT = {"type": "string", "format": "date-time"}
_TRANSFER = {"from_id": _ID, "to_id": _ID, "amount": _AMOUNT}

# Answers of any request that HTTP itself or the service as a whole refuses.
_ANYWHERE = {400, 408, 411, 413, 414, 417, 431, 500, 503, 505}


@cache
def document() -> bytes:
    """The document, as bytes of JSON."""
    return json.dumps(build()).encode()


def build() -> dict[str, Any]:
    """OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Reliable ledger", "version": "1"},
        "paths": {
            "/transfers": {"post": _post()},
            "/transfers/{id}": {
                "get": _get(
                    "One transfer",
                    _object({"id": _ID, **_TRANSFER, "status": _constant("completed"),
                             "created_at": _INSTANT, "completed_at": _INSTANT}),
                )
            },
            "/accounts/{id}": {
                "get": _get(
                    "An account's balance, now or as of a time",
                    _object({"id": _ID, "balance": _BALANCE, "updated_at": _INSTANT,
                             "as_of": _INSTANT}, required=["id", "balance"]),
                    _query("as_of", _INSTANT),
                )
            },
            "/accounts/{id}/entries": {
                "get": _get(
                    "A page of an account's entries, oldest first",
                    _entries(),
                    _query("after", {**_BALANCE}),
                    _query("limit", {"type": "integer", "minimum": 1, "maximum": MOST_ENTRIES}),
                )
            },
            "/healthz": {"get": _probe("204 when the database answers")},
            "/readyz": {"get": _probe("204 when transfers can be carried out")},
            "/metrics": {"get": {"summary": "Numbers for Prometheus", "responses": {
                "200": {"description": "the text format", "content": {"text/plain": {}}}}}},
            "/openapi.json": {"get": {"summary": "This document", "responses": {
                "200": {"description": "OpenAPI", "content": {"application/json": {}}}}}},
        },
        "components": {"schemas": {"Problem": _problem()}},
    }  # fmt: skip


def _post() -> dict[str, Any]:
    location = {"schema": {"type": "string"}, "description": "the transfer"}
    replayed = {"schema": _constant("true"), "description": "an earlier request moved the money"}
    return {
        "summary": "Move money once per key",
        "parameters": [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": True,
                "schema": {
                    "type": "string",
                    "minLength": 8,
                    "maxLength": 128,
                    "pattern": "^[!-~]([ -~]*[!-~])?$",
                },
            }
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _object(_TRANSFER)}},
        },
        "responses": {
            "200": {
                "description": "the money has moved",
                "headers": {"Location": location, "Idempotency-Replayed": replayed},
                "content": {
                    "application/json": {"schema": _object({"status": _constant("completed")})}
                },
            },
            **_problems(*_ANYWHERE, 409, 415, 504),
        },
    }


def _get(summary: str, schema: dict[str, Any], *query: dict[str, Any]) -> dict[str, Any]:
    return {
        "summary": summary,
        "parameters": [{"name": "id", "in": "path", "required": True, "schema": _ID}, *query],
        "responses": {
            "200": {"description": summary, "content": {"application/json": {"schema": schema}}},
            **_problems(*_ANYWHERE, 404, 504),
        },
    }


def _probe(summary: str) -> dict[str, Any]:
    return {"summary": summary, "responses": {"204": {"description": "yes"}, **_problems(503)}}


def _entries() -> dict[str, Any]:
    entry = _object(
        {
            "sequence": _ID,
            "transfer_id": _ID,
            "amount": {"type": "integer", "minimum": -MAX_AMOUNT, "maximum": MAX_AMOUNT},
            "balance_after": _BALANCE,
            "created_at": _INSTANT,
        }
    )
    following = {"oneOf": [_ID, {"type": "null"}]}
    return _object({"entries": {"type": "array", "items": entry}, "next": following})


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def _constant(value: str) -> dict[str, Any]:
    return {"type": "string", "enum": [value]}


def _problems(*statuses: int) -> dict[str, Any]:
    return {
        str(status): {
            "description": ", ".join(code for code, (of, _) in PROBLEMS.items() if of == status),
            "content": {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in sorted(statuses)
    }


def _problem() -> dict[str, Any]:
    return _object(
        {
            "type": _constant("about:blank"),
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "code": {"type": "string", "enum": list(PROBLEMS)},
        }
    )
