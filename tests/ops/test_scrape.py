"""A real Prometheus, with the shipped rules, scrapes a real worker and knows what it does."""

import json
import os
import re
import signal
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.fixtures.commands import Fleet
from tests.fixtures.waiting import wait_until
from tests.ops.tools import CONFIGURATION, RULES, needs_prometheus, series

SECONDS = 60.0
ANSWER_SECONDS = 10.0
SCRAPE = "1s"


class Prometheus:
    """A running server and its API."""

    def __init__(self, folder: Path, target: str) -> None:
        text = CONFIGURATION.read_text("utf-8").replace("127.0.0.1:9464", target)
        (folder / "prometheus.yaml").write_text(text.replace("15s", SCRAPE))
        (folder / "rules.yaml").write_text(RULES.read_text("utf-8"))
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={folder / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    "--web.listen-address=127.0.0.1:0",
                    "--log.level=info",
                ],
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def address(self) -> str:
        """Where it listens: of port 0 its own log does not tell, its sockets do."""
        found: list[str] = []

        def listens() -> bool:
            assert self.process.poll() is None, self.log[-2000:]
            found[:] = _listening(self.process.pid)
            return bool(found)

        wait_until(listens, SECONDS, "Prometheus listens")
        return found[0]

    def ask(self, path: str, **query: str) -> Any:
        url = f"http://{self.address()}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
            return json.load(answer)["data"]

    def values(self, query: str) -> list[float]:
        """What an instant query gives, labels aside."""
        try:
            return [float(one["value"][1]) for one in self.ask("query", query=query)["result"]]
        except OSError:  # not yet there
            return []

    def says(self, query: str, value: float) -> bool:
        return self.values(query) == [value]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(SECONDS)
        finally:
            self.process.kill()
            self.process.wait(SECONDS)


def _listening(pid: int) -> list[str]:
    """The loopback addresses a process listens on."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            match = re.match(r"socket:\[(\d+)\]", os.readlink(descriptor))
        except OSError:
            continue
        if match:
            inodes.add(match[1])
    found = []
    for line in Path(f"/proc/{pid}/net/tcp").read_text("ascii").splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            found.append(f"127.0.0.1:{int(fields[1].rpartition(':')[2], 16)}")
    return found


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[Callable[[str], Prometheus]]:
    """Starts one for a target; it is ended with the test."""
    started: list[Prometheus] = []

    def start(target: str) -> Prometheus:
        started.append(Prometheus(tmp_path, target))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@needs_prometheus
def test_prometheus_knows_what_the_worker_does(
    fleet: Callable[..., Fleet],
    conn: psycopg.Connection,
    prometheus: Callable[[str], Prometheus],
) -> None:
    conn.execute(
        "INSERT INTO jobs (idempotency_key, payload, max_attempts)"
        " SELECT 'job-' || n, CASE WHEN n = 1 THEN '{}' ELSE '{\"message\": \"x\"}' END::jsonb, 1"
        " FROM generate_series(1, 20) AS n"
    )
    worker = fleet(workers=2, processes=1, census_seconds=0.5)
    server = prometheus(worker.metrics_address())
    for query, expected in (
        ('up{job="reliable-worker"}', 1),
        ("reliable_worker_ready", 1),
        ('sum(reliable_worker_jobs_finished_total{outcome="succeeded"})', 19),
        ("max(reliable_worker_jobs_dead)", 1),
        ("reliable_worker_finish_seconds_count", 19),
        ('ALERTS{alertname="ReliableWorkerDeadJobs",alertstate="firing"}', 1),
    ):
        wait_until(partial(server.says, query, expected), SECONDS, query)
    # Every family of the table that has no cause to be empty, under its own name and type.
    metadata = server.ask("metadata")
    ours = {name for name in metadata if name.startswith("reliable_worker_")}
    assert len(ours) > 40
    assert ours <= {re.sub(r"_(bucket|sum|count)$", "", name) for name in series()}
    groups = server.ask("rules")["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
    assert not [line for line in server.log.splitlines() if "level=error" in line]
