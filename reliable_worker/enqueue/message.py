"""The built-in kind `message`: the example every installation can run at once.

Floor 2; imports postgres, jobs. It sleeps as long as its payload says and records the message: one
row per idempotency key, committed together with the job's completion.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from reliable_worker.jobs.errors import InvalidJob
from reliable_worker.jobs.job import Job
from reliable_worker.postgres import statements

KIND = "message"
# Inside job_timeout_seconds' default of 20 s, with a quarter to spare.
MAX_SLEEP_MS = 15_000


@dataclass(frozen=True, slots=True)
class Message:
    """The payload: what to record, and how long to take about it."""

    message: str = ""
    sleep_ms: int = 0


def handle(job: Job[Message]) -> None:
    """Check, sleep, record. Raises InvalidJob for a payload out of range."""
    wanted = job.payload
    if not wanted.message:
        raise InvalidJob("message is required")
    if not 0 <= wanted.sleep_ms <= MAX_SLEEP_MS:
        raise InvalidJob(f"sleep_ms must be between 0 and {MAX_SLEEP_MS}")
    job.sleep(wanted.sleep_ms / 1000)
    job.effect(_effect(), (job.key, wanted.message))


def _effect() -> str:
    """The statement with psycopg's placeholders, which effects use like any handler's SQL."""
    lines = statements.text("message_effect").decode().splitlines()
    return re.sub(r"\$\d", "%s", "\n".join(line for line in lines if line[:2] != "--"))
