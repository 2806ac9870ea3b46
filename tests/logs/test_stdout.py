"""Standard output holds lines and nothing else, whatever it is and whoever else writes."""

from __future__ import annotations

import fcntl
import os
import pty
import socket
import subprocess
from pathlib import Path

import pytest

from reliable_worker.logs.outlet import Outlet
from tests.logs.speaker import SECONDS, command, parsed, read_to_end, speak, speaking

CHATTER = """
    emit("job_started", job_id=1)
    print("by print")
    os.write(1, b"by descriptor\\n")
    subprocess.run(["echo", "by a subprocess"], timeout=60)
    logging.getLogger("library").warning("by logging")
    warnings.warn("by warnings")
    threading.Thread(target=lambda: 1 / 0).start()
    emit("job_succeeded", job_id=1)
"""


@pytest.mark.quick
def test_nothing_but_lines_reaches_standard_output() -> None:
    code, lines, stderr = speak(CHATTER + "    logs.close()\n")
    assert code == 0
    assert [line["event"] for line in lines] == [
        "job_started",
        "log",
        "warning",
        "uncaught",
        "job_succeeded",
    ]
    assert lines[1]["message"] == "by logging"
    assert lines[2]["message"] == "UserWarning: by warnings"
    assert lines[3]["error"] == "ZeroDivisionError: division by zero"
    for word in ("by print", "by descriptor", "by a subprocess", "Traceback"):
        assert word in stderr


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("raise ValueError('first\\nSEC' + 'RET')", 1),  # the stack shows the source
        ("raise SystemExit(7)", 7),
        ("os._exit(9)", 9),
        ("import faulthandler, ctypes; faulthandler.enable(); ctypes.string_at(0)", -11),
        ("os.abort()", -6),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("class Bad:\n    def __del__(self): raise ValueError('x')\nBad(); raise SystemExit(3)", 3),
    ],
)
def test_a_crash_leaves_only_whole_lines(end: str, code: int) -> None:
    found, lines, stderr = speak(f"resource = __import__('resource')\nemit('job_started')\n{end}")
    assert found == code
    assert lines[0]["event"] == "job_started"
    assert "SECRET" not in stderr
    if code == 1:
        assert lines[1]["error"] == "ValueError: first"


def test_what_another_thread_logs_while_the_process_forks_is_written_once() -> None:
    _, lines, _ = speak(
        """
        emit("before")
        for number in range(20):
            pid = os.fork()
            if not pid:
                events.clear()
                logs.start_child()
                emit("child_ready", index=number)
                logging.getLogger("x").warning("hello %d", number)
                logs.close()
                os._exit(0)
            os.waitpid(pid, 0)
        logs.close()
        """
    )
    assert [line["event"] for line in lines].count("before") == 1
    assert sorted(str(line["index"]) for line in lines if "index" in line) == sorted(
        map(str, range(20))
    )
    assert len([line for line in lines if line["event"] == "log"]) == 20


def test_lines_of_many_processes_and_threads_stay_whole() -> None:
    _, lines, _ = speak(
        """
        pids = []
        for index in range(6):
            pid = os.fork()
            if not pid:
                events.clear()
                logs.start_child()
                def work(thread):
                    for number in range(100):
                        text = chr(97 + index) * (number * 37 % 1000)
                        emit("log", index=index, count=number, error=text, message=text, stack=text)
                threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
                for thread in threads: thread.start()
                for thread in threads: thread.join()
                logs.close(30)
                os._exit(0)
            pids.append(pid)
        for pid in pids: os.waitpid(pid, 0)
        """
    )
    assert len(lines) == 6 * 3 * 100
    for line in lines:
        assert set(str(line["error"])) <= {chr(97 + int(str(line["index"])))}


def test_a_file_is_appended_to_by_all_processes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"time": "t", "level": "info", "event": "old"}\n')
    with path.open("ab") as file:
        with speaking(
            """
            emit("a")
            for _ in range(3):
                if not os.fork():
                    logs.start_child(); emit("b"); logs.close(); os._exit(0)
            for _ in range(3): os.wait()
            emit("c"); logs.close()
            """,
            file.fileno(),
        ) as process:
            assert process.wait(SECONDS) == 0
    events = [line["event"] for line in parsed(path.read_bytes())]
    assert events == ["old", "a", "b", "b", "b", "c"]


def test_a_socket_is_written_to_without_changing_it() -> None:
    """As journald's: the description is shared, so O_NONBLOCK must not be set on it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with speaking("for n in range(50): emit('x', count=n)\nlogs.close()", theirs.fileno()) as p:
            assert p.wait(SECONDS) == 0
        assert not fcntl.fcntl(theirs, fcntl.F_GETFL) & os.O_NONBLOCK
        theirs.close()
        assert [line["count"] for line in parsed(read_to_end(ours.fileno()))] == [*range(50)]


def test_a_terminal_gets_lines() -> None:
    ours, theirs = pty.openpty()
    with speaking("emit('x', error='\\x1b[31m')\nlogs.close()", theirs) as process:
        assert process.wait(SECONDS) == 0
    assert not fcntl.fcntl(theirs, fcntl.F_GETFL) & os.O_NONBLOCK
    found = os.read(ours, 4096)
    os.close(ours)
    os.close(theirs)
    assert parsed(found.replace(b"\r\n", b"\n"))[0]["event"] == "x"


@pytest.mark.parametrize("closed", ["stdout", "stderr", "both"])
def test_closed_descriptors_stop_nobody(closed: str, tmp_path: Path) -> None:
    """A data file opened under the number 1 by chance must never receive a line or a print."""
    target = tmp_path / "data"
    program = f"""
    with open({str(target)!r}, "w") as file:
        emit("x")
        os.write(1, b"printed")
        file.write("data")
    logs.close()
    """
    closing = {"stdout": ">&-", "stderr": "2>&-", "both": ">&- 2>&-"}[closed]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closing}', "sh", *command(program)],
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert target.read_text() == "data"
    parsed(done.stdout)


def test_without_a_reader_lines_are_lost_and_work_goes_on() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with speaking("for n in range(10000): emit('x')\nlogs.close()\nos._exit(5)", writer) as process:
        os.close(writer)
        assert process.wait(SECONDS) == 5


def test_a_full_disk_costs_lines_only() -> None:
    with open("/dev/full", "wb") as full:
        with speaking(
            "for n in range(1000): emit('x')\nlogs.close()\nos._exit(5)", full.fileno()
        ) as process:
            assert process.wait(SECONDS) == 5


@pytest.mark.parametrize("nowait", [True, False])
def test_a_pipe_that_cannot_be_opened_again_is_written_without_waiting(
    nowait: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service started as root that dropped its privileges may not open its own stdout."""

    def refused(*args: object) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "open", refused)
    if not nowait:
        monkeypatch.delattr(os, "RWF_NOWAIT", raising=False)
    reader, writer = os.pipe()
    outlet = Outlet(writer)
    taken = 0
    while outlet.write(b"x" * 4095 + b"\n"):
        taken += 4096
    assert taken > 0
    assert not fcntl.fcntl(writer, fcntl.F_GETFL) & os.O_NONBLOCK
    assert len(os.read(reader, 8192)) == 8192
    assert outlet.write(b"y" * 4096) == 4096
    for descriptor in (reader, writer, outlet.fileno()):
        os.close(descriptor)
