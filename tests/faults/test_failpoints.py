"""Failpoints are inert without the switch, obey once per token, and are refused in a service."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reliable_worker.jobs import failpoints

pytestmark = pytest.mark.quick

REACH = (
    "from reliable_worker.jobs import failpoints as f\n"
    "try: f.reach('before_commit')\n"
    "except f.FailpointError as e: print('raised', e)\n"
    "else: print('passed')"
)


def reach(order: str, *, switch: str = "1") -> subprocess.CompletedProcess[str]:
    environ = dict(os.environ, RELIABLE_WORKER_FAILPOINT=order, RELIABLE_WORKER_TEST=switch)
    return subprocess.run(
        [sys.executable, "-c", REACH],
        env=environ,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )


def test_without_the_switch_nothing_happens() -> None:
    assert reach("before_commit:kill", switch="").stdout == "passed\n"


def test_another_point_is_passed() -> None:
    assert reach("after_commit:kill").stdout == "passed\n"


def test_each_action_does_what_it_says(tmp_path: Path) -> None:
    assert reach("before_commit:kill").returncode == -signal.SIGKILL
    exited = reach("before_commit:exit0")
    assert (exited.returncode, exited.stdout) == (0, "")
    assert reach("before_commit:raise").stdout == "raised failpoint before_commit\n"
    token = tmp_path / "token"
    token.with_suffix(".go").touch()
    assert reach(f"before_commit:hang@{token}").stdout == "passed\n"
    assert int(token.read_text()) > 0


def test_a_token_is_obeyed_by_the_first_process_only(tmp_path: Path) -> None:
    order = f"after_fork:exit0,before_commit:kill@{tmp_path}/token"
    assert reach(order).returncode == -signal.SIGKILL
    assert reach(order).stdout == "passed\n"


@pytest.mark.parametrize("mark", ["NOTIFY_SOCKET", "INVOCATION_ID"])
def test_a_service_refuses_orders_even_without_the_switch(mark: str) -> None:
    with pytest.raises(failpoints.FailpointRefused, match="in a service"):
        failpoints.check_allowed({failpoints.ORDERS: "after_commit:kill", mark: "x"})
    failpoints.check_allowed({mark: "x"})


@pytest.mark.parametrize("text", ["nowhere:kill", "after_commit:explode", "after_commit"])
def test_orders_that_nobody_understands_are_refused(text: str) -> None:
    with pytest.raises(failpoints.FailpointRefused, match="points: "):
        failpoints.check_allowed({failpoints.SWITCH: "1", failpoints.ORDERS: text})
