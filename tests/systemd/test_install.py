"""The install page, command by command, as an administrator pastes it: what it says is what comes
of it, up to the upgrade, the way back and the removal."""

from collections.abc import Callable

from tests.fixtures.waiting import wait_until
from tests.systemd.conftest import blocks
from tests.systemd.machine import SECONDS, Machine

STATES = "SELECT state, count(*) FROM jobs GROUP BY state"


def test_the_page_is_right(machine: Machine) -> None:
    """One test, because each section stands on those before it."""
    page = blocks()
    sections = iter(page)
    for title in sections:
        if title == "In a container":
            break
        for script in page[title]:
            if title == "The schema, the rights, the start" and "migrate" in script:
                starting_needs_the_schema(machine)
            output = machine.shell(script)
            if "doctor" in script:
                assert "fail" not in output, output
        check = CHECKS.get(title)
        if check is not None:
            check(machine)
    for script in page["Uninstalling"]:
        machine.shell(script)
    assert machine.run("id", "reliable-worker", check=False).returncode == 1
    assert machine.run("ls", "/opt/reliable-worker", "/etc/reliable-worker", check=False).returncode
    assert machine.show("LoadState") == "not-found"
    assert machine.sql(STATES) == "succeeded|2"


def starting_needs_the_schema(machine: Machine) -> None:
    """Without a schema the worker ends with 4, systemd does not try again, no table appears."""
    machine.systemctl("start", "reliable-worker", check=False)
    machine.wait_show("ActiveState", "failed")
    assert machine.show("ExecMainStatus") == "4"
    assert machine.show("NRestarts") == "0"
    assert machine.sql("SELECT to_regclass('jobs')") == ""
    machine.systemctl("reset-failed", "reliable-worker")


def secrets_are_closed(machine: Machine) -> None:
    words = ("stat", "-c", "%n %U %a")
    places = ("worker.env", "migrate.env", "database-password")
    files = (f"/etc/reliable-worker/{place}" for place in places)
    told = machine.run(*words, *files).stdout.split()
    assert told[1::3] == ["root", "root", "reliable-worker"]
    assert told[2::3] == ["600", "600", "400"]


def it_runs(machine: Machine) -> None:
    assert machine.show("ActiveState") == "active"
    assert machine.systemctl("is-enabled", "reliable-worker") == "enabled"
    wait_until(lambda: machine.sql(STATES) == "succeeded|1", SECONDS, "the first job done")


def the_drop_in_holds(machine: Machine) -> None:
    assert machine.show("MemoryMax") == str(1024**3)
    assert machine.show("IPAddressDeny") != ""
    it_runs(machine)


def the_new_password_serves(machine: Machine) -> None:
    """The connections of the old one gone, the running worker comes back with the new one."""
    pid = machine.show("MainPID")
    machine.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename <> 'postgres'"
    )
    machine.sql(
        "INSERT INTO jobs (idempotency_key, payload) VALUES ('rotated', '{\"message\": \"x\"}')"
    )
    wait_until(lambda: machine.sql(STATES) == "succeeded|2", SECONDS, "a job after the rotation")
    assert machine.show("MainPID") == pid


def it_is_active(machine: Machine) -> None:
    assert machine.show("ActiveState") == "active"
    assert machine.show("NRestarts") == "0"


CHECKS: dict[str, Callable[[Machine], None]] = {
    "The units and the settings": secrets_are_closed,
    "The schema, the rights, the start": it_runs,
    "Drop-ins": the_drop_in_holds,
    "Changing the password": the_new_password_serves,
    "Upgrading and rolling back": it_is_active,
}
