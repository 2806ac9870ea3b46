"""The test handlers: each misbehaves in one way its payload names. `--app tests.faults.apps:app`.

Handlers write to `hist` over a connection of their own (EVIDENCE_DSN), one per thread, so that no
fault of the product's connections can silence them.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

import reliable_worker as rw
from reliable_worker.jobs.job import Transaction

app = rw.App()

Payload = dict[str, Any]
_EFFECT = "INSERT INTO effects (key, job_id, fence) VALUES (%s, %s, %s)"
_local = threading.local()


def _evidence() -> psycopg.Connection[Any]:
    conn: psycopg.Connection[Any] | None = getattr(_local, "conn", None)
    if conn is None or conn.closed:
        conn = psycopg.connect(
            os.environ["EVIDENCE_DSN"], autocommit=True, application_name="evidence"
        )
        _local.conn = conn
    return conn


def _note(job: rw.Job[Any], event: str) -> None:
    _evidence().execute(
        "INSERT INTO hist (job_id, fence, event, pid, tid) VALUES (%s, %s, %s, %s, %s)",
        (job.id, job.fence, event, os.getpid(), threading.get_native_id()),
    )


@contextmanager
def recorded(job: rw.Job[Any]) -> Iterator[None]:
    """Write the run's start and, however it ends, its end."""
    _note(job, "start")
    try:
        yield
    finally:
        _note(job, "end")


def _finish(job: rw.Job[Payload], how: str) -> None:
    row = (job.key, job.id, job.fence)
    if how == "effect":
        job.effect(_EFFECT, row)
    elif how == "transaction":
        with job.transaction() as tx:
            tx.execute(_EFFECT, row)
    elif how == "finish":

        def effect(tx: Transaction) -> None:
            tx.execute(_EFFECT, row)

        job.finish(effect)


@app.handler("work")
def work(job: rw.Job[Payload]) -> None:
    """{"how": effect | transaction | finish | none, "seconds": s}: the innocent."""
    with recorded(job):
        job.sleep(float(job.payload.get("seconds", 0)))
        _finish(job, job.payload.get("how", "effect"))


@app.handler("gate")
def gate(job: rw.Job[Payload]) -> None:
    """{"open": path}: wait for a file, then an effect."""
    with recorded(job):
        while not Path(job.payload["open"]).exists():
            job.sleep(0.02)
        _finish(job, job.payload.get("how", "effect"))


@app.handler("fail")
def fail(job: rw.Job[Payload]) -> None:
    """{"times": n}: fail on the first n attempts."""
    with recorded(job):
        if job.attempt <= int(job.payload.get("times", 1 << 30)):
            raise RuntimeError(f"attempt {job.attempt} failed on purpose")
        _finish(job, "effect")


@app.handler("crash")
def crash(job: rw.Job[Payload]) -> None:
    """{"signal": n}: kill the own process; {"exit": n}: leave it by os._exit."""
    _note(job, "start")
    if "exit" in job.payload:
        os._exit(job.payload["exit"])
    os.kill(os.getpid(), job.payload.get("signal", signal.SIGKILL))
    time.sleep(60)  # the signal is delivered before this ends


@app.handler("stuck", timeout_seconds=1)
def stuck(job: rw.Job[Payload]) -> None:
    """{"seconds": s}: ignore every cancellation for so long."""
    with recorded(job):
        end = time.monotonic() + float(job.payload.get("seconds", 600))
        while time.monotonic() < end:
            time.sleep(0.05)


@app.handler("slow", timeout_seconds=1)
def slow(job: rw.Job[Payload]) -> None:
    """Outlast the job's timeout, co-operatively."""
    with recorded(job):
        job.sleep(60)


@app.handler("late", timeout_seconds=1)
def late(job: rw.Job[Payload]) -> None:
    """{"seconds": s}: ignore the timeout, then return normally."""
    with recorded(job):
        time.sleep(float(job.payload.get("seconds", 1.5)))
        _finish(job, "effect")


@app.handler("gil")
def gil(job: rw.Job[Payload]) -> None:
    """{"seconds": s}: hold the interpreter's lock, so that no thread of the process runs."""
    _note(job, "start")
    ctypes.PyDLL(None).usleep(int(float(job.payload["seconds"]) * 1e6))
    _note(job, "end")


@app.handler("swallow")
def swallow(job: rw.Job[Payload]) -> None:
    """Swallow an SQL error inside the block."""
    with recorded(job), job.transaction() as tx:
        tx.execute(_EFFECT, (job.key, job.id, job.fence))
        try:
            tx.execute("SELECT 1 / 0")
        except psycopg.Error:
            pass


@app.handler("statement")
def statement(job: rw.Job[Payload]) -> None:
    """{"sql": text, "how": transaction | effect}: an effect, then a statement of the test's."""
    row = (job.key, job.id, job.fence)
    with recorded(job):
        if job.payload.get("how") == "effect":
            job.effect(_EFFECT, row)
            job.effect(job.payload["sql"])
            return
        with job.transaction() as tx:
            tx.execute(_EFFECT, row)
            tx.execute(job.payload["sql"])


@app.handler("second")
def second(job: rw.Job[Payload]) -> None:
    """Open a second block after the first has committed."""
    with recorded(job):
        _finish(job, "transaction")
        try:
            _finish(job, "transaction")
        except rw.AlreadyFinished:
            _note(job, "refused")


@app.handler("after")
def after(job: rw.Job[Payload]) -> None:
    """Raise after the commit."""
    with recorded(job):
        _finish(job, "transaction")
        raise RuntimeError("after the commit")


@app.handler("inside")
def inside(job: rw.Job[Payload]) -> None:
    """{"times": n, "seconds": s}: on the first n runs sleep and raise inside the block."""
    with recorded(job), job.transaction() as tx:
        tx.execute(_EFFECT, (job.key, job.id, job.fence))
        if job.fence <= int(job.payload.get("times", 1)):
            time.sleep(float(job.payload.get("seconds", 0)))
            raise RuntimeError("inside the block")


@app.handler("snooze")
def snooze(job: rw.Job[Payload]) -> None:
    """{"until": path}: ask for later until the file exists."""
    with recorded(job):
        if not Path(job.payload["until"]).exists():
            raise rw.Snooze(0.1)
        _finish(job, "effect")


@app.handler("discard")
def discard(job: rw.Job[Payload]) -> None:
    """Ask never to be run again."""
    with recorded(job):
        raise rw.Discard("not wanted")


@dataclass
class Typed:
    """What `typed` asks for."""

    number: int


@app.handler("typed")
def typed(job: rw.Job[Typed]) -> None:
    """A payload that may not decode."""
    with recorded(job):
        job.effect(_EFFECT, (job.key, job.id, job.fence))


@app.handler("dawdle")
def dawdle(job: rw.Job[Payload]) -> None:
    """Stay in the finishing transaction by many short statements."""
    with recorded(job), job.transaction() as tx:
        tx.execute(_EFFECT, (job.key, job.id, job.fence))
        while True:
            tx.execute("SELECT pg_sleep(0.05)")


@app.handler("plain")
def plain(job: rw.Job[Payload]) -> None:
    """{"seconds": s}: an effect without a connection of the handler's own, for outages."""
    job.sleep(float(job.payload.get("seconds", 0)))
    _finish(job, job.payload.get("how", "effect"))


class Speechless(Exception):
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Uncatchable(BaseException):
    """What no `except Exception` sees."""


def _too_deep(n: int) -> int:
    return _too_deep(n + 1) + 1


ODD: dict[str, Callable[[], object]] = {
    "SystemExit": lambda: sys.exit(0),
    "KeyboardInterrupt": lambda: _raise(KeyboardInterrupt()),
    "GeneratorExit": lambda: _raise(GeneratorExit()),
    "StopIteration": lambda: next(iter(())),
    "Uncatchable": lambda: _raise(Uncatchable("odd")),
    "RecursionError": lambda: _too_deep(0),
    "MemoryError": lambda: bytearray(1 << 62),
    "Speechless": lambda: _raise(Speechless()),
    "huge": lambda: _raise(RuntimeError("x" * 10_000_000)),
    "nul": lambda: _raise(RuntimeError("a\0b")),
    "surrogate": lambda: _raise(RuntimeError("a\udc80b")),
    "newline": lambda: _raise(RuntimeError('\n{"event": "forged"}\n')),
}


def _raise(error: BaseException) -> None:
    raise error


@app.handler("odd")
def odd(job: rw.Job[Payload]) -> None:
    """{"what": name}: fail in one of the ways of ODD."""
    with recorded(job):
        ODD[job.payload["what"]]()


@app.handler("printing")
def printing(job: rw.Job[Payload]) -> None:
    """Write on stdout, which is the log's."""
    with recorded(job):
        print("not a log line", flush=True)
        os.write(1, b"nor this\n")
        _finish(job, "effect")


@app.handler("forking")
def forking(job: rw.Job[Payload]) -> None:
    """{"how": …}: fork, and go on in both processes; "inside": fork in the open transaction."""
    row = (job.key, job.id, job.fence)
    if job.payload["how"] == "inside":
        with job.transaction() as tx:
            os.fork()
            tx.execute(_EFFECT, row)
        return
    os.fork()
    _finish(job, job.payload["how"])
