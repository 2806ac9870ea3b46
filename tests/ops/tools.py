"""Debian's Prometheus tools, and what the shipped files name: alerts and metrics."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from reliable_worker.jobs.metrics import METRICS, PREFIX
from tests.fixtures.commands import COMMAND_SECONDS, ROOT

RULES = ROOT / "ops" / "prometheus" / "rules.yaml"
CONFIGURATION = ROOT / "ops" / "prometheus" / "prometheus.yaml"
RULE_TESTS = ROOT / "ops" / "prometheus" / "rules.test.yaml"
DASHBOARD = ROOT / "ops" / "grafana" / "dashboard.json"

SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
# A recording rule's name has a colon, a metric's has none.
NAMED = re.compile(rf"\b{PREFIX}\w+\b(?!:)")

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not installed (Debian: apt-get install prometheus)",
)
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None,
    reason="prometheus is not installed (Debian: apt-get install prometheus)",
)


def series() -> set[str]:
    """Every name a scrape shows series under."""
    return {
        PREFIX + name + suffix
        for name, metric in METRICS.items()
        for suffix in SUFFIXES[metric.kind]
    }


def alerts() -> list[str]:
    return re.findall(r"^ +- alert: (\w+)$", RULES.read_text("utf-8"), re.MULTILINE)


def promtool(*words: str, cwd: Path = RULES.parent) -> subprocess.CompletedProcess[str]:
    """Run promtool; its exit code and what it had to say."""
    return subprocess.run(
        ["promtool", *words],
        check=False,
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        cwd=cwd,
    )
