"""What an operator meets stands in docs/reference: settings, metrics, events, errors, verbs."""

import ast
import importlib
from collections.abc import Iterator

import pytest

from tests.tidy.reference import PAGES, REFERENCE
from tests.tidy.sources import PACKAGE, called, none, parsed


@pytest.mark.parametrize("name", PAGES)
def test_the_made_pages_are_up_to_date(name: str) -> None:
    assert (REFERENCE / name).read_text("utf-8") == PAGES[name](), "run `make docs`"


def _page(name: str) -> str:
    return (REFERENCE / name).read_text("utf-8")


def _events() -> set[str]:
    """The names given to emit(...), a choice between two included."""
    return {
        choice.value
        for source in parsed(PACKAGE)
        for call in source.calls()
        if called(call).rpartition(".")[2] == "emit" and call.args
        for choice in ast.walk(call.args[0])
        if isinstance(choice, ast.Constant) and isinstance(choice.value, str)
    }


def test_every_event_is_told() -> None:
    page = _page("events.md")
    none([name for name in sorted(_events()) if f"`{name}`" not in page], "events without a line")


def _errors() -> Iterator[str]:
    for source in parsed(PACKAGE):
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                module = importlib.import_module(source.name.removesuffix(".py").replace("/", "."))
                if issubclass(getattr(module, node.name), BaseException):
                    yield node.name


def test_every_error_is_told() -> None:
    page = _page("errors.md")
    none([name for name in _errors() if f"`{name}`" not in page], "errors without a line")
