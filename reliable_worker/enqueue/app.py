"""The application: which kinds of job there are, and the function that runs each.

Floor 2; imports enqueue, jobs. A worker process loads one `App`, claims only its kinds, decodes
each payload by its handler's annotation and calls it. The enqueuing side may use the same object
to have kind and payload checked before anything is stored.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, TypeVar

import psycopg

from reliable_worker.enqueue import enqueue, message, payload, typed
from reliable_worker.enqueue.enqueue import DEFAULT_MAX_ATTEMPTS, DEFAULT_PRIORITY, DEFAULT_QUEUE
from reliable_worker.jobs.errors import (
    DecodeError,
    InvalidJob,
    ReliableWorkerError,
    UnknownKind,
    describe,
)
from reliable_worker.jobs.job import Enqueued, Job
from reliable_worker.settings import SECONDS_LIMIT

Function = TypeVar("Function", bound=Callable[[Any], object])


class AppError(ReliableWorkerError):
    """The application cannot be loaded; one line that says what to mend."""


@dataclass(frozen=True, slots=True)
class Handler:
    """What runs the jobs of one kind. None: the worker's job_timeout_seconds, the row's column."""

    kind: str
    function: Callable[[Any], object]
    payload_type: Any
    timeout_seconds: float | None
    max_attempts: int | None

    def decode(self, text: str, *, strict: bool = False) -> Any:
        """The payload for the handler; `strict` refuses fields its type does not name.

        Raises DecodeError, "decode payload: …", whatever the text is.
        """
        return typed.convert(payload.decode(text), self.payload_type, strict=strict)


class App:
    """Kinds and their handlers; the built-in kind `message` is one of them unless replaced."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self._builtin = Handler(message.KIND, message.handle, message.Message, None, None)

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """Every kind this application runs, with its handler."""
        return MappingProxyType({self._builtin.kind: self._builtin} | self._handlers)

    def handler(
        self,
        kind: str,
        *,
        timeout_seconds: float | None = None,
        max_attempts: int | None = None,
    ) -> Callable[[Function], Function]:
        """Register the decorated function for a kind; the function itself stays as it is.

        The payload's type is the T of its parameter's annotation `Job[T]`. `max_attempts` is what
        `App.enqueue` writes into the job, whose column is the truth. Raises ValueError or
        TypeError for what could never run.
        """
        enqueue.check_name("kind", kind)
        if kind in self._handlers:
            raise ValueError(f"kind {kind!r} has a handler already: {_name(self._handlers[kind])}")
        if timeout_seconds is not None and not 0 < timeout_seconds <= SECONDS_LIMIT:
            raise ValueError(
                f"handler of kind {kind!r}: timeout_seconds must be over 0"
                f" and at most {SECONDS_LIMIT:.0f}"
            )
        if max_attempts is not None:
            enqueue.check_max_attempts(max_attempts)
        frame = inspect.currentframe()
        names = frame.f_back.f_locals if frame and frame.f_back else {}

        def register(function: Function) -> Function:
            payload_type = _payload_type(kind, function, names)
            self._handlers[kind] = Handler(
                kind, function, payload_type, timeout_seconds, max_attempts
            )
            return function

        return register

    def enqueue(
        self,
        conn: psycopg.Connection[Any],
        kind: str,
        payload: Any,
        key: str | None = None,
        *,
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        run_at: datetime | timedelta | None = None,
        max_attempts: int | None = None,
    ) -> Enqueued:
        """`reliable_worker.enqueue`, with the kind and the payload's type checked first.

        `max_attempts` None is the handler's. Raises UnknownKind, InvalidJob (nothing was sent),
        KeyConflict, psycopg.Error.
        """
        job = enqueue.NewJob(
            kind=kind,
            payload=payload,
            key=key,
            queue=queue,
            priority=priority,
            run_at=run_at,
            max_attempts=self.max_attempts(kind) if max_attempts is None else max_attempts,
        )
        row = enqueue.prepare(job)
        self.check(kind, row.payload)
        return enqueue.insert(conn, row)

    def max_attempts(self, kind: str) -> int:
        """The attempts a job of this kind gets. Raises UnknownKind."""
        return self._find(kind).max_attempts or DEFAULT_MAX_ATTEMPTS

    def check(self, kind: str, text: str) -> None:
        """Raise UnknownKind or InvalidJob unless a handler here takes the payload `text`."""
        handler = self._find(kind)
        try:
            handler.decode(text, strict=True)
        except DecodeError as error:
            words = str(error).removeprefix("decode payload: ")
            raise InvalidJob(f"payload is not what kind {kind!r} takes: {words}") from None

    def _find(self, kind: str) -> Handler:
        handler = self.handlers.get(enqueue.check_name("kind", kind))
        if handler is None:
            known = ", ".join(sorted(self.handlers))
            raise UnknownKind(f"kind {kind!r} has no handler; this application has {known}")
        return handler


def load_app(place: str) -> App:
    """The App at "module:attribute". Raises AppError."""
    module_name, _, attribute = place.partition(":")
    # A console script has its own folder on the path, not the one it was started in.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            raise AppError(
                f"application {place}: there is no module {error.name!r}:"
                " start in its folder, or install it"
            ) from None
        raise _import_failed(place, module_name, error) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(place, module_name, error) from error
    found: object = module
    for name in attribute.split("."):
        found = getattr(found, name, None)
    if found is None:
        raise AppError(
            f"application {place}: module {module_name!r} has no {attribute!r}:"
            f" name its App, like {module_name}:app"
        )
    if not isinstance(found, App):
        raise AppError(
            f"application {place}: it is a {type(found).__name__}, not a reliable_worker.App"
        )
    return found


def _import_failed(place: str, module_name: str, error: BaseException) -> AppError:
    """One line with the error and the last place in the user's code."""
    where = ""
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith("<frozen") and file not in (__file__, importlib.__file__):
            where = f" ({os.path.basename(file)}, line {trace.tb_lineno})"
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and error.filename:
        where = f" ({os.path.basename(error.filename)}, line {error.lineno})"
    return AppError(
        f"application {place}: importing {module_name!r} raised {describe(error)}{where}"
    )


def _payload_type(kind: str, function: Callable[..., object], names: Mapping[str, Any]) -> Any:
    """The T of `job: Job[T]`; Any without an annotation. Raises TypeError, one line."""
    where = f"handler of kind {kind!r}"
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{where} must be a plain function: it runs in a thread of its own")
    try:
        signature = inspect.signature(function)
        signature.bind(None)
    except TypeError:
        raise TypeError(f"{where} must take one argument, the job") from None
    try:
        annotated = function if inspect.isroutine(function) else type(function).__call__
        hints = typing.get_type_hints(annotated, localns=dict(names), include_extras=True)
        hint = hints.get(next(iter(signature.parameters)), Any)
        if hint is Any or hint is Job:
            return Any
        if typing.get_origin(hint) is not Job:
            raise TypeError(f"{where} must annotate its parameter as Job[its payload's type]")
        payload_type = typing.get_args(hint)[0]
        typed.check_type(payload_type, f"{where}: its payload")
    except NameError as error:
        raise TypeError(
            f"{where}: its annotation names {error.name!r}, which is not defined there"
        ) from None
    return payload_type


def _name(handler: Handler) -> str:
    return getattr(handler.function, "__qualname__", repr(handler.function))
