"""What code must not do anywhere: wait without an end, ask the wrong clock, hide SQL in Python."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.tidy.sources import PACKAGE, Source, called, name_of, none, parsed, sources

# The wall clock may jump; it stamps and never decides.
WALL_CLOCKS = re.compile(
    r"(^|\.)(time\.(time|time_ns|localtime|gmtime)|datetime\.(now|utcnow|today)|date\.today)$"
)
STAMPS = {
    "reliable_worker/jobs/events.py": "an event's wall clock stamps its log line",
    "reliable_worker/logs/__init__.py": "as does the line that says how many were dropped",
    "reliable_worker/postgres/doctor_live.py": "tells how far it is from the database's",
    "reliable_worker/logs/line.py": "which writes the stamp as a date",
}

# Waits that take a time limit as an argument. A join of strings has one, so none is a thread's.
BARE_WAITS = ("join", "wait", "acquire", "result", "communicate", "select", "getconn")
TIMED_CALLS = (
    "subprocess.run",
    "subprocess.call",
    "subprocess.check_call",
    "subprocess.check_output",
    "socket.create_connection",
)

# The tests' one way to wait, and where waiting is the subject.
SLEEPERS = {
    "tests/fixtures/waiting.py": "wait_until itself",
    "tests/faults/apps.py": "handlers that ignore their cancellation",
}

EXECUTES = (".execute", ".executemany", ".copy")
STATEMENT = re.compile(
    r"\s*(SELECT\s|INSERT\s+INTO|DELETE\s+FROM|UPDATE\s+\S+\s+SET|WITH\s+(RECURSIVE|\w+\s+AS)|MERGE\s+INTO"
    r"|(CREATE|ALTER|DROP)\s+[A-Z]{4,}|TRUNCATE\s|COPY\s+\w+\s*[(F]|(UN)?LISTEN\s|NOTIFY\s|LOCK\s+TABLE"
    r"|SET\s+(LOCAL|SESSION|\w+\s+(TO|=))|START\s+TRANS|BEGIN\s+(TRANS|ISO|READ)|SAVEPOINT\s"
    r"|ROLLBACK\s+TO|GRANT\s|REVOKE\s|EXPLAIN\s)"
)


def test_only_the_database_s_clock_and_the_boot_clock_decide() -> None:
    found = [
        f"{source.at(call)} {called(call)}()"
        for source in parsed(PACKAGE)
        if source.name not in STAMPS
        for call in source.calls()
        if WALL_CLOCKS.search(called(call))
    ]
    none(found, "the wall clock")


def test_levels_of_events_are_levels() -> None:
    """By keyword a level would be one of the event's fields, and the event stay an info."""
    found = [
        source.at(call)
        for source in parsed(PACKAGE)
        for call in source.calls()
        if called(call).split(".")[-1] == "emit"
        and any(keyword.arg == "level" for keyword in call.keywords)
    ]
    none(found, "levels as a field")


def test_no_wait_without_an_end() -> None:
    found = [
        f"{source.at(call)} {called(call)}()"
        for source in sources()
        for call in source.calls()
        if _waits_for_ever(call)
    ]
    none(found, "waits without a limit")


def _waits_for_ever(call: ast.Call) -> bool:
    name, limits = called(call), {word.arg for word in call.keywords}
    if name in TIMED_CALLS:
        return not limits & {"timeout", None}
    _, dot, verb = name.rpartition(".")
    if verb == "communicate":
        return "timeout" not in limits
    if verb == "get":
        # A queue's get; a mapping's has an argument. Context variables are named in capitals.
        return bool(dot) and not call.args and not limits and not name.split(".")[-2].isupper()
    return bool(dot) and verb in BARE_WAITS and not call.args and not limits


def test_tests_wait_for_conditions() -> None:
    """A sleep is either too short or too long. (A handler under test may sleep: in its source.)"""
    found = [
        source.at(call)
        for source in sources()
        if source.name.startswith("tests/") and source.name not in SLEEPERS
        for call in source.calls()
        if called(call) in ("time.sleep", "sleep")
    ]
    none(found, "sleeps in tests")


def test_no_sql_in_python() -> None:
    found = [
        f"{source.name}:{line} {text.strip().splitlines()[0][:60]}"
        for source in parsed(PACKAGE)
        for line, text in _texts_but_docstrings(source)
        if STATEMENT.match(text)
    ]
    found += [
        f"{source.at(call)} {called(call)}"
        for source in parsed(PACKAGE)
        for call in source.calls()
        if called(call).endswith(EXECUTES) and call.args and isinstance(call.args[0], ast.Constant)
    ]
    none(found, "SQL outside .sql files")


def test_every_statement_is_used() -> None:
    """By its name, or by the rest of it where a module puts its own prefix before all of them."""
    python = "\n".join(source.text for source in parsed(PACKAGE))
    idle = [
        name_of(path)
        for path in sorted(PACKAGE.glob("*/sql/*.sql"))
        if not any(f'"{name}"' in python for name in (path.stem, path.stem.partition("_")[2]))
    ]
    none(idle, "statements nobody calls")


def test_sql_is_not_put_together() -> None:
    """Identifiers and values are never pasted into a statement."""
    found = [
        f"{source.at(call)} {called(call)}"
        for source in parsed(PACKAGE)
        for call in source.calls()
        if called(call).endswith(EXECUTES)
        if call.args and isinstance(call.args[0], ast.JoinedStr | ast.BinOp)
    ]
    none(found, "statements made of pieces")


def _texts_but_docstrings(source: Source) -> Iterator[tuple[int, str]]:
    docs = {
        id(node.body[0].value)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value


@pytest.mark.parametrize(
    ("code", "bad"),
    [
        ("thread.join()", True),
        ("thread.join(2)", False),
        ("', '.join(words)", False),
        ("self.queue.get()", True),
        ("self.queue.get(timeout=1)", False),
        ("fields.get('a')", False),
        ("CURRENT.get()", False),
        ("lock.acquire()", True),
        ("lock.acquire(timeout=1)", False),
        ("subprocess.run(words, check=True)", True),
        ("subprocess.run(words, timeout=3)", False),
        ("process.communicate('x')", True),
        ("selector.select()", True),
        ("wait_until(x, 3, 'y')", False),
    ],
)
def test_the_rule_of_waits_bites(code: str, bad: bool) -> None:
    (call,) = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    assert _waits_for_ever(call) is bad
