"""Payloads: what cannot be stored or read back is refused in one line that quotes nothing of it."""

from __future__ import annotations

import inspect
import json
import random
import sys
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from reliable_worker.enqueue.payload import MAX_DEPTH, check_text, decode, encode
from reliable_worker.jobs.errors import DecodeError, InvalidJob


@dataclass
class Line:
    text: str
    amount: float | None = None


def nested(levels: int) -> Any:
    value: Any = "canary"
    for _ in range(levels):
        value = [value]
    return value


def itself() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        [-(10**4000)],
        1.5,
        -0.0,
        5e-324,
        "",
        "ü€𝄞 \u2028",
        "back\\u0000slash",
        [],
        {},
        {"a": [1, {"b": None}], "": False},
        nested(MAX_DEPTH),
    ],
)
def test_what_json_can_say_comes_back_as_it_went(value: object) -> None:
    text = encode(value)
    assert decode(text) == value
    assert check_text(text) is text


def test_dataclasses_and_tuples_become_objects_and_lists() -> None:
    assert json.loads(encode({"lines": (Line("a", 1.0), Line("b"))})) == {
        "lines": [{"text": "a", "amount": 1.0}, {"text": "b", "amount": None}]
    }


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "holds NaN or infinity"),
        ({"a": [float("-inf")]}, "holds NaN or infinity"),
        ("canary\0", "holds a NUL character"),
        ({"canary\0": 1}, "holds a NUL character"),
        ("canary\ud800", "holds a lone surrogate"),
        ({"canary\udfff": 1}, "holds a lone surrogate"),
        ([10**4300], "digits"),
        ({1: "canary"}, "has a key of type int"),
        ({"canary", "b"}, "holds a set"),
        (b"canary", "holds a bytes"),
        ([datetime(2030, 1, 1)], "holds a datetime"),
        (Line, "holds a type"),
        (Line("a", float("inf")), "holds NaN or infinity"),
        (nested(3000), "is nested deeper than 500 levels"),
        (itself(), "is nested deeper than 500 levels"),
        ("c" * 2**21, "has 2097154 bytes, more than 1048576"),
        ("€" * 400_000, "has 1200002 bytes"),
    ],
)
def test_what_json_or_the_table_has_not_is_refused(value: object, reason: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        encode(value)
    line = str(caught.value)
    assert line.startswith("payload ")
    assert reason in line
    assert "canary" not in line
    assert "\n" not in line


BAD_TEXTS = [
    ("", "is not JSON"),
    ("canary", "is not JSON"),
    ('{"canary": }', "is not JSON: Expecting value at line 1 column 12"),
    ("{} {}", "is not JSON"),
    ("[NaN]", "holds NaN"),
    ("-Infinity", "holds -Infinity"),
    ("1e999", "too large for a float"),
    ("9" * 5000, "digits"),
    ("-" + "9" * 5000, "digits"),
    ("[" * 3000 + "]" * 3000, "is nested deeper"),
    ("[" * 100_000, "is nested deeper"),
    ('{"a":' * 3000 + "1" + "}" * 3000, "is nested deeper"),
]


@pytest.mark.parametrize(("text", "reason"), BAD_TEXTS, ids=range(len(BAD_TEXTS)))
def test_text_that_is_no_payload_is_refused_at_both_ends(text: str, reason: str) -> None:
    with pytest.raises(InvalidJob, match="payload ") as refused:
        check_text(text)
    with pytest.raises(DecodeError, match="decode payload: ") as undecodable:
        decode(text)
    for line in (str(refused.value), str(undecodable.value)):
        assert reason in line
        assert "canary" not in line
        assert "\n" not in line
        assert len(line) < 200


@pytest.mark.parametrize("text", [r'"\u0000"', r'{"\u0000":1}', r'"\ud800"', '"\ud800"'])
def test_text_that_jsonb_cannot_hold_is_refused(text: str) -> None:
    with pytest.raises(InvalidJob, match=r"NUL|surrogate"):
        check_text(text)


def test_brackets_inside_strings_are_no_levels() -> None:
    text = json.dumps(["[" * 5000, '\\"{' * 2000, "]" * 9])
    assert check_text(text) is text
    assert decode(text)[2] == "]" * 9


def test_a_broken_string_full_of_brackets_ends_in_one_line() -> None:
    with pytest.raises(DecodeError):
        decode('"\\"' + "[" * 5000)


def test_decoding_deep_in_a_stack_is_a_decode_error() -> None:
    def sink(levels: int) -> object:
        return decode("[" * 400 + "]" * 400) if levels == 0 else sink(levels - 1)

    frames = sys.getrecursionlimit() - len(inspect.stack()) - 30
    words = ""
    try:
        sink(frames)
    except DecodeError as error:
        words = str(error)
    # Pythons that count calls in C apart decode it.
    assert words in ("", "decode payload: is nested too deep for this stack: flatten it")


def test_random_values_survive_the_way_there_and_back() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    def value(depth: int) -> Any:
        kind = rng.randrange(8 if depth < 5 else 6)
        if kind < 4:
            return rng.choice([None, True, rng.randrange(-(10**30), 10**30), rng.gauss(0, 1e9)])
        if kind < 6:
            return "".join(chr(rng.choice([rng.randrange(1, 0xD800), rng.randrange(1, 128)]))
                           for _ in range(rng.randrange(20)))  # fmt: skip
        if kind == 6:
            return [value(depth + 1) for _ in range(rng.randrange(6))]
        return {str(value(9)): value(depth + 1) for _ in range(rng.randrange(6))}

    for _ in range(200):
        made = value(0)
        assert decode(check_text(encode(made))) == made
