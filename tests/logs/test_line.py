"""A line is one JSON object of allowed fields in ASCII within PIPE_BUF, whatever it is made of."""

from __future__ import annotations

import json
import logging
import math
import random
from enum import StrEnum

import pytest

from reliable_worker.jobs.events import Event
from reliable_worker.logs.line import ALLOWED, LINE_BYTES, LineFormatter
from tests.tidy.sources import PACKAGE, called, none, parsed

pytestmark = pytest.mark.quick

FORMATTER = LineFormatter()


def line(fields: dict[str, object], name: str = "job_failed", level: str = "info") -> str:
    return FORMATTER.event(Event(name, level, 1_800_000_000.25, fields))


def read(fields: dict[str, object]) -> dict[str, object]:
    text = line(fields)
    assert len(text) < LINE_BYTES
    assert text.isascii()
    assert text.isprintable()
    found: dict[str, object] = json.loads(text)
    return found


def test_time_level_event_come_first() -> None:
    assert list(read({"job_id": 7}).items()) == [
        ("time", "2027-01-15T08:00:00.250Z"),
        ("level", "info"),
        ("event", "job_failed"),
        ("job_id", 7),
    ]


def test_only_allowed_fields_are_written() -> None:
    secret = dict.fromkeys(("payload", "key", "database_url", "idempotency_key"), "SECRET")
    assert "SECRET" not in line({**secret, "job_id": 1})
    assert not ALLOWED & {"payload", "key", "url", "dsn", "password", "database_url", "params"}


def test_every_field_the_code_emits_is_allowed() -> None:
    """A field missing from the list would vanish silently."""
    lost = [
        f"{source.at(call)} {word.arg}"
        for source in parsed(PACKAGE)
        for call in source.calls()
        if called(call).rpartition(".")[2] == "emit"
        for word in call.keywords
        if word.arg not in (ALLOWED | {None, "level"})
    ]
    none(lost, "fields that no log line carries (logs/line.py: ALLOWED)")


@pytest.mark.parametrize(
    "text",
    [
        "a\nb\r\nc",
        '{"time": "x"}\n{"event": "forged"}',
        "\x1b[31mred\x1b[0m",
        "\x00\x07\x7f\x80\x9b",
        "\ud800 alone",
        "\u2028\u2029",
        "ü𝕏" * 5000,
        '"' * 100_000,
        "\\" * 100_000,
        "\x01" * 100_000,
    ],
)
@pytest.mark.parametrize("field", ["error", "kind", "queue", "message", "stack", "owner"])
def test_any_text_stays_within_its_line(field: str, text: str) -> None:
    assert field in read({field: text})


def test_many_long_texts_are_shortened_together() -> None:
    found = read(dict.fromkeys(ALLOWED, "\x01" * 10000))
    assert found["truncated"] is True
    assert found["event"] == "job_failed"


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True),
        (2**62, 2**62),
        (2**63, "huge"),
        pytest.param(10**5000, "huge", id="5000 digits"),
        (0.1234567, 0.123457),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (Colour.RED, "red"),
        (("a", 1), ["a", 1]),
        ({"a": "SECRET"}, "dict"),
        (b"SECRET", "bytes"),
        (ValueError("broken\nSECRET"), "ValueError: broken"),
        (object, "type"),
    ],
)
def test_values_of_any_type(value: object, expected: object) -> None:
    assert read({"reason": value})["reason"] == expected
    assert "SECRET" not in line({"reason": value})


def test_none_is_left_out() -> None:
    assert "error" not in read({"error": None})


@pytest.mark.parametrize(
    "text",
    [
        "cannot reach postgresql://user:SECRET@host:5432/db?sslmode=require now",
        "postgres://SECRET@h/d",
        "connection to 'host=h password=SECRET dbname=d' failed",
        "password = 'SECRET with space' user=u",
        "PASSWORD=SECRET",
        "https://me:SECRET@api.example/",
    ],
)
def test_addresses_and_passwords_are_redacted(text: str) -> None:
    assert "SECRET" not in line({"error": text})
    record = logging.makeLogRecord({"msg": text, "levelno": 30, "name": "psycopg.pool"})
    assert "SECRET" not in FORMATTER.format(record)


def test_records_of_logging_have_the_same_shape() -> None:
    record = logging.makeLogRecord(
        {
            "name": "shop.mail",
            "levelno": logging.CRITICAL,
            "msg": "sent %d\nlines",
            "args": (3,),
            "created": 1_800_000_000.0,
            "job_id": 9,
            "payload": "SECRET",
        }
    )
    assert json.loads(FORMATTER.format(record)) == {
        "time": "2027-01-15T08:00:00.000Z",
        "level": "error",
        "event": "log",
        "job_id": 9,
        "logger": "shop.mail",
        "message": "sent 3\nlines",
    }


def test_an_exception_in_a_record_is_its_class_and_first_line() -> None:
    try:
        raise ValueError("first\nSECRET")
    except ValueError as error:
        record = logging.makeLogRecord(
            {"levelno": 40, "msg": "x", "exc_info": (type(error), error, None)}
        )
    text = FORMATTER.format(record)
    assert json.loads(text)["error"] == "ValueError: first"
    assert "SECRET" not in text


def test_random_fields_always_make_a_line() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    names = sorted(ALLOWED)
    for _ in range(100):
        fields: dict[str, object] = {
            name: "".join(chr(dice.randrange(0x110000)) for _ in range(dice.choice((1, 50, 900))))
            for name in dice.sample(names, dice.randrange(1, len(names)))
        }
        read(fields)
