"""Programs that log, run as processes of their own: standard output is taken once per process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

# What every program begins with; the test gives the rest.
PROLOGUE = """
import logging, os, signal, subprocess, sys, threading, time, warnings
from reliable_worker import logs
from reliable_worker.jobs import events
from reliable_worker.jobs.events import emit
logs.take_stdout()
logs.start("info")
"""

SECONDS = 60.0


def command(program: str) -> list[str]:
    """The program as an argument vector."""
    return [sys.executable, "-c", PROLOGUE + textwrap.dedent(program)]


@contextmanager
def speaking(
    program: str, stdout: int, stderr: int | None = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """The program, running; killed at the end if need be."""
    process = subprocess.Popen(command(program), stdout=stdout, stderr=stderr)
    try:
        yield process
    finally:
        process.kill()
        process.wait(SECONDS)
        if process.stderr is not None:
            process.stderr.close()


def speak(program: str) -> tuple[int, list[dict[str, object]], str]:
    """Run to the end on a pipe that is read: (exit code, lines, stderr)."""
    done = subprocess.run(command(program), capture_output=True, timeout=SECONDS, check=False)
    return done.returncode, parsed(done.stdout), done.stderr.decode()


def parsed(output: bytes) -> list[dict[str, object]]:
    """Every line as an object; fails on anything else, an unfinished line included."""
    assert output.endswith(b"\n") or not output, output[-200:]
    return [one(line) for line in output.splitlines(keepends=True)]


def one(line: bytes) -> dict[str, object]:
    assert len(line) <= 4096
    assert line.isascii()
    found = json.loads(line)
    assert isinstance(found, dict)
    assert list(found)[:3] == ["time", "level", "event"]
    return found


def read_to_end(descriptor: int) -> bytes:
    parts = []
    while part := os.read(descriptor, 1 << 20):
        parts.append(part)
    return b"".join(parts)
