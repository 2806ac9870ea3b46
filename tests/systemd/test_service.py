"""The installed service under a real systemd: ready, reload, stop, watchdog, deaths, memory, and a
database that is away for longer than systemd is patient."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.commands import ROOT
from tests.fixtures.waiting import wait_until
from tests.systemd.conftest import install
from tests.systemd.machine import SECONDS, Machine

SHOP = Path(__file__).with_name("shop.py")
# The drain: stop_seconds, which TimeoutStopSec exceeds.
STOP_SECONDS = 10.0


@pytest.fixture(scope="module")
def service(machine: Machine) -> Iterator[Machine]:
    """The service, installed as the page says, with an application of its own."""
    install(machine)
    machine.write("/opt/reliable-worker/shop.py", SHOP.read_text("utf-8"))
    machine.shell(
        "echo RELIABLE_WORKER_APP=shop:app >>/etc/reliable-worker/worker.env\n"
        "systemctl restart reliable-worker"
    )
    yield machine
    # Before the database: it has jobs to give back.
    machine.systemctl("stop", "reliable-worker")


@pytest.fixture(autouse=True)
def active(service: Machine) -> Iterator[None]:
    """Each test begins with a running service without drop-ins and an empty queue."""
    service.drop_in("")
    service.systemctl("start", "database")
    service.systemctl("reset-failed", check=False)
    service.sql("DELETE FROM jobs")
    service.systemctl("start", "reliable-worker")
    yield
    service.run("rm", "-f", "/srv/go")


def add(service: Machine, kind: str, key: str, payload: object = None) -> None:
    service.sql(
        "INSERT INTO jobs (idempotency_key, kind, payload) VALUES (:'key', :'kind', :'payload')",
        key=key,
        kind=kind,
        payload=json.dumps(payload or {}),
    )


def row(service: Machine, key: str, columns: str = "state") -> str:
    """The named columns of a job, with bars between them."""
    found = json.loads(
        service.sql("SELECT to_jsonb(j) FROM jobs AS j WHERE idempotency_key = :'key'", key=key)
    )
    return "|".join(str(found[column]) for column in columns.split(", "))


def wait_row(service: Machine, key: str, value: str, columns: str = "state") -> None:
    wait_until(lambda: row(service, key, columns) == value, SECONDS, f"{key}: {columns} {value}")


def restart(service: Machine, drop_in: str) -> int:
    """Restart with unit settings of a test's own; the main process."""
    service.drop_in(drop_in)
    service.systemctl("restart", "reliable-worker")
    return int(service.show("MainPID"))


def wait_other(service: Machine, pid: int) -> None:
    """Until the service runs again under another main process."""

    def back() -> bool:
        # the pid first: it is 0 between two processes, and the state is asked a moment later
        other = int(service.show("MainPID")) not in (0, pid)
        return other and service.show("ActiveState") == "active"

    wait_until(back, SECONDS, "the service restarted")


def test_the_status_line_is_live(service: Machine) -> None:
    well = "ready: 2 of 2 worker processes ready, 0 jobs held"
    service.wait_show("StatusText", well)
    service.systemctl("stop", "database")
    wait_until(lambda: "database" in service.show("StatusText"), SECONDS, "a status that says so")
    service.systemctl("start", "database")
    service.wait_show("StatusText", well)
    assert service.show("NRestarts") == "0"


def test_it_is_active_only_when_ready_however_late_the_database_comes(service: Machine) -> None:
    """Later than TimeoutStartSec, and than the interval within which five failed starts would end
    the service for good (StartLimitIntervalSec, 10 s)."""
    service.systemctl("stop", "reliable-worker")
    service.systemctl("stop", "database")
    service.drop_in("TimeoutStartSec=3s")
    service.systemctl("start", "--no-block", "reliable-worker")
    service.wait_show("ActiveState", "activating")
    pid = service.show("MainPID")

    def waited() -> bool:
        assert service.show("ActiveState") == "activating"
        took = service.run("ps", "-o", "etimes=", "-p", service.show("MainPID")).stdout
        return int(took) >= 12

    wait_until(waited, SECONDS, "twelve seconds without a database")
    assert "database" in service.show("StatusText")
    service.systemctl("start", "database")
    service.wait_show("ActiveState", "active")
    assert service.show("MainPID") == pid
    assert service.show("NRestarts") == "0"


def test_a_reload_loses_no_job(service: Machine) -> None:
    add(service, "wait", "long", {"until": "/srv/go"})
    wait_row(service, "long", "running")
    children = service.pids_of_unit()
    pid = service.show("MainPID")
    service.shell("sed -i 's/^workers = .*/workers = 6/' /etc/reliable-worker/worker.toml")
    service.systemctl("reload", "--no-block", "reliable-worker")
    wait_until(
        lambda: len(service.pids_of_unit() - children) > 0, SECONDS, "a child of the new settings"
    )
    service.write("/srv/go", "")
    wait_row(service, "long", "succeeded|1", "state, attempts")
    wait_until(lambda: service.show("ActiveState") == "active", SECONDS, "the reload's end")
    add(service, "message", "after", {"message": "x"})
    wait_row(service, "after", "succeeded")
    assert service.show("MainPID") == pid
    service.shell("sed -i 's/^workers = .*/workers = 4/' /etc/reliable-worker/worker.toml")


@pytest.mark.parametrize(
    "words", [("stop", "reliable-worker"), ("kill", "-s", "TERM", "reliable-worker")]
)
def test_a_stop_gives_jobs_back_within_its_budget(service: Machine, words: tuple[str, ...]) -> None:
    add(service, "wait", "given-back", {"until": "/srv/never"})
    wait_row(service, "given-back", "running")
    service.systemctl(*words)
    wait_until(
        lambda: service.show("ActiveState") == "inactive", STOP_SECONDS + 5, "an inactive service"
    )
    assert service.show("Result") == "success"
    assert service.show("ExecMainStatus") == "0"
    assert row(service, "given-back", "state, attempts") == "ready|0"
    assert service.pids_of_unit() == set()


def test_a_stopped_parent_is_restarted_by_the_watchdog(service: Machine) -> None:
    pid = restart(service, "WatchdogSec=3s\nTimeoutAbortSec=2s\nRestartSec=100ms")
    service.systemctl("kill", "--kill-who=main", "-s", "STOP", "reliable-worker")
    wait_other(service, pid)
    service.wait_show("NRestarts", "1")
    assert "Watchdog timeout" in service.journal("-o", "cat", "-u", "reliable-worker")
    assert not service.run("ps", "-o", "pid=", "-p", str(pid), check=False).stdout


def test_a_killed_parent_leaves_no_child(service: Machine) -> None:
    short = "Environment=RELIABLE_WORKER_LEASE_SECONDS=5"
    pid = restart(service, f"RestartSec=100ms\n{short}")
    add(service, "wait", "orphaned", {"until": "/srv/go"})
    wait_row(service, "orphaned", "running")
    before = service.pids_of_unit()
    assert len(before) >= 4
    service.systemctl("kill", "--kill-who=main", "-s", "KILL", "reliable-worker")
    wait_other(service, pid)
    assert not before & service.pids_of_unit()
    service.write("/srv/go", "")
    wait_row(service, "orphaned", "succeeded")


def test_a_child_over_the_memory_limit_is_a_crash_with_its_reason(service: Machine) -> None:
    pid = restart(service, "MemoryMax=400M\nMemorySwapMax=0")
    add(service, "grow", "too-big")
    wait_row(service, "too-big", "dead|3", "state, crashes")
    assert "SIGKILL" in row(service, "too-big", "last_error")
    assert service.show("MainPID") == str(pid)
    assert service.show("NRestarts") == "0"
    assert service.show("ActiveState") == "active"
    add(service, "message", "after", {"message": "x"})
    wait_row(service, "after", "succeeded")


def test_the_journal_has_the_fields_of_a_handler_s_line(service: Machine) -> None:
    add(service, "talk", "talk")
    wait_row(service, "talk", "succeeded")
    job_id = row(service, "talk", "id")
    wanted = ("-o", "json", f"RELIABLE_WORKER_JOB_ID={job_id}", "RELIABLE_WORKER_EVENT=log")
    wait_until(lambda: service.journal(*wanted) != "", SECONDS, "the line in the journal")
    (line,) = service.journal(*wanted).splitlines()
    entry = json.loads(line)
    assert entry["PRIORITY"] == "4"
    assert entry["SYSLOG_IDENTIFIER"] == "reliable-worker"
    assert entry["_SYSTEMD_UNIT"] == "reliable-worker.service"
    assert entry["_PID"] != service.show("MainPID")
    assert entry["RELIABLE_WORKER_KIND"] == "talk"
    assert entry["RELIABLE_WORKER_LOGGER"] == "shop"
    said = json.loads(entry["MESSAGE"])
    assert said["message"] == "the shop is open"
    assert said["job_id"] == int(job_id)


def test_the_unit_restricts_what_it_says(service: Machine) -> None:
    """Seen from inside the service's own namespaces."""
    pid = service.show("MainPID")
    inside = ("nsenter", "--target", pid, "--mount", "--wd=/")
    status = service.run("cat", f"/proc/{pid}/status").stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"
    assert set(fields["CapBnd"]) == {"0"}
    assert service.run(*inside, "ls", "-A", "/tmp", "/root", check=False).stdout.split() == [
        "/root:",
        "/tmp:",
    ]
    for place in ("/etc", "/opt/reliable-worker", "/var/lib"):
        done = service.run(*inside, "touch", f"{place}/written", check=False)
        assert "Read-only" in done.stderr, place


# What an engine makes of the Containerfile: a PID namespace whose first process is the worker, a
# root it cannot write, the image's account and words.
CONTAINER = """
mount --bind / /mnt
mount -o remount,bind,ro /mnt
mount -t proc proc /mnt/proc
mount --rbind /dev /mnt/dev
exec chroot --userspec="$1:$1" /mnt env -i -C /opt/reliable-worker "${@:2}"
"""


def test_the_container_form_runs_on_a_read_only_root_as_pid_one(service: Machine) -> None:
    text = (ROOT / "ops" / "container" / "Containerfile").read_text("utf-8")
    said = dict(line.split(" ", 1) for line in text.splitlines() if re.match("[A-Z]+ ", line))
    words = json.loads(said["ENTRYPOINT"]) + json.loads(said["CMD"])
    assert said["ENV"] == "METRICS_ADDRESS=0.0.0.0:9464"
    service.systemctl("stop", "reliable-worker")
    given = service.run("cat", "/etc/reliable-worker/worker.env").stdout.split()
    inside = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-euc", CONTAINER)
    service.run(
        *("systemd-run", "--unit=container", "--property=Type=exec", "--remain-after-exit"),
        *(*inside, "bash", said["USER"], said["ENV"], *given, *words),
    )
    add(service, "message", "contained", {"message": "x"})
    wait_row(service, "contained", "succeeded")
    unshare = service.show("MainPID", "container")
    (first,) = service.run("pgrep", "-P", unshare).stdout.split()
    assert re.search(
        rf"^NSpid:\t{first}\t1$", service.run("cat", f"/proc/{first}/status").stdout, re.M
    )
    service.run("kill", "-TERM", first)
    service.wait_show("SubState", "exited", unit="container")
    assert service.show("ExecMainStatus", "container") == "0"
    assert "Read-only" not in service.journal("-u", "container")
    service.systemctl("stop", "container")


def test_the_host_is_not_seen(service: Machine, tmp_path: Path) -> None:
    """A file of this test's is not there, and a clean-up inside does not reach it."""
    mark = tmp_path / "mark"
    mark.touch()
    assert service.run("ls", str(mark), check=False).returncode != 0
    service.shell("systemd-tmpfiles --clean --remove --create || true; rm -rf /tmp/*")
    assert mark.exists()
