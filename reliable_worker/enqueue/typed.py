"""Payload types: a JSON value made into what a handler's annotation asks for.

Floor 2, between a payload's text (`payload.py`) and its handler (`app.py`). Imports jobs only.
Known are the plain JSON types, list, tuple, dict with text keys, unions, Literal, dataclasses and
TypedDicts, nested as one likes. Everything else is refused when the handler is registered, so
that a job never fails for a type nobody can decode.

Fields a type does not name are ignored when a job runs, so that the enqueuing side may be deployed
first, and refused when it is enqueued, where they are a slip of the pen. Errors name the place by
the type's own field names, never by the payload's contents.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from reliable_worker.jobs.errors import DecodeError, describe

_PLAIN = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}
_WORDS = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a fraction",
    str: "a text",
    list: "a list",
    dict: "an object",
}
_LISTS = (list, Sequence)
_DICTS = (dict, Mapping)


def check_type(wanted: Any, place: str = "the payload") -> None:
    """Raise TypeError, one line, unless `convert` can make values of this type."""
    _check(wanted, place, set())


def convert(value: Any, wanted: Any, *, strict: bool = False) -> Any:
    """`value`, parsed JSON, as `wanted`; `strict` refuses fields the type does not name.

    Raises DecodeError, "decode payload: …".
    """
    try:
        return _convert(value, wanted, "", strict)
    except RecursionError:
        raise DecodeError("decode payload: nested too deep for its type") from None


def _check(wanted: Any, place: str, seen: set[Any]) -> None:
    origin, args = get_origin(wanted), get_args(wanted)
    if wanted in (Any, object, None, type(None), *_PLAIN, *_LISTS, *_DICTS, tuple):
        return
    if origin in (Annotated, Required, NotRequired):
        _check(args[0], place, seen)
    elif origin in (Union, types.UnionType):
        for arg in args:
            _check(arg, place, seen)
    elif origin is Literal:
        if not all(isinstance(arg, str | int | None) for arg in args):
            raise TypeError(f"{place}: a Literal may hold texts, integers, booleans and None")
    elif origin in _DICTS:
        if args[0] not in (str, Any):
            raise TypeError(f"{place}: JSON's keys are texts, so the type must be dict[str, …]")
        _check(args[1], place, seen)
    elif origin in (*_LISTS, tuple):
        for arg in args:
            if arg is not Ellipsis:
                _check(arg, place, seen)
    elif _is_record(wanted):
        if wanted not in seen:  # a type may hold itself
            seen.add(wanted)
            for name, hint in _hints(wanted).items():
                _check(hint, f"{place}'s {wanted.__name__}.{name}", seen)
    else:
        name = getattr(wanted, "__name__", None) or str(wanted)
        raise TypeError(
            f"{place} has type {name}, which JSON has not:"
            " use dict, list, str, int, float, bool, None, a dataclass or a TypedDict"
        )


def _convert(value: Any, wanted: Any, place: str, strict: bool) -> Any:
    if wanted is Any or wanted is object:
        return value
    origin, args = get_origin(wanted), get_args(wanted)
    if origin in (Annotated, Required, NotRequired):
        return _convert(value, args[0], place, strict)
    if wanted is None or wanted is type(None):
        return value if value is None else _refuse(place, "null", value)
    if wanted in _PLAIN:
        return _plain(value, wanted, place)
    if origin in (Union, types.UnionType):
        return _union(value, args, place, strict)
    if origin is Literal:
        for arg in args:
            if type(arg) is type(value) and arg == value:
                return value
        raise _error(place, f"must be one of {', '.join(map(repr, args))}")
    if wanted is tuple or origin is tuple:
        return _tuple(value, args, place, strict)
    if wanted in _LISTS or origin in _LISTS:
        if not isinstance(value, list):
            return _refuse(place, "a list", value)
        inner = args[0] if args else Any
        return [_convert(v, inner, f"{place}[{i}]", strict) for i, v in enumerate(value)]
    if not isinstance(value, dict):
        return _refuse(place, "an object", value)
    if wanted in _DICTS or origin in _DICTS:
        inner = args[1] if args else Any
        return {key: _convert(v, inner, f"{place}[…]", strict) for key, v in value.items()}
    return _record(value, wanted, place, strict)


def _plain(value: Any, wanted: Any, place: str) -> Any:
    if type(value) is wanted:
        return value
    if wanted is float and type(value) is int:  # JSON writes 2.0 as 2
        try:
            return float(value)
        except OverflowError:
            raise _error(place, "is too large for a float") from None
    return _refuse(place, _PLAIN[wanted], value)


def _union(value: Any, args: tuple[Any, ...], place: str, strict: bool) -> Any:
    errors = []
    for arg in args:
        try:
            return _convert(value, arg, place, strict)
        except DecodeError as error:
            if arg is not type(None):
                errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    raise _error(place, f"fits none of its {len(args)} types, being {_word(value)}")


def _tuple(value: Any, args: tuple[Any, ...], place: str, strict: bool) -> tuple[Any, ...]:
    if not isinstance(value, list):
        _refuse(place, "a list", value)
    if not args:
        return tuple(value)
    if len(args) == 2 and args[1] is Ellipsis:
        args = (args[0],) * len(value)
    if len(args) != len(value):
        raise _error(place, f"must have {len(args)} items, not {len(value)}")
    pairs = enumerate(zip(value, args, strict=True))
    return tuple(_convert(v, arg, f"{place}[{i}]", strict) for i, (v, arg) in pairs)


def _record(value: dict[str, Any], wanted: Any, place: str, strict: bool) -> Any:
    """A dataclass or a TypedDict from an object."""
    hints, required = _hints(wanted), _required(wanted)
    missing = [name for name in hints if name in required and name not in value]
    if missing:
        raise _error(_join(place, missing[0]), "is missing")
    unknown = len(value.keys() - hints.keys())
    if strict and unknown:
        names = ", ".join(hints) or "none"
        raise _error(place, f"has {unknown} fields {wanted.__name__} does not know; it has {names}")
    known = {
        name: _convert(value[name], hint, _join(place, name), strict)
        for name, hint in hints.items()
        if name in value
    }
    if is_typeddict(wanted):
        return value | known
    try:
        return wanted(**known)
    except Exception as error:  # a __post_init__ that refuses the values
        raise _error(place, f"is refused by {wanted.__name__}: {describe(error, value)}") from None


def _is_record(wanted: Any) -> bool:
    return isinstance(wanted, type) and (dataclasses.is_dataclass(wanted) or is_typeddict(wanted))


@cache
def _hints(wanted: Any) -> dict[str, Any]:
    hints = get_type_hints(wanted, include_extras=True)
    if is_typeddict(wanted):
        return hints
    return {f.name: hints[f.name] for f in dataclasses.fields(wanted) if f.init}


@cache
def _required(wanted: Any) -> frozenset[str]:
    hints = _hints(wanted)
    if is_typeddict(wanted):
        # In a module with postponed annotations the class does not see its own NotRequired.
        marks = {name: get_origin(hint) for name, hint in hints.items()}
        return frozenset(
            name
            for name in hints
            if marks[name] is Required
            or (name in wanted.__required_keys__ and marks[name] is not NotRequired)
        )
    return frozenset(
        f.name
        for f in dataclasses.fields(wanted)
        if f.init and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    )


def _join(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _word(value: Any) -> str:
    return _WORDS.get(type(value), "something else")


def _refuse(place: str, wanted: str, value: Any) -> Any:
    raise _error(place, f"must be {wanted}, not {_word(value)}")


def _error(place: str, words: str) -> DecodeError:
    return DecodeError(f"decode payload: {place or 'it'} {words}")
