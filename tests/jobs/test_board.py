"""Shows that the board carries a child's words over the fork, and exactly the runs that started."""

from __future__ import annotations

import os
import signal

import pytest

from reliable_worker.jobs.board import Board

pytestmark = pytest.mark.quick


def test_what_a_killed_child_wrote_is_read_by_its_parent() -> None:
    board = Board(children=2, slots=3)
    child = os.fork()
    if child == 0:
        row = board.child(1)
        row.beat(12.5)
        row.set_deadline(40.25)
        row.set_contact(11.0)
        row.set_held(3)
        row.set_ready()
        row.start(0, 2**63 - 1, 2**62)
        row.start(1, 7, 1)
        row.start(2, 8, 2)
        row.mark_stuck(1)
        row.end(2)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    row = board.child(1)
    assert (row.beat_at, row.deadline, row.contact) == (12.5, 40.25, 11.0)
    assert (row.held, row.ready) == (3, True)
    assert row.started() == [(2**63 - 1, 2**62), (7, 1)]
    assert row.stuck() == [(7, 1)]
    assert board.child(0).started() == []
    row.clear()
    assert (row.beat_at, row.held, row.ready, row.started(), row.stuck()) == (0.0, 0, False, [], [])


def test_a_stuck_mark_ends_with_the_run_it_meant() -> None:
    row = Board(children=1, slots=1).child(0)
    row.start(0, 5, 3)
    row.mark_stuck(0)
    row.end(0)
    assert row.stuck() == []
    row.start(0, 5, 4)
    assert row.started() == [(5, 4)]
    assert row.stuck() == []


def test_rows_and_slots_outside_the_board_are_refused() -> None:
    board = Board(children=1, slots=1)
    with pytest.raises(IndexError):
        board.child(1)
    with pytest.raises(IndexError):
        board.child(0).start(1, 1, 1)
    with pytest.raises(IndexError):
        board.child(0).end(-1)
    assert Board(children=1, slots=0).child(0).started() == []
