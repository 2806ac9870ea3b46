"""Settings: where each value comes from, what is refused, and that every refusal is one line."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from reliable_worker import settings
from reliable_worker.settings import FIELDS, Settings, SettingsError, explain, load

URL = "postgresql://worker:s3cret-canary@db.example/jobs"
BASE = {"DATABASE_URL": URL}


def refused(environ: dict[str, str], **flags: object) -> str:
    with pytest.raises(SettingsError) as caught:
        load(flags, environ=environ)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 300
    assert "s3cret-canary" not in line
    return line


def test_the_defaults_are_those_of_the_spec() -> None:
    made = load(environ=BASE)
    assert made.lease_seconds == 30
    assert (made.renew_seconds, made.margin_seconds, made.stall_seconds) == (10, 3, 15)
    assert (made.claim_timeout_seconds, made.query_timeout_seconds) == (2, 3)
    assert (made.job_timeout_seconds, made.finish_timeout_seconds) == (20, 5)
    assert (made.connect_timeout_seconds, made.statement_timeout_seconds) == (3, 3)
    assert (made.lock_timeout_seconds, made.idle_in_transaction_timeout_seconds) == (1, 5)
    assert (made.poll_seconds, made.claim_pause_seconds) == (0.5, 1)
    assert (made.reap_seconds, made.sweep_seconds) == (1, 10)
    assert (made.stop_seconds, made.drain_grace_seconds, made.release_timeout_seconds) == (10, 0, 3)
    assert (made.stuck_grace_seconds, made.retry_base_seconds, made.retry_max_seconds) == (5, 1, 64)
    assert (made.workers, made.metrics_address) == (4, "127.0.0.1:9464")
    assert 1 <= made.processes <= 4
    for name, spec in FIELDS.items():
        if spec.type == "float":
            assert type(getattr(made, name)) is float, name


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text('workers = 5\nqueues = ["a", "b"]\njob_timeout_seconds = 7\npoll_seconds = 2')
    environ = BASE | {"WORKERS": "6", "RELIABLE_WORKER_JOB_TIMEOUT_SECONDS": "8.5"}
    made = load({"workers": "7", "app": None}, environ=environ, config=file)
    assert (made.workers, made.job_timeout_seconds, made.poll_seconds) == (7, 8.5, 2)
    assert made.queues == ("a", "b")
    sources = {item.name: item.source for item in explain(made)}
    assert sources["workers"] == "flag"
    assert sources["database_url"] == sources["job_timeout_seconds"] == "environment"
    assert sources["poll_seconds"] == sources["queues"] == "file"
    assert sources["app"] == sources["lease_seconds"] == "default"
    again = load(environ=environ | {"RELIABLE_WORKER_CONFIG": str(file)})
    assert (again.workers, again.poll_seconds) == (6, 2)


def test_settings_are_frozen_and_never_show_the_url() -> None:
    made = load(environ=BASE)
    with pytest.raises(FrozenInstanceError):
        made.workers = 5  # type: ignore[misc]
    assert "s3cret-canary" not in repr(made)
    assert "s3cret-canary" not in str(explain(made))
    assert made.database_url == URL


def test_the_database_is_asked_for_unless_it_is_not_needed() -> None:
    assert "DATABASE_URL" in refused({})
    assert "DATABASE_URL" in refused({"DATABASE_URL": ""})
    assert load(environ={}, need_database=False).database_url == ""


@pytest.mark.parametrize(
    "value",
    ["nan", "inf", "-inf", "-1", "0", "1e400", "1e9", "9" * 5000, "true", "ten", "1_0", "٣", "5s"],
)
def test_a_duration_that_is_none_is_refused_by_name(value: str) -> None:
    line = refused(BASE | {"RELIABLE_WORKER_LEASE_SECONDS": value})
    assert line.startswith("RELIABLE_WORKER_LEASE_SECONDS is ")
    assert "set it to a number from 0.001 to 1000000" in line


@pytest.mark.parametrize("value", ["nan", "-4", "0", "2.5", "4.0", "1025", "9" * 5000, "x", "True"])
def test_a_count_that_is_none_is_refused_by_name(value: str) -> None:
    assert refused(BASE | {"WORKERS": value}).startswith("WORKERS is ")
    assert refused(BASE, workers=value).startswith("--workers is ")


@pytest.mark.parametrize("value", ["true", "nan", "inf", '"ten"', "[1]", "-3", "{}", "9" * 400])
def test_a_file_of_the_wrong_types_is_refused_by_name(tmp_path: Path, value: str) -> None:
    file = tmp_path / "worker.toml"
    file.write_text(f"lease_seconds = {value}\n")
    assert refused(BASE | {"RELIABLE_WORKER_CONFIG": str(file)}).startswith("lease_seconds in ")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"lease_second = 3", "did you mean lease_seconds?"),
        (b"[worker]\nworkers = 3", "is no setting"),
        (b"database_url = postgresql://u:s3cret-canary@h/d", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        (b"x = " + b"[" * 3000 + b"]" * 3000, "is not TOML"),
        (b'app = "no attribute"', "module:attribute"),
        (b"queues = []", "list of queue names"),
        (b'queues = ["a", 3]', "names the queue 3"),
        (b'queues = ["a\\u0000"]', "names the queue"),
        (b'log_level = "loud"', "debug, info, warning, error"),
        (b'database_url = ["s3cret-canary"]', "must be a text"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, content: bytes, expected: str) -> None:
    file = tmp_path / "worker.toml"
    file.write_bytes(content)
    assert expected in refused(BASE | {"RELIABLE_WORKER_CONFIG": str(file)})


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    line = refused(BASE | {"RELIABLE_WORKER_CONFIG": str(tmp_path / "none.toml")})
    assert "cannot read the settings file" in line
    assert "cannot read" in refused(BASE | {"RELIABLE_WORKER_CONFIG": str(tmp_path)})


def test_unknown_variables_are_refused_with_the_nearest_name() -> None:
    line = refused(BASE | {"RELIABLE_WORKER_LEASE_SECOND": "3"})
    assert line.endswith("did you mean RELIABLE_WORKER_LEASE_SECONDS?")
    assert refused(BASE | {"RELIABLE_WORKER_WORKERS": "3"}).endswith("did you mean WORKERS?")
    assert "is no setting" in refused(BASE | {"RELIABLE_WORKER_QQQQQQ": "3"})
    load(
        environ=BASE
        | {
            "RELIABLE_WORKER_FAILPOINT": "x:kill",
            "RELIABLE_WORKER_TEST": "1",
            "WORKERS_OF_MINE": "x",
        }
    )


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"LOCK_TIMEOUT_SECONDS": "3"}, "lock_timeout_seconds 3 must be under statement"),
        ({"STATEMENT_TIMEOUT_SECONDS": "4"}, "statement_timeout_seconds 4 must not exceed query"),
        ({"RENEW_SECONDS": "21"}, "must be under lease_seconds 30"),
        ({"MARGIN_SECONDS": "14"}, "must be under lease_seconds 30"),
        ({"CLAIM_TIMEOUT_SECONDS": "30", "STOP_SECONDS": "14"}, "claim_timeout_seconds 30"),
        ({"FINISH_TIMEOUT_SECONDS": "27"}, "finish_timeout_seconds 27 + margin_seconds 3"),
        ({"DRAIN_GRACE_SECONDS": "3.5"}, "drain_grace_seconds 3.5 + release_timeout_seconds 3"),
        ({"STOP_SECONDS": "15"}, "TimeoutStopSec"),
        ({"STOP_SECONDS": "40"}, "TimeoutStopSec"),
        ({"LEASE_SECONDS": "8", "STOP_SECONDS": "8"}, "stop_seconds 8 must be under lease"),
        ({"LEASE_SECONDS": "1.5"}, "must be under lease_seconds 1.5"),
        ({"LEASE_SECONDS": "10", "QUERY_TIMEOUT_SECONDS": "5"}, "query_timeout_seconds 5"),
        ({"RETRY_MAX_SECONDS": "0.5"}, "retry_base_seconds 1 must not exceed retry_max"),
    ],
)
def test_budgets_that_do_not_fit_are_refused(environ: dict[str, str], named: str) -> None:
    assert named in refused(BASE | {settings.PREFIX + k: v for k, v in environ.items()})


def test_more_processes_than_workers_is_refused() -> None:
    line = refused(BASE | {"WORKERS": "2", "PROCESSES": "3"})
    assert "processes 3 is more than workers 2" in line
    assert load(environ=BASE | {"WORKERS": "1"}).processes == 1


def test_a_shorter_lease_alone_shrinks_what_is_unset_and_keeps_stop_job_and_poll() -> None:
    made = load(environ=BASE | {"RELIABLE_WORKER_LEASE_SECONDS": "15"})
    assert (made.claim_timeout_seconds, made.query_timeout_seconds) == (1, 1.5)
    assert (made.connect_timeout_seconds, made.statement_timeout_seconds) == (1.5, 1.5)
    assert (made.lock_timeout_seconds, made.idle_in_transaction_timeout_seconds) == (0.5, 2.5)
    assert (made.finish_timeout_seconds, made.stall_seconds) == (2.5, 7.5)
    assert (made.stop_seconds, made.job_timeout_seconds, made.poll_seconds) == (10, 20, 0.5)
    floors = load(
        environ=BASE | {"RELIABLE_WORKER_LEASE_SECONDS": "3"}, flags={"claim_timeout_seconds": 0.7}
    )
    assert (floors.claim_timeout_seconds, floors.query_timeout_seconds) == (0.7, 0.5)
    assert (floors.lock_timeout_seconds, floors.stop_seconds) == (0.2, 10)
    longer = load(environ=BASE | {"RELIABLE_WORKER_LEASE_SECONDS": "60"})
    assert (longer.query_timeout_seconds, longer.renew_seconds) == (3, 20)


@pytest.mark.parametrize(
    ("address", "parts"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:9464", ("::1", 9464)), ("host.x:1", ("host.x", 1))],
)
def test_an_address_splits(address: str, parts: tuple[str, int]) -> None:
    assert settings.split_address(address) == parts
    assert load(environ=BASE | {"METRICS_ADDRESS": address}).metrics_address == address


@pytest.mark.parametrize("address", ["9464", "host", ":1", "::1:9464", "h:99999", "h:-1", "h:1:2"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    assert refused(BASE | {"METRICS_ADDRESS": address}).startswith("METRICS_ADDRESS is ")


def test_the_largest_payload_may_only_be_lowered() -> None:
    assert "1048576" in refused(BASE | {"RELIABLE_WORKER_MAX_PAYLOAD_BYTES": "1048577"})
    assert load(environ=BASE, flags={"max_payload_bytes": "1000"}).max_payload_bytes == 1000


def test_every_setting_has_its_sentence() -> None:
    assert all(spec.metadata["text"] for spec in FIELDS.values())
    assert set(Settings.__dataclass_fields__) == {*FIELDS, "sources"}
