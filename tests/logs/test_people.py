"""The log as people use it: text with colours on a terminal, lines of a handler that name its job,
and a complaint without end that is said a few times and then counted."""

from __future__ import annotations

import logging
import os
import pty
import re
import subprocess
from collections.abc import Callable

import psycopg
import pytest

from reliable_worker.jobs.events import Event
from reliable_worker.logs.about import about
from reliable_worker.logs.formats import as_coloured_text, as_text, for_journal
from reliable_worker.logs.line import LineFormatter
from reliable_worker.logs.repeats import LINES, TEXTS, WINDOW_SECONDS, Repeated, Repeats
from tests.fixtures.commands import Fleet
from tests.fixtures.waiting import wait_until
from tests.logs.speaker import command, speak

SECONDS = 60.0
FIELDS: dict[str, object] = {"job_id": 7, "kind": "mail", "error": 'no "route"\nto\x1b[31m host'}
EVENT = Event("job_failed", "error", 1_800_000_000.25, FIELDS)


@pytest.mark.quick
def test_text_is_one_line_that_a_value_cannot_forge() -> None:
    line = LineFormatter(as_text).event(EVENT)
    assert line == (
        "08:00:00.250Z error   job_failed       job_id=7 kind=mail"
        r' error="no \"route\"\nto\u001b[31m host"'
    )


def test_colours_are_ours_only() -> None:
    line = LineFormatter(as_coloured_text).event(EVENT)
    assert set(re.findall(r"\x1b\[[0-9]+m", line)) == {"\x1b[31m", "\x1b[2m", "\x1b[0m"}
    plain = LineFormatter(as_text).event(EVENT)
    assert re.sub(r"\x1b\[[0-9]+m", "", line) == plain


def test_an_entry_of_the_journal_has_a_field_a_line() -> None:
    entry = LineFormatter(for_journal(as_text)).event(EVENT).split("\n")
    assert entry[1:] == [
        "PRIORITY=3",
        "SYSLOG_IDENTIFIER=reliable-worker",
        "RELIABLE_WORKER_EVENT=job_failed",
        "RELIABLE_WORKER_JOB_ID=7",
        "RELIABLE_WORKER_KIND=mail",
        r"RELIABLE_WORKER_ERROR=no \"route\"\nto\u001b[31m host",
    ]
    assert entry[0] == f"MESSAGE={LineFormatter(as_text).event(EVENT)}"


def on_a_terminal(program: str, **environment: str) -> str:
    """What the program writes when its stdout is a terminal."""
    leader, follower = pty.openpty()
    try:
        process = subprocess.Popen(
            command(program),
            stdout=follower,
            env={**os.environ, "TERM": "xterm", "NO_COLOR": "", **environment},
        )
        os.close(follower)
        written = b""
        try:
            while part := os.read(leader, 1 << 16):
                written += part
        except OSError:
            pass  # the terminal's other end is closed: its way to say that this was all
        assert process.wait(SECONDS) == 0
    finally:
        os.close(leader)
    return written.decode()


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_a_terminal_gets_colours_unless_it_wants_none(
    environment: dict[str, str], coloured: bool
) -> None:
    program = 'logs.start("info", "text"); emit("supervisor_ready"); logs.close()'
    written = on_a_terminal(program, **environment)
    assert ("\x1b[32m" in written) is coloured
    assert "supervisor_ready" in written


def test_a_pipe_gets_none() -> None:
    program = 'logs.start("info", "text"); emit("supervisor_ready"); logs.close()'
    done = subprocess.run(command(program), capture_output=True, timeout=SECONDS, check=True)
    assert done.stdout.split()[1:] == [b"info", b"supervisor_ready"]


def test_lines_inside_name_the_job_and_lines_outside_do_not() -> None:
    formatter = LineFormatter()
    record = logging.makeLogRecord({"name": "shop", "msg": "closing", "levelno": logging.INFO})
    with about({"job_id": 7, "kind": "mail", "attempt": 2}):
        inside = formatter.format(record)
    assert '"job_id": 7, "kind": "mail", "attempt": 2' in inside
    assert "job_id" not in formatter.format(record)


def test_a_handler_s_own_lines_name_its_job(
    fleet: Callable[..., Fleet], conn: psycopg.Connection, tmp_path: os.PathLike[str]
) -> None:
    (tmp_path / "shop.py").write_text(  # type: ignore[operator]
        "import logging, warnings\nimport reliable_worker as rw\napp = rw.App()\n"
        "@app.handler('talk')\n"
        "def talk(job: rw.Job[dict]) -> None:\n"
        "    logging.getLogger('shop').warning('the shop is %s', 'open')\n"
        "    warnings.warn('soon no more')\n"
    )
    cursor = conn.execute(
        "INSERT INTO jobs (idempotency_key, kind, payload) VALUES ('t', 'talk', '{}') RETURNING id"
    )
    ((job_id,),) = cursor.fetchall()
    worker = fleet("--app", "shop:app", workers=1, env={"PYTHONPATH": str(tmp_path)})
    said = worker.wait_event("log", SECONDS, logger="shop")
    facts = {"job_id": job_id, "kind": "talk", "attempt": 1}
    assert said | facts | {"message": "the shop is open"} == said
    warned = worker.wait_event("warning", SECONDS)
    assert warned | facts == warned


@pytest.mark.quick
def test_repetitions_are_counted_and_told() -> None:
    repeats = Repeats()
    admitted = [repeats.admit("claim_failed", "warning", "refused", 100.0 + n) for n in range(9)]
    assert admitted == [True] * LINES + [False] * (9 - LINES)
    assert repeats.admit("claim_failed", "warning", "another", 109.0)
    assert repeats.ended(109.0) == []
    told = Repeated("claim_failed", "warning", "refused", 9 - LINES)
    assert repeats.ended(100.0 + WINDOW_SECONDS) == [told]
    assert repeats.ended(1000.0) == []
    assert repeats.admit("claim_failed", "warning", "refused", 1000.0)


def test_many_different_texts_are_no_repetition_and_cost_no_memory() -> None:
    repeats = Repeats()
    for number in range(10 * TEXTS):
        assert repeats.admit("log", "error", str(number), 1.0)
    assert len(repeats._windows) == TEXTS


def test_what_was_held_back_is_told_at_the_end() -> None:
    _, lines, _ = speak("""
        for _ in range(20):
            emit("claim_failed", "warning", error="refused")
            logging.getLogger("pool").warning("no connection")
            emit("job_failed", "warning", job_id=7, error="the same")
        logs.close()
    """)
    found = [(line["event"], line.get("count")) for line in lines]
    assert found.count(("claim_failed", None)) == found.count(("log", None)) == LINES
    assert found.count(("job_failed", None)) == 20
    repeated = {str(line["of"]): line["count"] for line in lines if line["event"] == "repeated"}
    assert repeated == {"claim_failed": 20 - LINES, "pool": 20 - LINES}


def test_it_is_told_while_a_process_runs_and_says_nothing_more(
    fleet: Callable[..., Fleet],
) -> None:
    """A database that refuses: some lines, then a number, and the worker goes on."""
    worker = fleet(
        database_url="postgresql://127.0.0.1:1/none", workers=1, claim_pause_seconds=0.05
    )
    wait_until(lambda: worker.find("repeated", of="claim_failed"), SECONDS, "a count")
    (first, *_) = worker.find("repeated", of="claim_failed")
    assert int(str(first["count"])) > LINES
    assert len(worker.find("claim_failed")) <= 4 * LINES
