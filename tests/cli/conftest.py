"""Verbs run inside the test's process: a hundredth of the time that a subprocess takes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from typing import Any

import pytest

from reliable_worker.cli.main import main
from tests.fixtures.commands import clean_environment


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def line(self) -> str:
        """The one line of an error; nothing else was printed."""
        assert self.out == ""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("reliable-worker: ")
        assert len(lines[0]) < 300
        return lines[0].removeprefix("reliable-worker: ")


Cli = Callable[..., Done]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`cli("jobs", "list", env={...}, input=b"...")` in a cleaned environment."""

    def call(*words: str, env: Mapping[str, str] | None = None, input: bytes = b"") -> Done:
        with monkeypatch.context() as patch:
            for name in list(os.environ):
                patch.delenv(name)
            for name, value in clean_environment(**(env or {})).items():
                patch.setenv(name, value)
            patch.setattr(sys, "stdin", TextIOWrapper(BytesIO(input)))
            capsys.readouterr()
            try:
                code = main(words)
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 1
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return call


@pytest.fixture
def db(cli: Cli, dsn: str) -> Cli:
    """The same on the test's database."""

    def call(*words: str, env: Mapping[str, str] | None = None, input: bytes = b"") -> Done:
        return cli(*words, env={"DATABASE_URL": dsn, **(env or {})}, input=input)

    return call
