"""Payload types: a handler gets what its annotation says, or the job fails in one clear line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, Required, TypedDict

import pytest

from reliable_worker.enqueue.typed import check_type, convert
from reliable_worker.jobs.errors import DecodeError


@dataclass(frozen=True)
class Line:
    article: str
    count: int = 1


@dataclass
class Invoice:
    number: int
    total: float
    lines: list[Line]
    note: str | None = None
    tags: dict[str, bool] = field(default_factory=dict)
    state: Literal["open", "paid"] = "open"
    rest: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        if self.total < 0:
            raise ValueError(f"total of {self.note} is negative")


@dataclass
class Tree:
    children: list[Tree]


class Point(TypedDict):
    x: int
    y: NotRequired[int]


class Loose(TypedDict, total=False):
    a: Required[str]
    b: Annotated[int, "why"]


GOOD = {"number": 7, "total": 3, "lines": [{"article": "pen"}, {"article": "ink", "count": 2}]}


def test_nested_dataclasses_are_made() -> None:
    made = convert(GOOD | {"tags": {"vip": True}, "added_later": 1}, Invoice)
    assert made == Invoice(7, 3.0, [Line("pen"), Line("ink", 2)], None, {"vip": True})
    assert type(made.total) is float


@pytest.mark.parametrize(
    ("value", "wanted", "result"),
    [
        ({"a": 1}, dict, {"a": 1}),
        ({"a": 1}, dict[str, int], {"a": 1}),
        ({"a": 1}, Mapping[str, Any], {"a": 1}),
        ([1, 2], Sequence[int], [1, 2]),
        ([1, "a"], tuple[int, str], (1, "a")),
        ([1, 2, 3], tuple[int, ...], (1, 2, 3)),
        ([], tuple, ()),
        (None, None, None),
        (3, int | str, 3),
        ("x", int | str, "x"),
        (None, Line | None, None),
        (2, Literal[1, 2], 2),
        ([{"anything": None}], object, [{"anything": None}]),
        ({"x": 1, "z": 3}, Point, {"x": 1, "z": 3}),
        ({"a": "t", "b": 2}, Loose, {"a": "t", "b": 2}),
        ({"a": "t"}, Loose, {"a": "t"}),
        ({"children": [{"children": []}]}, Tree, Tree([Tree([])])),
    ],
)
def test_json_becomes_the_type(value: Any, wanted: Any, result: Any) -> None:
    check_type(wanted)
    assert convert(value, wanted) == result


@pytest.mark.parametrize(
    ("value", "wanted", "line"),
    [
        ([], Invoice, "it must be an object, not a list"),
        (None, dict, "it must be an object, not null"),
        ({}, Invoice, "number is missing"),
        (GOOD | {"number": "canary"}, Invoice, "number must be an integer, not a text"),
        (GOOD | {"number": True}, Invoice, "number must be an integer, not a boolean"),
        (GOOD | {"number": 1.0}, Invoice, "number must be an integer, not a fraction"),
        (GOOD | {"total": 10**400}, Invoice, "total is too large for a float"),
        (GOOD | {"lines": [{"article": "a"}, 3]}, Invoice, "lines[1] must be an object"),
        (GOOD | {"lines": [{"count": 3}]}, Invoice, "lines[0].article is missing"),
        (GOOD | {"note": 3}, Invoice, "note must be a text, not an integer"),
        (GOOD | {"tags": {"canary": 3}}, Invoice, "tags[…] must be true or false"),
        (GOOD | {"state": "canary"}, Invoice, "state must be one of 'open', 'paid'"),
        (GOOD | {"total": -1, "note": "canary"}, Invoice, "it is refused by Invoice: ValueError"),
        ([1], tuple[int, str], "it must have 2 items, not 1"),
        ({}, Point, "x is missing"),
        ({"x": 1, "y": "canary"}, Point, "y must be an integer"),
        ({}, Loose, "a is missing"),
        ("canary", int | float, "it fits none of its 2 types, being a text"),
        (True, Literal[1], "it must be one of 1"),
    ],
)
def test_what_does_not_fit_names_the_place_and_quotes_nothing(
    value: Any, wanted: Any, line: str
) -> None:
    with pytest.raises(DecodeError) as caught:
        convert(value, wanted)
    assert str(caught.value).startswith(f"decode payload: {line}")
    assert "canary" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_fields_are_refused_only_where_asked() -> None:
    assert convert({"article": "a", "canary": 1}, Line) == Line("a")
    with pytest.raises(DecodeError) as caught:
        convert({"lines": [{"article": "a", "canary": 1}]}, dict[str, list[Line]], strict=True)
    assert "Line does not know" in str(caught.value)
    assert "article, count" in str(caught.value)
    assert "canary" not in str(caught.value)


def test_a_type_that_holds_itself_may_be_too_deep() -> None:
    value: dict[str, Any] = {"children": []}
    for _ in range(2000):
        value = {"children": [value]}
    check_type(Tree)
    with pytest.raises(DecodeError, match="nested too deep"):
        convert(value, Tree)


@dataclass
class Dated:
    at: datetime


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (datetime, "datetime, which JSON has not"),
        (list[Decimal], "Decimal, which JSON has not"),
        (dict[int, str], "dict[str, …]"),
        (Dated, "the payload's Dated.at has type datetime"),
        (set[str], "which JSON has not"),
        (Literal[b"x"], "a Literal may hold"),
    ],
)
def test_a_type_json_has_not_is_refused_beforehand(wanted: Any, words: str) -> None:
    with pytest.raises(TypeError) as caught:
        check_type(wanted)
    assert words in str(caught.value)
