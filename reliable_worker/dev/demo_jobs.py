"""Floor 5: the demo's application, an example of handlers. Loaded by worker processes as
`reliable_worker.dev.demo_jobs:app`. May import enqueue and below.

Each handler records its effect as data; it is committed together with the job's completion.
"""

import os
import signal
from typing import Any, TypedDict

import reliable_worker as rw
from reliable_worker.dev import demo_files
from reliable_worker.dev.demo_statements import effect

app = rw.App()

# How often the flaky job fails before it succeeds.
FAILURES = 2


class FileJob(TypedDict):
    """The payload of kind demo.file: where the file is, as a file: URL."""

    url: str


@app.handler("demo.file")
def measure(job: rw.Job[FileJob]) -> None:
    """Fingerprint and measure one file. One that has gone meanwhile is a result as well."""
    path = demo_files.path_of(job.payload["url"])
    found: demo_files.Measures | None = None
    problem = None
    try:
        found = demo_files.measure(path, job.check)
    except OSError as error:
        problem = error.strerror or str(error)
    measures = (found.sha256, found.bytes, found.lines, found.words) if found else (None,) * 4
    job.effect(effect("demo_file"), (job.key, demo_files.shown(path), *measures, problem))
    job.effect(effect("demo_effect"), (job.key, job.fence))


@app.handler("demo.flaky", max_attempts=5)
def flaky(job: rw.Job[dict[str, Any]]) -> None:
    """Fail, fail again, succeed."""
    if job.attempt <= FAILURES:
        raise ConnectionError(f"no answer from the other side, try {job.attempt}")
    job.effect(effect("demo_effect"), (job.key, job.fence))


@app.handler("demo.poison")
def poison(job: rw.Job[dict[str, Any]]) -> None:
    """Kill the process it runs in, every time."""
    job.effect(effect("demo_effect"), (job.key, job.fence))
    os.kill(os.getpid(), signal.SIGKILL)
