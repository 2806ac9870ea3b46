"""A reader of stdout that stops reading stops nothing else (F99)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.fixtures.waiting import wait_until
from tests.logs.speaker import SECONDS, parsed, read_to_end, speaking

# More lines than pipe and queue hold.
FLOOD = 20_000

# As the parent: no thread, a loop that pumps, signals through a wake-up descriptor.
PARENT = """
    import selectors, socket
    a, b = socket.socketpair(); a.setblocking(False); b.setblocking(False)
    signal.set_wakeup_fd(a.fileno()); signal.signal(signal.SIGTERM, lambda *_: None)
    from reliable_worker.jobs.counters import Arena
    from reliable_worker.jobs import meters
    arena = Arena(1, 1); meters.attach(arena.parent())
    selector = selectors.PollSelector(); selector.register(b, 1)
    for number in range({flood}): emit("job_succeeded", job_id=number)
    os.write(2, b"flooded\\n")
    stopped = False
    while not stopped:
        logs.watch(selector)
        for key, _ in selector.select(0.1):
            if key.data is logs: logs.pump()
            elif key.fileobj is b: stopped = True
        logs.pump()
        dropped = arena.snapshot().get("log_lines_dropped_total", {{}}).get((), 0)
        os.write(2, b"dropped %d\\n" % dropped)
    emit("shutdown_complete")
    logs.close(0.5)
    os._exit(0)
"""

# As a child: a log thread, and work that must go on.
CHILD = """
    signal.signal(signal.SIGTERM, lambda *_: os.write(2, b"signal\\n"))
    logs.start_child()
    def work():
        for number in range({flood}): emit("job_succeeded", job_id=number)
        os.write(2, b"flooded\\n")
    thread = threading.Thread(target=work); thread.start(); thread.join()
    signal.pause()
    emit("shutdown_complete")
    logs.close(0.5)
    os._exit(0)
"""


@pytest.mark.quick
@pytest.mark.parametrize("program", [PARENT, CHILD], ids=["parent", "child"])
def test_with_a_stopped_reader_work_and_signals_go_on(program: str, tmp_path: Path) -> None:
    fifo = tmp_path / "stdout"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    writer = os.open(fifo, os.O_WRONLY)
    errors, speak = os.pipe()
    with speaking(program.format(flood=FLOOD), writer, speak) as process:
        os.close(writer)
        os.close(speak)
        heard = Heard(errors)
        wait_until(lambda: heard.says("flooded"), SECONDS, "the flood is over")
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    lines = parsed(read_to_end(reader))
    os.close(reader)
    os.close(errors)
    assert 0 < len(lines) < FLOOD
    assert [line["job_id"] for line in lines] == [*range(len(lines))]


def test_when_the_reader_comes_back_it_hears_how_many_lines_it_missed() -> None:
    reader, writer = os.pipe()
    errors, speak = os.pipe()
    with speaking(PARENT.format(flood=FLOOD), writer, speak) as process:
        os.close(writer)
        os.close(speak)
        heard = Heard(errors)
        wait_until(lambda: heard.says("flooded"), SECONDS, "the flood is over")
        wait_until(lambda: heard.dropped() > 0, SECONDS, "the meters know of the drops")
        counted = heard.dropped()
        output = b""
        while b"logs_dropped" not in output:
            output += os.read(reader, 65536)
        process.send_signal(signal.SIGTERM)
        output += read_to_end(reader)
        assert process.wait(SECONDS) == 0
    os.close(reader)
    os.close(errors)
    lines = parsed(output)
    missed = [line for line in lines if line["event"] == "logs_dropped"]
    jobs = [line for line in lines if line["event"] == "job_succeeded"]
    assert len(missed) == 1
    assert missed[0]["count"] == counted == FLOOD - len(jobs)
    assert lines[-1]["event"] == "shutdown_complete"


def test_a_finaliser_that_logs_in_the_middle_of_logging_stops_nobody() -> None:
    """Garbage is collected anywhere, also while a line is being queued, written or dropped."""
    reader, writer = os.pipe()
    program = """
    import gc
    class Cycle:
        def __init__(self): self.me = self
        def __del__(self): logging.getLogger("x").warning("finalised"); emit("claim_failed")
    logs.start_child()
    gc.set_threshold(2)
    def work():
        for number in range(3000): Cycle(); emit("job_succeeded", job_id=number)
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    os._exit(6)
    """
    with speaking(program, writer) as process:
        os.close(writer)
        assert process.wait(SECONDS) == 6
    parsed(read_to_end(reader))
    os.close(reader)


class Heard:
    """What a process says on stderr, read without waiting."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._text = ""

    def says(self, word: str) -> bool:
        return word in self._read()

    def dropped(self) -> int:
        """The last number of drops that was told."""
        numbers = [line.split()[1] for line in self._read().splitlines()[:-1] if " " in line]
        return int(float(numbers[-1])) if numbers else 0

    def _read(self) -> str:
        try:
            while part := os.read(self._descriptor, 65536):
                self._text += part.decode()
        except BlockingIOError:
            pass
        return self._text
