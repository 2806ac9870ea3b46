"""The handlers of this process, imported after the fork.

Floor 3: imports `enqueue` for the App. Handlers are looked up by the exact name of a kind, never
by a name from a payload.
"""

from __future__ import annotations

from collections.abc import Mapping

from reliable_worker.enqueue.app import App, Handler, load_app
from reliable_worker.settings import Settings


def load_handlers(settings: Settings) -> Mapping[str, Handler]:
    """Kind → handler. Raises what `load_app` raises: one line that says what is wrong."""
    app = App() if settings.app is None else load_app(settings.app)
    return app.handlers


def serves(queues: tuple[str, ...], queue: str) -> bool:
    """Whether a queue is served; none named means every queue."""
    return not queues or queue in queues
