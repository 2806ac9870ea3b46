"""The shipped dashboard: every query parses and names metrics and labels that exist, every panel
stands somewhere of its own."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from reliable_worker.jobs.metrics import METRICS, PREFIX
from tests.ops.tools import DASHBOARD, NAMED, SUFFIXES, needs_promtool, promtool, series

# Labels that Prometheus puts on every series it scrapes, and a histogram's own.
ADDED = {"job", "instance", "le"}
WIDTH = 24


@pytest.fixture(scope="module")
def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    return found


def queries(panels: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(panel, expression) of everything that is asked."""
    return [
        (panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", [])
    ]


def test_every_query_names_existing_metrics(panels: list[dict[str, Any]]) -> None:
    for title, query in queries(panels):
        named = NAMED.findall(query)
        assert named, title
        assert set(named) <= series(), title


def test_labels_grouped_by_exist(panels: list[dict[str, Any]]) -> None:
    labels = {
        PREFIX + name + suffix: {*metric.labels, *ADDED}
        for name, metric in METRICS.items()
        for suffix in SUFFIXES[metric.kind]
    }
    for title, query in queries(panels):
        (name,) = set(NAMED.findall(query))
        for group in re.findall(r"by \(([^)]*)\)", query):
            assert set(re.split(r",\s*", group)) <= labels[name], title


def test_legends_show_labels_that_are_left(panels: list[dict[str, Any]]) -> None:
    for panel in panels:
        for target in panel.get("targets", []):
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            groups = ",".join(re.findall(r"by \(([^)]*)\)", target["expr"]))
            assert shown <= set(re.split(r",\s*", groups)), panel["title"]


@needs_promtool
def test_every_query_parses(panels: list[dict[str, Any]], tmp_path: Path) -> None:
    """As the expression of a rule, with Grafana's variables filled in."""
    rules = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$__rate_interval", "5m", query)}
        for number, (_, query) in enumerate(queries(panels))
    ]
    # JSON is YAML.
    (tmp_path / "queries.yaml").write_text(json.dumps({"groups": [{"name": "x", "rules": rules}]}))
    done = promtool("check", "rules", "queries.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_have_places_and_names_of_their_own(panels: list[dict[str, Any]]) -> None:
    assert len({panel["id"] for panel in panels}) == len(panels)
    titles = [panel["title"] for panel in panels]
    assert len(set(titles)) == len(titles)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= WIDTH
        cells = set(
            itertools.product(
                range(place["x"], place["x"] + place["w"]),
                range(place["y"], place["y"] + place["h"]),
            )
        )
        assert not cells & taken, panel["title"]
        taken |= cells


def test_every_panel_says_what_it_shows_and_asks_the_chosen_source(
    panels: list[dict[str, Any]],
) -> None:
    for panel in panels:
        if panel["type"] == "row":
            continue
        assert panel["description"].endswith("."), panel["title"]
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert {source["uid"] for source in sources} == {"${datasource}"}
        assert all('job=~"$job"' in target["expr"] for target in panel["targets"])
