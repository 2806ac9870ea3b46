"""A PostgreSQL of a test module's own, to be crashed, stopped, frozen and started again."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from reliable_worker.dev import processes
from reliable_worker.dev.embedded import Cluster
from tests.fixtures.postgres import Server


class BreakableServer(Server):
    """A server that a test may break; it keeps its port and its data."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._frozen: list[int] = []

    def stop(self) -> None:
        """An orderly shutdown: sessions are told 57P01."""
        self.cluster.stop("fast")

    def crash(self) -> None:
        """Stop as by a power cut; the next start recovers from the log."""
        self.cluster.stop("immediate")

    def start(self) -> None:
        """Serve again."""
        self.cluster.start()

    def freeze(self, *pids: int) -> None:
        """SIGSTOP these backends, or the postmaster and all of its processes."""
        self._send(pids or processes.living(self.cluster.data_directory), signal.SIGSTOP)

    def freeze_postmaster(self) -> None:
        """New connections hang in the kernel; sessions go on."""
        assert self.cluster.pid is not None
        self._send([self.cluster.pid], signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT whatever was frozen and still lives."""
        frozen, self._frozen = self._frozen, []
        for pid in frozen:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue

    def kill_backend(self, pid: int) -> None:
        """SIGKILL one backend: the postmaster then restarts all of them."""
        os.kill(pid, signal.SIGKILL)

    def _send(self, pids: "list[int] | tuple[int, ...]", number: signal.Signals) -> None:
        for pid in pids:
            os.kill(pid, number)
            self._frozen.append(pid)


@contextmanager
def breakable(cluster: Cluster) -> Iterator[BreakableServer]:
    """Start `cluster`, and end it whatever state the test left it in."""
    with cluster:
        server = BreakableServer(cluster)
        try:
            yield server
        finally:
            server.thaw()
