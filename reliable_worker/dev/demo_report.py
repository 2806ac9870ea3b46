"""Floor 5: what the demo found out: a value, a table, JSON. Imports nothing of this package."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

NEXT = (
    ("reliable-worker demo ~/some/folder", "the same with your own files"),
    (
        "DATABASE_URL=postgresql:///jobs reliable-worker migrate up",
        "the queue in your own database",
    ),
    ("reliable-worker run --app shop.jobs:app", "your own handlers; the README shows one"),
)


@dataclass(frozen=True, slots=True)
class Story:
    """A job with a story, as it is now."""

    key: str
    state: str
    attempts: int
    max_attempts: int
    crashes: int
    last_error: str | None


@dataclass(slots=True)
class Report:
    """A demo's result. Times in seconds; a value is None where the demo did not come that far."""

    seed: int
    path: str
    server: str = ""
    metrics_address: str = ""
    files: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    problems: int = 0  # files that could not be measured when their job ran
    enqueued: int = 0
    succeeded: int = 0
    retried: int = 0
    dead: list[str] = field(default_factory=list)
    expected_dead: list[str] = field(default_factory=list)
    crashes: int = 0
    killed_pid: int | None = None
    interrupted_jobs: int = 0  # held by the killed process
    effects: int = 0
    duplicate_effects: int = 0
    jobs_per_second: float | None = None
    recovery_seconds: float | None = None
    drain_seconds: float | None = None
    drain_exit: int | None = None
    seconds: float = 0.0
    stories: list[Story] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.violations

    def as_json(self) -> dict[str, Any]:
        """For --json: plain values, `ok` first."""
        return {"ok": self.ok, **asdict(self)}

    def rows(self) -> list[tuple[str, str, str]]:
        """The table: what, how many, and a remark."""
        return [
            ("enqueued", str(self.enqueued), self._enqueued()),
            ("succeeded", str(self.succeeded), ""),
            ("retried", str(self.retried), self._retried()),
            ("dead", str(len(self.dead)), self._dead()),
            ("crashes", str(self.crashes), self._crashes()),
            ("effects", str(self.effects), "committed with their completions"),
            ("duplicate effects", str(self.duplicate_effects), ""),
            ("jobs/s", _number(self.jobs_per_second, 0), "of file jobs that no crash disturbed"),
            ("recovery", _seconds(self.recovery_seconds), self._recovery()),
            ("drain", _seconds(self.drain_seconds), f"exit code {_number(self.drain_exit, 0)}"),
        ]

    def _enqueued(self) -> str:
        unread = f", {self.problems} gone or changed since" if self.problems else ""
        return f"{self.files} files{unread}, {self.enqueued - self.files} with a story"

    def _retried(self) -> str:
        told = [
            f"{story.key} {story.attempts - 1}×" for story in self.stories if story.attempts > 1
        ]
        return ", ".join(told)

    def _dead(self) -> str:
        errors = {story.key: story.last_error or "" for story in self.stories}
        told = [f"{key} ({_short(errors.get(key, ''))})" for key in sorted(self.dead)]
        as_expected = sorted(self.dead) == sorted(self.expected_dead)
        return ", ".join(told) + ("" if as_expected else ", NOT as expected")

    def _crashes(self) -> str:
        told = [f"{story.crashes} by {story.key}" for story in self.stories if story.crashes]
        told += ["1 by this demo"] if self.killed_pid is not None else []
        return ", ".join(told)

    def _recovery(self) -> str:
        if self.recovery_seconds is None:
            return "not seen"
        return f"until all the killed process held ({self.interrupted_jobs}) ran again or was done"


def _short(error: str) -> str:
    """The end of an error tells the most, and the table has one line for it."""
    return error.rpartition(": ")[2].removesuffix(" (SIGKILL)")


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
