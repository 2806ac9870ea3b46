"""The decoder takes exactly the transfers, and names what is wrong with everything else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_worker.ledger.decode import MAX_AMOUNT, MAX_ID, Refused, Transfer, decode_transfer
from reliable_worker.ledger.problems import PROBLEMS

pytestmark = pytest.mark.quick

GOOD = '{"from_id": 1, "to_id": 2, "amount": 3}'


def with_amount(value: str) -> str:
    return f'{{"from_id": 1, "to_id": 2, "amount": {value}}}'


def refusal(body: bytes | str) -> str:
    """The code, one of status 400; "" for a transfer."""
    code = ""
    try:
        decode_transfer(body.encode() if isinstance(body, str) else body)
    except Refused as refused:
        code = refused.code
    assert not code or PROBLEMS[code][0] == 400
    return code


@pytest.mark.parametrize(
    "body",
    [
        GOOD,
        f" \t\r\n{GOOD}\n ",
        '{"amount":3,"to_id":2,"from_id":1}',
        '{"\\u0061mount":3,"to_id":2,"from_id":1}',
    ],
)
def test_a_transfer_is_taken(body: str) -> None:
    assert decode_transfer(body.encode()) == Transfer(1, 2, 3)


def test_the_limits_are_in() -> None:
    body = json.dumps({"from_id": MAX_ID, "to_id": 1, "amount": MAX_AMOUNT})
    assert decode_transfer(body.encode()) == Transfer(MAX_ID, 1, MAX_AMOUNT)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("", "empty_body"),
        (" \n", "empty_body"),
        (b"\xef\xbb\xbf" + GOOD.encode(), "byte_order_mark"),
        (GOOD.encode("utf-16"), "byte_order_mark"),
        (b'{"from_id": 1, "to_id": 2, "amount": "\xff"}', "invalid_utf8"),
        (b'{"from_id": 1, "to_id": 2, "amount": "\xed\xa0\x80"}', "invalid_utf8"),
        (GOOD[:-1], "invalid_json"),
        ("{'from_id': 1}", "invalid_json"),
        (GOOD.replace("3}", "3,}"), "invalid_json"),
        ("{" + GOOD, "invalid_json"),
        (with_amount("+1"), "invalid_json"),
        (with_amount("01"), "invalid_json"),
        (with_amount("0x10"), "invalid_json"),
        (with_amount("1_0"), "invalid_json"),
        (with_amount("\uff11"), "invalid_json"),
        (with_amount('"\x01"'), "invalid_json"),
        (GOOD + GOOD, "trailing_bytes"),
        (GOOD + "x", "trailing_bytes"),
        (GOOD + "\x00", "trailing_bytes"),
        (GOOD + "\x0b", "trailing_bytes"),
        ("[" * 2000, "too_deep"),
        ('{"a":' * 400, "too_deep"),
        (with_amount("[" * 17 + "]" * 17), "too_deep"),
        (with_amount("NaN"), "non_finite_number"),
        (with_amount("Infinity"), "non_finite_number"),
        (with_amount("-Infinity"), "non_finite_number"),
        (GOOD.replace("}", ', "amount": 3}'), "duplicate_field"),
        (GOOD.replace("}", ', "\\u0061mount": 4}'), "duplicate_field"),
        (with_amount('{"a": 1, "a": 1}'), "duplicate_field"),
        ("[]", "not_an_object"),
        ("null", "not_an_object"),
        ("1", "not_an_object"),
        (GOOD.replace("}", ', "note": 1}'), "unknown_field"),
        ('{"from_id": 1, "to_id": 2}', "missing_field"),
        ("{}", "missing_field"),
        (with_amount("1.0"), "float_not_allowed"),
        (with_amount("1e3"), "float_not_allowed"),
        (with_amount("1E400"), "float_not_allowed"),
        (with_amount("true"), "boolean_not_allowed"),
        (with_amount('"1"'), "string_not_allowed"),
        (with_amount("null"), "null_not_allowed"),
        (with_amount("[1]"), "wrong_type"),
        (with_amount("{}"), "wrong_type"),
        (with_amount("0"), "out_of_range"),
        (with_amount("-0"), "out_of_range"),
        (with_amount("-1"), "out_of_range"),
        (with_amount("1000000000001"), "out_of_range"),
        (with_amount("9" * 4000), "out_of_range"),
        (with_amount("-" + "9" * 4000), "out_of_range"),
        (GOOD.replace('"from_id": 1', f'"from_id": {2**63}'), "out_of_range"),
        (GOOD.replace('"to_id": 2', '"to_id": 0'), "out_of_range"),
        (GOOD.replace('"to_id": 2', '"to_id": 1'), "same_account"),
    ],
)
def test_everything_else_has_its_code(body: bytes | str, code: str) -> None:
    assert refusal(body) == code


def test_brackets_in_strings_are_not_depth() -> None:
    assert refusal(with_amount('"' + "[" * 100 + '\\""')) == "string_not_allowed"


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_transfer_or_a_code(body: bytes) -> None:
    refusal(body)


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
        max_leaves=20,
    ),
    st.fixed_dictionaries(
        {},
        optional={
            name: st.one_of(st.integers(-2, 2**64), st.floats(), st.none(), st.booleans())
            for name in ("from_id", "to_id", "amount")
        },
    ),
)
def test_any_json_is_a_transfer_or_a_code(value: object, fields: dict[str, object]) -> None:
    for one in (value, fields):
        code = refusal(json.dumps(one))
        if not code:
            assert isinstance(one, dict)
            assert all(type(each) is int for each in one.values())
