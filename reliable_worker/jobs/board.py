"""The board: what each child tells its parent without a word, in shared memory.

On a job's way: a slot writes (job id, fence) here before its handler starts and clears it when the
handler has ended, so that the parent, after reaping a killed child, knows exactly which jobs were
running in it. The main loop of a child beats here; heartbeats write the earliest deadline of the
leases held, so that the parent can tell a stalled child that is about to lose a lease from one
that is merely slow.

Floor 0: imports nothing of this package.

The memory is an anonymous shared mapping made before the fork: no file, no lock, nothing to clean
up after SIGKILL. Every cell is 8 bytes wide, native and aligned, and has ONE writer, so that a
reader never sees half a value.
"""

from __future__ import annotations

import mmap

_CELL = 8  # bytes: the widest store that one machine instruction makes whole

# Cells of a child's head. The first three hold doubles (seconds of CLOCK_BOOTTIME), the rest
# integers.
_BEAT, _DEADLINE, _CONTACT, _HELD, _READY, _MOVES = range(6)
_HEAD = 8  # head cells reserved: 64 bytes, one cache line, so that neighbours do not share it

# Cells of a slot. `stuck` names the fence it was said of, so that it ends with the run it meant.
_JOB, _FENCE, _ACTIVE, _STUCK = range(4)
_SLOT = 4


class Board:
    """The shared memory of all children: `children` rows of `slots` slots each.

    Make it once, in the parent, before the first fork.
    """

    def __init__(self, children: int, slots: int) -> None:
        self.children = children
        self.slots = slots
        self._row = _HEAD + _SLOT * slots
        size = max(1, children * self._row) * _CELL
        self._memory = mmap.mmap(-1, size, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        self._integers = memoryview(self._memory).cast("q")
        self._doubles = memoryview(self._memory).cast("d")

    def child(self, index: int) -> ChildBoard:
        """The row of child `index` (0 … children - 1). Raises IndexError outside."""
        if not 0 <= index < self.children:
            raise IndexError(f"the board has {self.children} rows, not {index + 1}")
        start = index * self._row
        end = start + self._row
        return ChildBoard(self._integers[start:end], self._doubles[start:end], self.slots)


class ChildBoard:
    """One child's row. The child writes, the parent reads (and clears it between two children)."""

    def __init__(self, integers: memoryview[int], doubles: memoryview[float], slots: int) -> None:
        self._integers = integers
        self._doubles = doubles
        self.slots = slots

    # -- the child's main loop ------------------------------------------------------------------

    def beat(self, at: float) -> None:
        """Say that the main loop runs. `at`: seconds of CLOCK_BOOTTIME."""
        self._doubles[_BEAT] = at

    @property
    def beat_at(self) -> float:
        """When the main loop last beat; 0.0 before its first beat."""
        return self._doubles[_BEAT]

    def set_ready(self) -> None:
        """Say that the schema was checked and the database reached once."""
        self._integers[_READY] = 1

    @property
    def ready(self) -> bool:
        return self._integers[_READY] == 1

    # -- leases ---------------------------------------------------------------------------------

    def set_deadline(self, at: float) -> None:
        """The earliest local deadline of the leases held (CLOCK_BOOTTIME), 0.0 for none held."""
        self._doubles[_DEADLINE] = at

    @property
    def deadline(self) -> float:
        return self._doubles[_DEADLINE]

    def set_held(self, count: int) -> None:
        """How many leases the child holds, one more while a claim is under way.

        Called before the first and after the last; one thread at a time (it also counts the moves).
        """
        if count != self._integers[_HELD]:
            self._integers[_MOVES] += 1
        self._integers[_HELD] = count

    @property
    def held(self) -> int:
        return self._integers[_HELD]

    @property
    def moves(self) -> int:
        """How often `held` has changed: the same number twice, and nothing happened between."""
        return self._integers[_MOVES]

    def set_contact(self, at: float) -> None:
        """The last answer from the database (CLOCK_BOOTTIME).

        The one cell with several writers: whoever writes last is right to within their race.
        """
        self._doubles[_CONTACT] = at

    @property
    def contact(self) -> float:
        """When the database last answered; 0.0: never."""
        return self._doubles[_CONTACT]

    # -- slots ----------------------------------------------------------------------------------

    def start(self, slot: int, job_id: int, fence: int) -> None:
        """Say, before dispatch, which run of which job starts in `slot`.

        The mark is written last: a process killed half-way has not started the job.
        """
        cell = self._cell(slot)
        self._integers[cell + _JOB] = job_id
        self._integers[cell + _FENCE] = fence
        self._integers[cell + _ACTIVE] = 1

    def end(self, slot: int) -> None:
        """Say that the handler in `slot` has ended, whatever came of it."""
        self._integers[self._cell(slot) + _ACTIVE] = 0

    def mark_stuck(self, slot: int) -> None:
        """Say that the thread in `slot` has outlived its cancellation.

        Any thread may say it: the mark names the run, so that one said too late means nothing.
        """
        cell = self._cell(slot)
        self._integers[cell + _STUCK] = self._integers[cell + _FENCE]

    def started(self) -> list[tuple[int, int]]:
        """(job id, fence) of every run whose handler had started and not ended."""
        return [run for run, _ in self._runs()]

    def stuck(self) -> list[tuple[int, int]]:
        """(job id, fence) of the started runs whose thread is stuck."""
        return [run for run, stuck in self._runs() if stuck]

    def clear(self) -> None:
        """Empty the row. Only for the parent, only while no child writes it."""
        for cell in range(len(self._integers)):
            self._integers[cell] = 0

    def _runs(self) -> list[tuple[tuple[int, int], bool]]:
        runs: list[tuple[tuple[int, int], bool]] = []
        for slot in range(self.slots):
            job_id, fence, active, stuck = self._integers[
                self._cell(slot) : self._cell(slot) + _SLOT
            ]
            if active:
                # Fences start at 1, so that an empty stuck cell (0) names no run.
                runs.append(((job_id, fence), stuck == fence))
        return runs

    def _cell(self, slot: int) -> int:
        if not 0 <= slot < self.slots:
            raise IndexError(f"the board's row has {self.slots} slots, not {slot + 1}")
        return _HEAD + _SLOT * slot
