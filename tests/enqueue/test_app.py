"""The application: handlers by kind, payloads by their annotation, one line for every slip."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import psycopg
import pytest

import reliable_worker as rw
from reliable_worker.enqueue.app import AppError, load_app
from reliable_worker.enqueue.message import Message

Connection = psycopg.Connection[Any]


@dataclass
class Invoice:
    number: int
    note: str = ""


class Mail(TypedDict):
    to: str


def test_a_handler_is_registered_and_stays_a_function() -> None:
    app = rw.App()

    @app.handler("invoice.send", timeout_seconds=3, max_attempts=7)
    def send(job: rw.Job[Invoice]) -> None:
        """Sends."""

    assert send.__doc__ == "Sends."
    handler = app.handlers["invoice.send"]
    assert handler.function is send
    assert (handler.timeout_seconds, handler.max_attempts) == (3, 7)
    assert handler.payload_type is Invoice
    assert handler.decode('{"number": 3, "later": true}') == Invoice(3)
    with pytest.raises(rw.DecodeError, match="decode payload: number is missing"):
        handler.decode("{}")
    with pytest.raises(TypeError):
        app.handlers["x"] = handler  # type: ignore[index]


def test_the_annotation_says_the_type() -> None:
    @dataclass
    class Local:
        a: int

    app = rw.App()

    class Callme:
        def __call__(self, job: rw.Job[Mail]) -> None: ...

    @app.handler("local")
    def local(job: rw.Job[Local]) -> None: ...

    @app.handler("plain")
    def plain(job): ...  # type: ignore[no-untyped-def]

    @app.handler("bare")
    def bare(job: rw.Job) -> None: ...  # type: ignore[type-arg]

    @app.handler("list")
    def listed(job: rw.Job[list[int]], more: int = 3) -> None: ...

    app.handler("object")(Callme())
    app.handler("partial")(functools.partial(listed, more=4))
    types = {kind: handler.payload_type for kind, handler in app.handlers.items()}
    assert types == {
        "message": Message,
        "local": Local,
        "plain": Any,
        "bare": Any,
        "list": list[int],
        "object": Mail,
        "partial": Any,
    }


def test_every_app_carries_message_unless_it_has_its_own() -> None:
    app = rw.App()
    assert list(app.handlers) == ["message"]

    @app.handler("message")
    def own(job: rw.Job[dict[str, Any]]) -> None: ...

    assert app.handlers["message"].function is own
    with pytest.raises(ValueError, match="kind 'message' has a handler already"):
        app.handler("message")
    assert rw.App().handlers["message"].function is not own


async def coroutine(job: Any) -> None: ...


def generator(job: Any) -> Any:
    yield


def nothing() -> None: ...


def two(job: Any, other: Any) -> None: ...


def number(job: int) -> None: ...


def dated(job: rw.Job[complex]) -> None: ...


def undefined(job: rw.Job[Undefined]) -> None: ...  # type: ignore[name-defined]  # noqa: F821 on purpose


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (coroutine, "must be a plain function"),
        (generator, "must be a plain function"),
        (nothing, "must take one argument, the job"),
        (two, "must take one argument, the job"),
        (number, r"must annotate its parameter as Job\["),
        (dated, "its payload has type complex, which JSON has not"),
        (undefined, "names 'Undefined', which is not defined"),
    ],
)
def test_a_function_that_cannot_be_a_handler_is_refused(
    function: Callable[..., Any], words: str
) -> None:
    with pytest.raises(TypeError, match=f"handler of kind 'k'.*{words}"):
        rw.App().handler("k")(function)


@pytest.mark.parametrize(
    "given",
    [
        {"kind": ""},
        {"kind": "k" * 129},
        {"kind": "a\0"},
        {"timeout_seconds": 0},
        {"timeout_seconds": float("nan")},
        {"timeout_seconds": float("inf")},
        {"max_attempts": 0},
        {"max_attempts": 2**31},
    ],
)
def test_limits_that_cannot_be_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        rw.App().handler(**{"kind": "k"} | given)


def test_enqueue_checks_kind_and_type_and_takes_the_handlers_attempts(conn: Connection) -> None:
    app = rw.App()

    @app.handler("invoice.send", max_attempts=9)
    def send(job: rw.Job[Invoice]) -> None: ...

    first = app.enqueue(conn, "invoice.send", Invoice(1), key="a")
    assert app.enqueue(conn, "invoice.send", {"number": 1, "note": ""}, "a").id == first.id
    app.enqueue(conn, "invoice.send", {"number": 2}, max_attempts=1)
    app.enqueue(conn, "message", {"message": "x"})
    rows = conn.execute("SELECT max_attempts FROM jobs ORDER BY id").fetchall()
    assert rows == [(9,), (1,), (5,)]
    with pytest.raises(rw.UnknownKind, match=r"this application has invoice\.send, message"):
        app.enqueue(conn, "invoice.sent", {})
    for payload in ({}, {"number": "1"}, {"number": 1, "nots": ""}, None):
        with pytest.raises(rw.InvalidJob, match="payload is not what kind"):
            app.enqueue(conn, "invoice.send", payload)
    assert conn.execute("SELECT count(*) FROM jobs").fetchone() == (3,)


def test_the_public_names_load_in_any_order_and_late() -> None:
    code = (
        "import sys, reliable_worker as rw\n"
        "assert not {'psycopg', 'reliable_worker.enqueue'} & set(sys.modules)\n"
        "assert set(rw.__all__) <= set(dir(rw))\n"
        "for name in sys.argv[1:]: getattr(rw, name)\n"
        "import reliable_worker.enqueue.app, inspect\n"
        "from reliable_worker.jobs.errors import InvalidJob\n"
        "try: rw.enqueue(None, 'k', float('nan'))\n"
        "except InvalidJob: print('called')\n"
        "for name in rw.__all__: getattr(rw, name)\n"
    )
    for first in (["enqueue"], ["App", "enqueue"], ["enqueue_many", "App"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *first],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "called\n", "")
    with pytest.raises(AttributeError):
        _ = rw.nothing


MODULES = {
    "good": "import reliable_worker as rw\napp = rw.App()\nclass deep: app = app\n",
    "raises": "def f():\n    raise RuntimeError('boom\\nsecond line')\nf()\n",
    "leaves": "import sys\nsys.exit(3)\n",
    "needs": "import a_module_that_is_not_there\n",
    "broken": "def f(:\n",
    "pkg/__init__": "",
    "pkg/jobs": "import reliable_worker as rw\napp = rw.App()\n",
    "other": "app = 3\n",
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in MODULES.items():
        file = tmp_path / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    monkeypatch.chdir(tmp_path)
    # as a console script has it: the folder it was started in is not on the path
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(tmp_path))])
    for name in list(sys.modules):
        if name.partition("/")[0] in MODULES or name.startswith("pkg"):
            monkeypatch.delitem(sys.modules, name)
    return tmp_path


def test_an_app_is_loaded_from_the_folder_one_stands_in(modules: Path) -> None:
    assert isinstance(load_app("good:app"), rw.App)
    assert load_app("good:deep.app") is load_app("good:app")
    assert isinstance(load_app("pkg.jobs:app"), rw.App)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("nowhere:app", "there is no module 'nowhere'"),
        ("pkg.nowhere:app", "there is no module 'pkg.nowhere'"),
        ("good:ap", "module 'good' has no 'ap': name its App"),
        ("good:app.x", "has no 'app.x'"),
        ("other:app", "it is a int, not a reliable_worker.App"),
        ("raises:app", "raised RuntimeError: boom (raises.py, line 2)"),
        ("leaves:app", "raised SystemExit: 3 (leaves.py, line 2)"),
        ("needs:app", "raised ModuleNotFoundError: No module named"),
        ("broken:app", "SyntaxError"),
    ],
)
def test_an_app_that_cannot_be_loaded_is_one_line(modules: Path, place: str, words: str) -> None:
    with pytest.raises(AppError) as caught:
        load_app(place)
    line = str(caught.value)
    assert line.startswith(f"application {place}: ")
    assert words in line
    assert "\n" not in line
