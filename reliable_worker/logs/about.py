"""Which job a thread is at: so that a handler's own log lines say it too.

Floor 0; imports nothing of the package. The worker sets it around the handler; whatever runs in the
handler's context sees it: its functions, its coroutines, and threads started through
`contextvars.copy_context().run`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_NOTHING: Mapping[str, object] = {}

ABOUT: ContextVar[Mapping[str, object]] = ContextVar("reliable_worker_job", default=_NOTHING)


@contextmanager
def about(facts: Mapping[str, object]) -> Iterator[None]:
    """Inside, log lines of others carry these fields (job_id, kind, attempt and so on)."""
    token = ABOUT.set(facts)
    try:
        yield
    finally:
        ABOUT.reset(token)
