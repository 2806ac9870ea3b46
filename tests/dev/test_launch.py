"""Root finds a way to run the server without making an account or opening a directory, also where
user namespaces are refused; a way that is closed is said in one line."""

import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from reliable_worker.dev import embedded, launch
from reliable_worker.dev.embedded import Cluster, EmbeddedError
from tests.fixtures.waiting import wait_until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to find a way")


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory every account can enter, on a disk that runs programs."""
    with tempfile.TemporaryDirectory(prefix="rw-launch-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def answers(cluster: Cluster) -> bool:
    with psycopg.connect(cluster.dsn()) as conn:
        return conn.execute("SELECT 1").fetchone() == (1,)


@needs_root
def test_root_below_a_closed_directory(place: Path) -> None:
    """In a namespace the server reads what only root can reach, and no mode changes."""
    if not launch.namespaces_allowed():
        pytest.skip("user namespaces are refused on this machine")
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    with Cluster(closed / "data", durable=False) as cluster:
        assert answers(cluster)
        assert (closed / "data").stat().st_uid == 0
    assert closed.stat().st_mode & 0o777 == 0o700


@needs_root
def test_root_by_setpriv(place: Path) -> None:
    data = place / "data"
    with Cluster(data, durable=False, namespaces=False) as cluster:
        assert answers(cluster)
        owner = data.stat().st_uid
        assert owner != 0
        assert cluster.pid is not None
        assert Path(f"/proc/{cluster.pid}").stat().st_uid == owner
        # The account can run the copy of the binaries but not replace it.
        assert {path.stat().st_uid for path in cluster.bin.iterdir()} == {0}
    # The owner of an existing directory decides, wherever namespaces are allowed meanwhile.
    with Cluster(data, durable=False) as again:
        assert answers(again)
        assert data.stat().st_uid == owner


@needs_root
def test_an_account_that_cannot_enter_is_one_line(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EmbeddedError, match="choose a data directory every user can enter") as no:
        Cluster(closed / "data", namespaces=False)
    assert "\n" not in str(no.value)
    assert list(closed.iterdir()) == []


@needs_root
def test_a_directory_of_root_without_namespaces_is_one_line(place: Path) -> None:
    (place / "data").mkdir()
    with pytest.raises(EmbeddedError, match="belongs to root"):
        Cluster(place / "data", namespaces=False)


@needs_root
def test_a_machine_that_refuses_namespaces(place: Path) -> None:
    """A namespace whose limit of further namespaces is 0 stands for a default container."""
    code = (
        "import sys, psycopg\n"
        "from reliable_worker.dev import launch\n"
        "from reliable_worker.dev.embedded import Cluster\n"
        "assert not launch.namespaces_allowed()\n"
        "with Cluster(sys.argv[1], durable=False) as cluster:\n"
        "    psycopg.connect(cluster.dsn()).close()\n"
        "    print('up as', launch.Path(sys.argv[1]).stat().st_uid)\n"
    )
    if not launch.namespaces_allowed():
        pytest.skip("user namespaces are refused on this machine, so the test above has run it")
    limit = (
        'read _; exec sh -ec "echo 0 > /proc/sys/user/max_user_namespaces; exec \\"\\$@\\"" sh "$@"'
    )
    python = [sys.executable, "-c", code, str(place / "data")]
    with subprocess.Popen(
        ["unshare", "--user", "sh", "-c", limit, "sh", *python],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as inside:
        namespace = Path(f"/proc/{inside.pid}/ns/user")
        ours = os.readlink("/proc/self/ns/user")
        wait_until(lambda: os.readlink(namespace) != ours, 20, "the new namespace")
        # All accounts are mapped as they are, so that setpriv finds one to become.
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{inside.pid}/{kind}").write_text("0 0 65536")
        out, err = inside.communicate("go\n", timeout=180)
    assert inside.returncode == 0, err
    assert out.startswith("up as ")


@needs_root
def test_an_account_without_a_name(place: Path) -> None:
    """As containers with an account of their own choosing run: nobody knows its number. Where
    namespaces are refused it gets initdb's own line."""
    uid = 54321
    expected = 0 if launch.namespaces_allowed() else 3
    binaries = launch._copied(embedded.find_binaries(), place / "wheel")
    os.chown(place, uid, uid)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            with Cluster(place / "data", durable=False, binaries=binaries) as cluster:
                code = 0 if answers(cluster) else 2
        except EmbeddedError as error:
            code = 3 if "user does not exist" in str(error) else 4
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == expected


def test_a_foreign_directory_is_refused_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(EmbeddedError, match="belongs to uid"):
        launch.choose(Path("/nowhere"), Path(tempfile.gettempdir()))


def test_state_directory_stands_in_the_state_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() == 0 and not launch.namespaces_allowed():
        pytest.skip("root without namespaces keeps its data elsewhere")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert launch.state_directory("demo") == tmp_path / "reliable-worker" / "demo"


def test_state_directory_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        monkeypatch.setattr(launch, "namespaces_allowed", lambda: True)
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nonexistent")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    expected = tmp_path / f"reliable-worker-{os.geteuid()}" / "demo"
    assert launch.state_directory("demo") == expected
    expected.parent.rmdir()
    expected.parent.symlink_to(tmp_path)
    with pytest.raises(EmbeddedError, match="remove it"):
        launch.state_directory("demo")
