"""A PostgreSQL job worker whose jobs' committed effects happen once. Usage: the README.

The public names are loaded when they are first used: the running parent process imports this
package and must never load libpq.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reliable_worker.enqueue.app import App
    from reliable_worker.enqueue.batch import copy_jobs, enqueue_many
    from reliable_worker.enqueue.enqueue import NewJob, enqueue
    from reliable_worker.jobs.errors import (
        AlreadyFinished,
        DecodeError,
        Discard,
        Draining,
        InvalidJob,
        JobTimeout,
        KeyConflict,
        LeaseLost,
        Retry,
        Snooze,
        UnknownKind,
    )
    from reliable_worker.jobs.job import Enqueued, Job

__all__ = [
    "AlreadyFinished",
    "App",
    "DecodeError",
    "Discard",
    "Draining",
    "Enqueued",
    "InvalidJob",
    "Job",
    "JobTimeout",
    "KeyConflict",
    "LeaseLost",
    "NewJob",
    "Retry",
    "Snooze",
    "UnknownKind",
    "copy_jobs",
    "enqueue",
    "enqueue_many",
]

_HOMES = {
    "App": "enqueue.app",
    "Enqueued": "jobs.job",
    "Job": "jobs.job",
    "NewJob": "enqueue.enqueue",
    "copy_jobs": "enqueue.batch",
    "enqueue_many": "enqueue.batch",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "enqueue":  # the package of that name is the function, see its docstring
        return import_module(f"{__name__}.enqueue")
    value = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'jobs.errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
