"""The command itself: verbs, help, one-line errors, exit codes, and nothing secret repeated."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from reliable_worker.cli import failures
from tests.cli.conftest import Cli

VERBS = ("enqueue", "jobs", "queues", "doctor", "top", "config")
READING = (("jobs", "list"), ("queues", "list"), ("enqueue", "message"), ("doctor",))
SECRET = "s3cret-canary"


def with_password(dsn: str, password: str) -> str:
    parts = urlsplit(dsn)
    place = f"{parts.username}:{password}@{parts.hostname}:{parts.port}"
    return urlunsplit(parts._replace(netloc=place))


def test_help_names_every_verb_and_each_verb_teaches_by_example(cli: Cli) -> None:
    top = cli("--help")
    assert top.code == 0
    for verb in ("demo", "migrate", "run", *VERBS):
        assert f"\n  {verb} " in top.out
    for verb in VERBS:
        done = cli(verb, "--help")
        assert (done.code, done.err) == (0, "")
        assert f"reliable-worker {verb}" in done.out
        assert "examples:\n  reliable-worker" in done.out
        assert max(map(len, done.out.splitlines())) <= 110
    for words in (
        *(("jobs", action) for action in ("list", "show", "retry", "cancel", "discard")),
        ("jobs", "reprioritise"),
        *(("queues", action) for action in ("list", "pause", "resume")),
    ):
        assert "--json" in cli(*words, "--help").out


def test_every_setting_is_a_flag_but_the_url(cli: Cli) -> None:
    shown = cli("config", "--help").out
    for name in cli("config", "--json").json:
        flag = "--queue" if name == "queues" else "--" + name.replace("_", "-")
        assert (f"  {flag} " in shown) == (name != "database_url"), flag


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "a verb is missing"),
        (("--nothing",), "unrecognized arguments: --nothing"),
        (("confg",), "there is no verb 'confg': did you mean config?"),
        (("\x1b[31m\n",), "there is no verb '\\x1b[31m\\n'"),
        (("x" * 10_000,), "there is no verb"),
        (("jobs",), "list|show|explain|retry"),
        (("jobs", "sho"), "invalid choice"),
        (("jobs", "show", "-5"), "see reliable-worker jobs show --help"),
        (("jobs", "show", "9" * 30), "not the id of a job"),
        (("jobs", "show", "9223372036854775808"), "not the id of a job"),
        (("jobs", "retry", "٣"), "not the id of a job"),
        (("jobs", "list", "--limit", "0"), "not a number from 1 to 1000"),
        (("jobs", "list", "--stat", "dead"), "unrecognized arguments"),
        (("enqueue",), "KIND"),
        (("enqueue", "k", "--in", "5"), "not a duration"),
        (("enqueue", "k", "--in", "-5m"), "see reliable-worker enqueue --help"),
        (("enqueue", "k", "--in", "nan"), "not a duration"),
        (("enqueue", "k", "--at", "2030-01-01T00:00"), "without a zone"),
        (("enqueue", "k", "--at", "10000-01-01T00:00Z"), "not a time in the years 1 to 9999"),
        (("enqueue", "k", "--at", "infinity"), "not a time"),
        (("enqueue", "k", "--in", "5m", "--at", "2030-01-01T00:00Z"), "not allowed with"),
        (("enqueue", "k", "--priority", "1" * 400), "not a whole number"),
        (("config", "--workers", "0"), "--workers is '0'"),
        (("config", "--config", "/nowhere.toml"), "cannot read the settings file"),
        (("config", f"postgresql://u:{SECRET}@h/d"), "unrecognized arguments: [a URL]"),
        (("doctor", f"password={SECRET}"), "unrecognized arguments"),
        ((f"postgresql://u:{SECRET}@h/d",), "there is no verb '[a URL]'"),
    ],
    ids=range(27),
)
def test_a_slip_of_usage_is_one_line_and_exit_2(
    cli: Cli, words: tuple[str, ...], expected: str
) -> None:
    done = cli(*words)
    assert done.code == 2
    assert expected in done.line
    assert SECRET not in done.err


@pytest.mark.parametrize("words", READING, ids=" ".join)
@pytest.mark.parametrize(
    "url",
    [
        "",
        SECRET,
        f"postgresql://u:{SECRET}@h/d?nonsense={SECRET}",
        f"postgresql://u:{SECRET}%zz@h/d",
        f"postgres//u:{SECRET}@h/d",
        f"host=h password='{SECRET}",
        f"postgresql://u@h:{SECRET}/d",
        f"postgresql://u:{SECRET}@h:99999/d",
        f"postgresql://u:{SECRET}@h:0/d",
        f"host=a,b,c port=1,2 password={SECRET}",
        f"postgresql://u@h/d?sslmode={SECRET}",
        f"postgresql://u@h/d?connect_timeout={SECRET}",
        f"host=h hostaddr={SECRET}",
    ],
    ids=range(13),
)
def test_a_malformed_url_is_exit_2(cli: Cli, words: tuple[str, ...], url: str) -> None:
    done = cli(*words, env={"DATABASE_URL": url})
    assert done.code == 2
    assert "DATABASE_URL" in done.line
    assert SECRET not in done.err


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_an_unreachable_database_is_exit_3(
    cli: Cli, dsn: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    password = tmp_path / "password"
    password.write_text(f"{SECRET}\n")
    parts = urlsplit(dsn)
    cases: list[tuple[dict[str, str], str]] = [
        ({"DATABASE_URL": with_password(dsn, SECRET)}, "it refuses the password"),
        (
            {"DATABASE_URL": dsn, "RELIABLE_WORKER_PASSWORD_FILE": str(password)},
            "it refuses the password",
        ),
        ({"DATABASE_URL": dsn.replace(parts.path, f"/{SECRET}")}, "it has no such database"),
        ({"DATABASE_URL": f"postgresql://u:{SECRET}@127.0.0.1:1/d"}, "nothing listens there"),
        ({"DATABASE_URL": f"postgresql://u:p@{SECRET}.invalid/d"}, "its host name is not known"),
        ({"DATABASE_URL": f"host={tmp_path} user=u password={SECRET}"}, "no such socket"),
    ]
    for env, reason in cases:
        done = cli(*words, env=env)
        assert (done.code, reason in done.line) == (3, True), done.err
        assert SECRET not in done.err


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_password_file_that_cannot_be_read_is_exit_2(
    cli: Cli, dsn: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name, reason in (("nowhere", "No such file"), ("", "Is a directory"), ("binary", "UTF-8")):
        place = str(tmp_path / name)
        done = cli(*words, env={"DATABASE_URL": dsn, "RELIABLE_WORKER_PASSWORD_FILE": place})
        assert done.code == 2
        assert reason in done.line


@pytest.mark.parametrize("words", [words for words in READING if words != ("doctor",)])
def test_a_missing_schema_is_exit_4(cli: Cli, empty_dsn: str, words: tuple[str, ...]) -> None:
    done = cli(*words, env={"DATABASE_URL": empty_dsn})
    assert done.code == 4
    assert "migrate up" in done.line


def test_settings_that_do_not_fit_are_exit_2(cli: Cli) -> None:
    done = cli("config", env={"RELIABLE_WORKER_STOP_SECONDS": "20"})
    assert done.code == 2
    assert "stop_seconds" in done.line
    assert cli("config", env={"RELIABLE_WORKER_STOP_SECOND": "9"}).code == 2


def test_an_unexpected_error_is_one_line_without_a_traceback() -> None:
    code, line = failures.explain(RuntimeError("first\nsecond"))
    assert code == 1
    assert "RuntimeError: first" in line
    assert "second" not in line


@pytest.mark.parametrize(
    ("sqlstate", "code"),
    [("55P03", 75), ("40P01", 75), ("57014", 1), ("42P01", 4), ("42501", 1), ("53300", 3)],
)
def test_what_the_database_says_has_its_exit_code(sqlstate: str, code: int) -> None:
    error = psycopg.errors.lookup(sqlstate)("words")
    assert failures.explain(error)[0] == code


@pytest.mark.quick
def test_as_a_process_it_is_quick_to_answer_and_loads_only_its_verb(
    run_cli: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_cli(["--version"])
    assert done.returncode == 0
    assert done.stdout.startswith("reliable-worker ")
    done = run_cli(["nonsense"])
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    code = (
        "import sys; from reliable_worker.cli.main import main\n"
        "sys.argv = ['x', 'config']; main()\n"
        "assert not {'psycopg', 'reliable_worker.cli.enqueue', 'tomllib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_a_reader_that_leaves_is_no_traceback(dsn: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "reliable_worker", "config"],
            check=False,
            env={**os.environ, "DATABASE_URL": dsn},
            stdout=gone,
            stderr=subprocess.PIPE,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (1, b"")
