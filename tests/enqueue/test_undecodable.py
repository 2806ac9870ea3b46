"""A row that nobody can decode fails alone: its neighbours of the same claim run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.fixtures.commands import Fleet


@pytest.mark.quick
def test_undecodable_rows_fail_alone(
    conn: psycopg.Connection[Any], fleet: Callable[..., Fleet]
) -> None:
    conn.execute(
        "INSERT INTO jobs (idempotency_key, payload, max_attempts) VALUES"
        """ ('good-1', '{"message": "first"}', 1),"""
        " ('deep', (repeat('[', 3000) || repeat(']', 3000))::jsonb, 1),"
        " ('long', repeat('9', 5000)::jsonb, 1),"
        " ('huge', ('1' || repeat('0', 400) || '.5')::jsonb, 1),"
        " ('list', '[]', 1),"
        " ('type', '{\"message\": 3}', 1),"
        " ('none', '{\"sleep_ms\": 0}', 1),"
        """ ('good-2', '{"message": "last"}', 1)"""
    )
    run = fleet("--drain", workers=8, processes=1)
    assert run.wait(60) == 0, run.stderr()
    rows = conn.execute("SELECT idempotency_key, state, last_error FROM jobs").fetchall()
    states = {key: state for key, state, _ in rows}
    errors = {key: error for key, _, error in rows if error}
    bad = ("deep", "long", "huge", "list", "type", "none")
    assert states == dict.fromkeys(bad, "dead") | dict.fromkeys(("good-1", "good-2"), "succeeded")
    assert "nested deeper" in errors["deep"]
    assert "digits" in errors["long"]
    assert "too large for a float" in errors["huge"]
    assert all(errors[key].startswith("decode payload: ") for key in bad[:-1])
    assert errors["none"] == "message is required"
    effects = conn.execute("SELECT idempotency_key FROM processed_messages ORDER BY 1").fetchall()
    assert effects == [("good-1",), ("good-2",)]
