"""What is written to last_error: helpful, bounded, valid text, and no payload."""

from types import SimpleNamespace

import pytest
from psycopg import OperationalError

from reliable_worker.jobs.errors import DecodeError, Discard, clean, describe


class Rude(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class Database(Exception):
    sqlstate = "23505"

    def __init__(self, message: str, constraint: str | None) -> None:
        super().__init__(message + "\nDETAIL:  Key (email)=(eve@example.org) already exists.")
        self.diag = SimpleNamespace(message_primary=message, constraint_name=constraint)


def test_a_foreign_error_is_its_class_and_first_line_with_payload_strings_masked() -> None:
    error = ValueError("bad address eve@example.org of 12345\nsecond line")
    payload = {"to": ["eve@example.org"], "n": 12345}
    assert describe(error, payload) == "ValueError: bad address […] of […]"


LONG = "4111 " * 2000


@pytest.mark.parametrize(
    ("error", "payload"),
    [
        (ValueError(LONG), {"card": LONG}),  # longer than the text that is looked at
        (ValueError(f"cannot read {LONG[:300]}..."), {"card": LONG}),  # shortened on its way
        (KeyError('it\'s 4111 \\ "x"'), ['it\'s 4111 \\ "x"']),  # as repr writes it
        (ValueError("card 4111-9999"), [[str(n)] for n in range(3000)] + ["4111-9999"]),
        (ValueError("card 4111-9999"), [f"4111-{n}" for n in range(9990, 10000)]),
    ],
)
def test_no_piece_of_a_payload_is_left_whatever_its_size_and_place(
    error: Exception, payload: object
) -> None:
    assert "4111" not in describe(error, payload)


def test_our_own_words_are_kept_in_full() -> None:
    assert describe(DecodeError("decode payload: message is missing")) == (
        "decode payload: message is missing"
    )
    assert describe(Discard("account closed"), {"x": "account closed"}) == "account closed"


def test_a_database_error_is_class_sqlstate_and_constraint_without_detail() -> None:
    error = Database('duplicate key value violates unique constraint "users_email"', "users_email")
    text = describe(error)
    assert text.startswith("Database [23505] constraint users_email: duplicate key value")
    assert "eve" not in text


def test_quoted_values_of_a_database_error_are_left_out() -> None:
    error = Database('invalid input syntax for type integer: "4111-1111-1111"', None)
    assert "4111" not in describe(error)


def test_a_host_that_is_a_piece_of_a_password_is_left_out() -> None:
    error = OperationalError("[Errno -2] failed to resolve host 's3cret': unknown\nmore")
    assert describe(error) == "OperationalError: [Errno -2] failed to resolve host […]: unknown"


@pytest.mark.parametrize(
    "error",
    [Rude(), ValueError("x" * 10_000_000), ValueError("\ud800 \x00 bad"), ValueError(), KeyError()],
)
def test_whatever_the_error_the_text_fits_the_column(error: BaseException) -> None:
    text = describe(error)
    assert 0 < len(text) <= 1000
    assert "\x00" not in text
    text.encode("utf-8")


def test_the_cut_is_at_a_character() -> None:
    assert clean("ä" * 2000) == "ä" * 1000
