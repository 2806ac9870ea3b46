"""Floor 5: which processes live in a data directory. A pid file alone proves nothing: its process
may be a zombie that nobody has reaped, or its number may belong to a stranger by now. Every process
of a server stands in its data directory, which /proc shows. Imports nothing of this package.
"""

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

# A death or a start is seen within this time; a look costs about a millisecond.
LOOK_SECONDS = 0.02


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait at most `seconds` for `condition`; whether it came true."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def living(data_directory: Path) -> list[int]:
    """The pids of the live PostgreSQL processes of `data_directory`, zombies left out.

    Where there is no /proc (macOS) the pid file is believed if its process takes a signal.
    """
    if not Path("/proc/self").exists():
        pid = pid_in_file(data_directory)
        return [pid] if pid is not None and _takes_signals(pid) else []
    place = os.path.realpath(data_directory)
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return [pid for pid in pids if _is_server(pid, place)]


def postmaster(data_directory: Path) -> int | None:
    """The pid of the live server of `data_directory`."""
    pid = pid_in_file(data_directory)
    return pid if pid in living(data_directory) else None


def pid_in_file(data_directory: Path) -> int | None:
    """The pid that `postmaster.pid` names; None if there is no such file."""
    lines = pid_file_lines(data_directory)
    return abs(int(lines[0])) if lines and lines[0].lstrip("-").isdigit() else None


def pid_file_lines(data_directory: Path) -> list[str]:
    """postmaster.pid: pid, directory, start, port, socket directory, address, memory, status."""
    try:
        text = (data_directory / "postmaster.pid").read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [line.strip() for line in text.splitlines()]


def listens(path: Path) -> bool:
    """Whether some process, even one that is not in our /proc, listens on this unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(LOOK_SECONDS)
        try:
            probe.connect(str(path))
        except TimeoutError:
            return True  # its queue is full
        except OSError:
            return False
    return True


def send(pids: list[int], number: signal.Signals) -> None:
    """Signal each of `pids`; one that has gone meanwhile is passed over."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _is_server(pid: int, place: str) -> bool:
    """Whether `pid` is a PostgreSQL process standing in `place`; a zombie stands nowhere."""
    try:
        stands = os.readlink(f"/proc/{pid}/cwd") == place
        return stands and "postgres" in Path(f"/proc/{pid}/comm").read_text(encoding="utf-8")
    except OSError:
        # It has gone, is a zombie, or belongs to somebody else.
        return False


def _takes_signals(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
