"""The shipped alerts parse, name metrics that exist, fire and keep silent as they say, and each has
its section in the runbook."""

import re

from tests.fixtures.commands import ROOT
from tests.ops.tools import NAMED, RULE_TESTS, RULES, alerts, needs_promtool, promtool, series

RUNBOOK = ROOT / "docs" / "operating" / "alerts.md"


@needs_promtool
def test_promtool_accepts_rules_and_configuration() -> None:
    for words in (("check", "rules", "rules.yaml"), ("check", "config", "prometheus.yaml")):
        done = promtool(*words)
        assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_alerts_fire_and_keep_silent() -> None:
    done = promtool("test", "rules", RULE_TESTS.name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_seen_silent_and_firing() -> None:
    checks = RULE_TESTS.read_text("utf-8").split("- eval_time:")[1:]
    seen = {True: set[str](), False: set[str]()}
    for check in checks:
        name = re.search(r"alertname: (\w+)", check)
        assert name
        seen["exp_alerts:" in check].add(name[1])
    assert seen[True] == seen[False] == set(alerts())


def test_rules_name_metrics_that_exist() -> None:
    text = RULES.read_text("utf-8")
    named = set(NAMED.findall(text))
    assert named
    assert named - series() == set()
    recorded = set(re.findall(r"- record: (\S+)", text))
    used = set(re.findall(r"\breliable_worker:[\w:]+", text))
    assert used == recorded


def test_every_alert_has_its_section_in_the_runbook() -> None:
    sections = re.findall(r"^## (ReliableWorker\w+)$", RUNBOOK.read_text("utf-8"), re.MULTILINE)
    assert sorted(sections) == sorted(set(alerts()))
    links = re.findall(r"runbook: docs/operating/alerts\.md#(\w+)", RULES.read_text("utf-8"))
    assert links == [name.lower() for name in alerts()]
