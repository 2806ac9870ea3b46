"""The pages of docs/reference that follow from tables in the code.

`python -m tests.tidy.reference` writes them (`make docs`); a test demands that nothing changes.
"""

from collections.abc import Callable, Iterable, Sequence

from reliable_worker import settings
from reliable_worker.jobs.metrics import METRICS, PREFIX
from reliable_worker.ledger import settings as ledger
from reliable_worker.ledger.metrics import METRICS as LEDGER_METRICS
from reliable_worker.ledger.metrics import PREFIX as LEDGER_PREFIX
from reliable_worker.ledger.problems import PROBLEMS
from tests.tidy.sources import ROOT

REFERENCE = ROOT / "docs" / "reference"
MADE = "<!-- Made by `make docs` from the tables in the code. -->"


def settings_page() -> str:
    """Every setting: its names, its default, what it is for."""
    rows = []
    for name, spec in settings.FIELDS.items():
        derived = "default " in spec.metadata["text"]
        default = "" if spec.default in (None, "", ()) or derived else f"`{_plain(spec.default)}`"
        rows.append((f"`{name}`", f"`{settings.variable(name)}`", default, spec.metadata["text"]))
    return _page(
        "Settings",
        "A flag (`--lease-seconds 30`) outranks an environment variable, that a line of the TOML"
        " file (`lease_seconds = 30`) named by `--config` or `RELIABLE_WORKER_CONFIG`, that the"
        " default. `reliable-worker config` prints each value with its source. What does not parse"
        " or does not fit is refused at start with one line and exit code 2.",
        ("setting", "environment", "default", ""),
        rows,
    )


def metrics_page() -> str:
    """Every metric: its full name, type, labels, help."""
    rows = [
        (f"`{PREFIX}{name}`", metric.kind, " ".join(f"`{x}`" for x in metric.labels), metric.help)
        for name, metric in METRICS.items()
    ]
    return _page(
        "Metrics",
        "Served by the parent at `/metrics` for all its processes. Counters start at 0 with the"
        " parent and never fall while it lives, whichever children die. The gauges of the queues"
        " come from a census on a timer, whose time is `reliable_worker_sample_timestamp_seconds`;"
        " a scrape never asks the database.",
        ("metric", "type", "labels", ""),
        rows,
    )


def ledger_page() -> str:
    """The ledger's settings, problems and metrics."""
    settings_rows = [
        (f"`{ledger.variable(name)}`", _default(spec.default), spec.metadata["text"])
        for name, spec in ledger.FIELDS.items()
    ]
    problem_rows = [(f"`{code}`", str(status), title) for code, (status, title) in PROBLEMS.items()]
    metric_rows = [
        (f"`{LEDGER_PREFIX}{name}`", one.kind, " ".join(f"`{x}`" for x in one.labels), one.help)
        for name, one in LEDGER_METRICS.items()
    ]
    return "\n".join(
        [
            MADE,
            "# The ledger: settings, problems, metrics",
            "",
            "How it behaves and is operated: [the ledger](../ledger.md).",
            "",
            *_section("Settings", ("environment", "default", ""), settings_rows),
            *_section("Problems", ("code", "status", ""), problem_rows),
            *_section("Metrics", ("metric", "type", "labels", ""), metric_rows),
        ]
    )


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "metrics.md": metrics_page,
    "ledger.md": ledger_page,
}


def _section(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    return [f"## {title}", "", _row(head), _row(("---",) * len(head)), *map(_row, rows), ""]


def _default(value: object) -> str:
    if isinstance(value, bool):
        return "`on`" if value else "`off`"
    return "" if value in (None, "") else f"`{_plain(value)}`"


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _page(title: str, text: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [MADE, f"# {title}", "", text, "", _row(head), _row(("---",) * len(head))]
    return "\n".join([*lines, *(_row(row) for row in rows)]) + "\n"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
