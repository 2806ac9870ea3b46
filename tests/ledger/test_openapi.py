"""/openapi.json says what the running service does: every path, method, status and body."""

from __future__ import annotations

import json
from typing import Any

from reliable_worker.ledger.problems import PROBLEMS
from tests.ledger.client import Answer, fresh_key, payload
from tests.ledger.conftest import Ledger


def fits(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> bool:
    """Whether a value is what a schema of the document allows; only the words used there."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return fits(value, root["components"]["schemas"][name], root)
    if "oneOf" in schema:
        return sum(fits(value, one, root) for one in schema["oneOf"]) == 1
    if "enum" in schema and value not in schema["enum"]:
        return False
    kind = schema["type"]
    if kind == "object":
        known = schema["properties"]
        return (
            isinstance(value, dict)
            and set(schema["required"]) <= set(value) <= set(known)
            and all(fits(each, known[name], root) for name, each in value.items())
        )
    if kind == "array":
        return isinstance(value, list) and all(fits(each, schema["items"], root) for each in value)
    if kind == "integer":
        least, most = schema.get("minimum", 0), schema.get("maximum", 2**63)
        return type(value) is int and least <= value <= most
    return value is None if kind == "null" else isinstance(value, str)


def check(document: dict[str, Any], path: str, method: str, answer: Answer) -> None:
    responses = document["paths"][path][method]["responses"]
    told = responses[str(answer.status)]
    if "content" not in told:
        assert answer.body == b""
        return
    (media, content), *others = told["content"].items()
    assert not others
    assert answer.headers["content-type"].split(";")[0] == media
    if "schema" in content:
        assert fits(answer.json, content["schema"], document), answer.json
    if answer.code:
        assert answer.code in told["description"].split(", ")


def test_answers_are_what_the_document_says(shared: Ledger) -> None:
    with shared.client() as client:
        document = client.get("/openapi.json").json
        assert document["openapi"].startswith("3.1")
        key = fresh_key()
        bodies = [payload(1, 2, 5), payload(1, 2, 5), payload(1, 2, 6), "{}", payload(1, 99, 5)]
        for body in bodies:
            check(document, "/transfers", "post", client.post(key, body))
        too_much = client.post(fresh_key(), payload(1, 2, 10**9))
        check(document, "/transfers", "post", too_much)
        check(document, "/transfers", "post", client.post(key, "x" * 4_097))
        check(document, "/transfers", "post", client.post(key, "{}", content_type="text/html"))
        reads = {
            "/transfers/{id}": ["/transfers/1", "/transfers/999"],
            "/accounts/{id}": ["/accounts/1", "/accounts/999", "/accounts/1?as_of=x",
                               "/accounts/1?as_of=2000-01-01T00:00:00Z"],
            "/accounts/{id}/entries": ["/accounts/1/entries", "/accounts/1/entries?limit=1",
                                       "/accounts/1/entries?limit=0"],
            "/healthz": ["/healthz"],
            "/readyz": ["/readyz"],
            "/metrics": ["/metrics"],
            "/openapi.json": ["/openapi.json"],
        }  # fmt: skip
        assert set(reads) | {"/transfers"} == set(document["paths"])
        for path, requests in reads.items():
            assert set(document["paths"][path]) == {"get"}
            for request in requests:
                check(document, path, "get", client.get(request))


def test_every_code_is_told(shared: Ledger) -> None:
    with shared.client() as client:
        document = client.get("/openapi.json").json
    told = {
        code
        for path in document["paths"].values()
        for operation in path.values()
        for response in operation["responses"].values()
        for code in response["description"].split(", ")
    }
    elsewhere = {"method_not_allowed"}  # of a method that the document does not have
    assert set(PROBLEMS) - told == elsewhere
    assert json.dumps(document).isascii()
