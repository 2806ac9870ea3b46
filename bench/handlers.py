"""The benchmark's handlers: nothing, one effect row, one row in the job's own transaction."""

from __future__ import annotations

from typing import Any

import reliable_worker as rw

app = rw.App()

EFFECT = "INSERT INTO bench_effects (key) VALUES (%s)"


@app.handler("noop")
def noop(job: rw.Job[dict[str, Any]]) -> None:
    """No work: what the worker itself costs."""


@app.handler("effect")
def effect(job: rw.Job[dict[str, Any]]) -> None:
    """One row, committed with the completion, many jobs to a commit."""
    job.effect(EFFECT, (job.key,))


@app.handler("transaction")
def transaction(job: rw.Job[dict[str, Any]]) -> None:
    """One row in the job's own commit."""
    with job.transaction() as tx:
        tx.execute(EFFECT, (job.key,))


@app.handler("work")
def work(job: rw.Job[dict[str, Any]]) -> None:
    """Ten milliseconds of waiting for somebody else, then one row."""
    job.sleep(0.01)
    job.effect(EFFECT, (job.key,))
