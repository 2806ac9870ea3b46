"""Shows SIGHUP: new settings are tried first, then children are replaced one after the other."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.fixtures.waiting import wait_until
from tests.supervisor.conftest import SECONDS, Run, Start


def _configured(run: Start, tmp_path: Path, text: str, **settings: object) -> tuple[Run, Path]:
    config = tmp_path / "settings.toml"
    config.write_text(text)
    fleet = run("--config", str(config), **settings)
    fleet.wait_ready()
    return fleet, config


def test_every_child_is_replaced_and_never_more_than_one_is_missing(
    run: Start, tmp_path: Path
) -> None:
    fleet, config = _configured(run, tmp_path, "retry_jitter = 0.1\n", workers=3, processes=3)
    before = fleet.wait_pids("worker", 3) + fleet.wait_pids("maintenance", 1)
    config.write_text("retry_jitter = 0.2\n")
    fleet.send(signal.SIGHUP)
    fleet.wait_event("reload_complete", SECONDS)
    after = fleet.wait_pids("worker", 3) + fleet.wait_pids("maintenance", 1)
    assert not set(before) & set(after)
    ready = 0
    low = 3
    begun = False
    for event in fleet.events:
        begun = begun or event["event"] == "reload_started"
        if event.get("role") == "worker":
            ready += event["event"] == "child_ready"
            ready -= event["event"] == "child_exited"
            low = min(low, ready) if begun else low
    assert low == 2
    exits = fleet.find("child_exited", role="worker")
    assert {event["cause"] for event in exits} == {"exit"}
    assert len(fleet.find("child_restarted", reason="reload")) == 4
    fleet.terminate()
    assert fleet.wait(SECONDS) == 0


def test_settings_that_do_not_fit_change_nothing(run: Start, tmp_path: Path) -> None:
    fleet, config = _configured(run, tmp_path, "lease_seconds = 30\n")
    before = fleet.children()
    config.write_text("lease_seconds = 'long'\n")
    fleet.send(signal.SIGHUP)
    failed = fleet.wait_event("reload_failed", SECONDS)
    assert "lease_seconds" in failed["error"]
    config.unlink()
    fleet.send(signal.SIGHUP)
    wait_until(lambda: len(fleet.find("reload_failed")) == 2, SECONDS, "a second refusal")
    assert fleet.children() == before


@pytest.mark.parametrize("order", ["fail:1:shop.jobs-does-not-compile", "kill:9", "raise"])
def test_an_application_that_does_not_import_changes_nothing(
    run: Start, tmp_path: Path, order: str
) -> None:
    fleet, _ = _configured(run, tmp_path, "")
    before = fleet.children()
    fleet.tell("trial", order)
    fleet.send(signal.SIGHUP)
    failed = fleet.wait_event("reload_failed", SECONDS)
    if order.startswith("fail"):
        assert failed["error"] == "shop.jobs does not compile"
    assert fleet.children() == before
    (fleet.folder / "trial").unlink()
    fleet.send(signal.SIGHUP)
    fleet.wait_event("reload_complete", SECONDS)
    assert not set(before) & set(fleet.children())


def test_a_storm_of_hangups_comes_to_rest(run: Start, tmp_path: Path) -> None:
    fleet, config = _configured(run, tmp_path, "")
    before = fleet.children()
    for number in range(20):
        config.write_text(f"retry_jitter = 0.{number:02d}\n")
        fleet.send(signal.SIGHUP)
    fleet.wait_event("reload_complete", SECONDS)
    workers = fleet.wait_pids("worker", 2)
    assert not set(before) & set(workers)
    assert {event["cause"] for event in fleet.find("child_exited")} == {"exit"}
    fleet.terminate()
    assert fleet.wait(SECONDS) == 0


def test_a_hangup_before_the_first_child_is_ready_is_no_end(run: Start) -> None:
    fleet = run(orders={"no-contact": ""})
    fleet.wait_event("child_started", SECONDS)
    fleet.send(signal.SIGHUP)
    fleet.wait_event("reload_complete", SECONDS)
    assert not fleet.find("supervisor_ready")
    (fleet.folder / "no-contact").unlink()
    fleet.wait_ready()


def test_what_needs_a_restart_is_said(run: Start, tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text("metrics_address = '127.0.0.1:0'\n")
    fleet = run("--config", str(config), metrics_address="")
    fleet.wait_ready()
    config.write_text("metrics_address = '127.0.0.1:9'\nlog_level = 'debug'\nprocesses = 900\n")
    fleet.send(signal.SIGHUP)
    fleet.wait_event("reload_incomplete", SECONDS, setting="metrics_address")
    fleet.wait_event("reload_incomplete", SECONDS, setting="log_level")
    fleet.wait_event("reload_complete", SECONDS)


def test_more_and_fewer_processes_need_no_restart(run: Start, tmp_path: Path) -> None:
    config = tmp_path / "settings.toml"
    config.write_text("workers = 4\nprocesses = 1\n")
    fleet = run("--config", str(config), workers="", processes="")
    fleet.wait_ready()
    fleet.wait_pids("worker", 1)
    config.write_text("workers = 6\nprocesses = 3\n")
    fleet.send(signal.SIGHUP)
    fleet.wait_event("reload_complete", SECONDS)
    fleet.wait_pids("worker", 3)
    config.write_text("workers = 2\nprocesses = 2\n")
    fleet.send(signal.SIGHUP)
    fleet.wait_pids("worker", 2)
    fleet.terminate()
    assert fleet.wait(SECONDS) == 0


def test_sigterm_ends_a_reload(run: Start, tmp_path: Path) -> None:
    budgets = {"stop_seconds": 5, "claim_timeout_seconds": 1, "release_timeout_seconds": 2}
    fleet, _ = _configured(run, tmp_path, "", **budgets)
    fleet.tell(fleet.wait_pids("worker", 2)[0], "stubborn")
    fleet.tell("trial", "hang:60")
    fleet.send(signal.SIGHUP)
    fleet.wait_event("child_started", SECONDS, role="trial")
    fleet.terminate()
    fleet.wait(SECONDS)
    fleet.assert_nobody_left()
