"""What this supervisor's workers can run: the kinds they reported and the queues they serve.

Floor 4. Imports nothing of the package.
"""

from __future__ import annotations

from collections.abc import Iterable


class Served:
    """Read by the services, told by the parent. `queues` empty: every queue."""

    def __init__(self, queues: Iterable[str]) -> None:
        self.queues = tuple(queues)
        # Replaced as a whole, never changed in place: readers in other threads need no lock.
        self.kinds: tuple[str, ...] = ()

    def set_kinds(self, kinds: Iterable[object]) -> None:
        """The union of the kinds the workers have handlers for."""
        self.kinds = tuple(sorted({str(kind) for kind in kinds}))
