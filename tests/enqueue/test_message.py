"""The built-in kind: the spec's three refusals, a cancellable sleep, one effect per key."""

from __future__ import annotations

from typing import Any, cast

import psycopg
import pytest

import reliable_worker as rw
from reliable_worker.enqueue.message import MAX_SLEEP_MS


class Recorder:
    """What the handler asks of its job."""

    def __init__(self, payload: Any, key: str = "welcome-1001") -> None:
        self.payload = payload
        self.key = key
        self.slept: list[float] = []
        self.effects: list[tuple[str, tuple[object, ...]]] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def effect(self, query: str, params: tuple[object, ...]) -> None:
        self.effects.append((query, params))


def run(text: str) -> Recorder:
    handler = rw.App().handlers["message"]
    job = Recorder(handler.decode(text))
    handler.function(cast("Any", job))
    return job


def test_it_sleeps_and_its_effect_happens_once_per_key(
    conn: psycopg.Connection[Any],
) -> None:
    job = run('{"message": "100 % ü", "sleep_ms": 8000, "other": [1]}')
    assert job.slept == [8.0]
    for _ in range(2):
        for query, params in job.effects:
            conn.execute(query.encode(), params)
    rows = conn.execute("SELECT idempotency_key, message FROM processed_messages").fetchall()
    assert rows == [("welcome-1001", "100 % ü")]


def test_sleep_is_none_unless_asked_for_and_at_most_the_limit() -> None:
    assert run('{"message": "m"}').slept == [0.0]
    assert run(f'{{"message": "m", "sleep_ms": {MAX_SLEEP_MS}}}').slept == [15.0]


@pytest.mark.parametrize("text", ["[]", "null", '"m"', '{"message": 3}', '{"message": null}',
                                  '{"message": "m", "sleep_ms": "1"}',
                                  '{"message": "m", "sleep_ms": 1.5}',
                                  '{"message": "m", "sleep_ms": true}'])  # fmt: skip
def test_what_is_no_such_object_is_not_decoded(text: str) -> None:
    with pytest.raises(rw.DecodeError, match=r"^decode payload: "):
        run(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{}", "message is required"),
        ('{"sleep_ms": 0}', "message is required"),
        ('{"message": ""}', "message is required"),
        ('{"message": "m", "sleep_ms": -1}', "sleep_ms must be between 0 and 15000"),
        ('{"message": "m", "sleep_ms": 15001}', "sleep_ms must be between 0 and 15000"),
        ('{"message": "m", "sleep_ms": 1e30}', "decode payload: sleep_ms must be an integer"),
        (f'{{"message": "m", "sleep_ms": {"9" * 100}}}', "sleep_ms must be between 0 and 15000"),
    ],
)
def test_the_words_of_the_refusals(text: str, line: str) -> None:
    from reliable_worker.jobs.errors import describe

    with pytest.raises(Exception) as caught:
        run(text)
    assert describe(caught.value).startswith(line)
