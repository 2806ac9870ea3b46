"""Reading /metrics as Prometheus does."""

import urllib.request
from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.fixtures.commands import Fleet

SCRAPE_SECONDS = 10.0
PREFIX = "reliable_worker_"


class Sample:
    """One scrape: the samples by name without the prefix."""

    def __init__(self, text: str) -> None:
        self._samples: list[tuple[str, Mapping[str, str], float]] = [
            (sample.name.removeprefix(PREFIX), sample.labels, sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        ]

    def sum(self, name: str, **labels: str) -> float:
        """All samples of that name whose labels equal `labels`, added up."""
        return sum(
            value
            for sample, its, value in self._samples
            if sample == name and all(its.get(k) == v for k, v in labels.items())
        )

    def has(self, name: str, **labels: str) -> bool:
        """Whether there is such a sample."""
        return any(
            sample == name and all(its.get(k) == v for k, v in labels.items())
            for sample, its, _ in self._samples
        )

    def names(self) -> set[str]:
        """Names that have a sample other than zero."""
        return {name for name, _, value in self._samples if value != 0}


def scrape(fleet: Fleet) -> Sample:
    """What the fleet's /metrics says now."""
    url = f"http://{fleet.metrics_address()}/metrics"
    with urllib.request.urlopen(url, timeout=SCRAPE_SECONDS) as answer:
        body: Any = answer.read()
    return Sample(body.decode())
