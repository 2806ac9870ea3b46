"""The supervisor with children that do as they are told: `python -m tests.supervisor.scripted`.

The parent is the real one, as `reliable-worker run` makes it; the children's mains know no
database. A child's orders lie in the folder that SCRIPT_FOLDER names:

    <role>           what every child of this role does at its start
    <pid>            what this child does now; the file is removed first
    no-contact       while it is there no child reaches the "database"
    deaf             while it is there maintenance buries nobody
    eligible         the count that maintenance reads (no file: 0)

and what maintenance hears is appended to `heard`, a JSON object a line.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

from reliable_worker.cli.run import execute
from reliable_worker.jobs.deadline import boottime
from reliable_worker.jobs.events import emit
from reliable_worker.process import Child, Loop, Role, Stop


class Scripted:
    """A child's main: says ready, does as it is told, leaves when asked to."""

    def __init__(self, child: Child, kinds: list[str]) -> None:
        self.child = child
        self.folder = Path(os.environ["SCRIPT_FOLDER"])
        self.code: int | None = None
        self.stubborn = False
        self.loop = Loop(child, on_stop=lambda level: None, on_message=self.hear, on_tick=self.tick)
        self.order(self.folder / child.role)
        if self.code is None:
            self.loop.send({"say": "ready", "kinds": kinds})

    def run(self) -> int:
        self.loop.run(self.done)
        return self.code or 0

    def done(self) -> bool:
        if self.code is not None:
            return True
        return self.loop.level > Stop.RUN and not self.stubborn

    def tick(self) -> None:
        if not (self.folder / "no-contact").exists():
            self.child.board.set_contact(boottime())
            self.child.board.set_ready()
        self.order(self.folder / str(os.getpid()), once=True)

    def hear(self, message: dict[str, object]) -> None:
        """Workers hear nothing."""

    def order(self, path: Path, *, once: bool = False) -> None:
        try:
            words = path.read_text().split()
        except FileNotFoundError:
            return
        if once:
            path.unlink()
        for word in words:
            self.obey(*word.split(":"))

    def obey(self, verb: str, *arguments: str) -> None:
        board = self.child.board
        match verb:
            case "start":  # start:slot:job:fence
                slot, job, fence = map(int, arguments)
                board.start(slot, job, fence)
                board.set_held(len(board.started()))
            case "end":
                board.end(int(arguments[0]))
                board.set_held(len(board.started()))
            case "stuck":
                board.mark_stuck(int(arguments[0]))
            case "lease":  # lease:seconds until the earliest deadline
                board.set_deadline(boottime() + float(arguments[0]))
            case "hold":
                board.set_held(int(arguments[0]))
            case "emit":
                emit("job_succeeded", queue="default", kind="message", duration_seconds=0.0)
            case "hang":  # the main loop stands still, and the interpreter's lock with it
                ctypes.PyDLL(None).sleep(int(arguments[0]))
            case "stubborn":
                self.stubborn = True
            case "leave":
                self.code = int(arguments[0])
            case "exit":
                os._exit(int(arguments[0]))
            case "kill":
                os.kill(os.getpid(), int(arguments[0]))
            case "raise":
                raise RuntimeError("the handler module is broken")
            case "fail":  # fail:exit code:words-with-dashes
                line = arguments[1].replace("-", " ")
                self.loop.send({"say": "failed", "exit": int(arguments[0]), "line": line})
                self.code = int(arguments[0])
            case "orphan":  # what a handler's subprocess leaves behind in a container
                between = os.fork()
                if between == 0:
                    if os.fork() == 0:
                        os.execvp("sleep", ["sleep", "1"])
                    os._exit(0)
                os.waitpid(between, 0)
            case "environment":
                path = self.folder / f"environment-{os.getpid()}"
                draft = path.with_suffix(".draft")
                env = subprocess.run(["env"], check=True, capture_output=True, timeout=20)
                draft.write_bytes(env.stdout)
                draft.rename(path)
            case _:
                raise AssertionError(f"unknown order {verb}")


class ScriptedMaintenance(Scripted):
    """Writes down what it hears, buries who it is told of, counts what is eligible."""

    def hear(self, message: dict[str, object]) -> None:
        with open(self.folder / "heard", "a", encoding="utf-8") as heard:
            heard.write(json.dumps(message | {"pid": os.getpid()}) + "\n")
        if message["say"] == "obituary" and not (self.folder / "deaf").exists():
            self.loop.send({"say": "buried", "boot": message["boot"]})
        if message["say"] == "eligible":
            path = self.folder / "eligible"
            count = int(path.read_text() or 0) if path.exists() else 0
            self.loop.send({"say": "eligible", "ask": message["ask"], "count": count})

    def obey(self, verb: str, *arguments: str) -> None:
        if verb == "suspects":
            self.loop.send({"say": "suspects", "count": int(arguments[0])})
        else:
            super().obey(verb, *arguments)


def work(child: Child) -> int:
    """A worker's and a quarantine child's main."""
    scripted = Scripted(child, ["message", f"kind-{child.index}"])
    if child.once:
        scripted.code = 0
    return scripted.run()


def maintain(child: Child) -> int:
    return ScriptedMaintenance(child, []).run()


def try_out(child: Child) -> int:
    """A trial's main: does its orders and leaves."""
    scripted = Scripted(child, [])
    return scripted.code or 0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--drain", action="store_true")
    parser.add_argument("--config", type=Path)
    arguments = parser.parse_args()
    mains = {
        Role.WORKER: work,
        Role.QUARANTINE: work,
        Role.MAINTENANCE: maintain,
        Role.TRIAL: try_out,
    }
    return execute(
        {},
        config=arguments.config,
        once=arguments.once,
        drain=arguments.drain,
        mains=mains,
    )


if __name__ == "__main__":
    sys.exit(main())
