"""Floor 5: what the demo promises, asked of the database and of the files themselves, never of a
worker. May import postgres and below.
"""

import os
import random
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from reliable_worker.dev import demo_statements
from reliable_worker.dev.demo_files import File
from reliable_worker.dev.processes import until
from reliable_worker.postgres.database import Connection

# Files read once more by the demo itself; a second at most, even of the largest.
SAMPLE_FILES = 100
# A server notices within milliseconds that a client has closed its connection.
GONE_SECONDS = 5.0

INVARIANTS = {
    "demo_check_lost": "jobs lost or unknown",
    "demo_check_unfinished": "jobs left unfinished",
    "demo_check_dead": "jobs dead that should not be, or alive that should be dead",
    "demo_check_missing": "effects missing",
    "demo_check_twice": "effects duplicated",
    "demo_check_stray": "effects without their completion",
    "demo_check_files": "file rows and file jobs that do not match",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold: its name, how often, an example."""

    name: str
    count: int
    example: str

    def __str__(self) -> str:
        return f"{self.count} {self.name}, such as {self.example}"


def violations(conn: Connection, files: dict[str, File], rng: random.Random) -> list[Violation]:
    """Every invariant that does not hold now. `files`: the file of each key."""
    found = [_ask(conn, check, name) for check, name in INVARIANTS.items()]
    wrong = _wrong_fingerprints(conn, files, rng)
    found.append(Violation("fingerprints wrong", len(wrong), wrong[0] if wrong else ""))
    return [each for each in found if each.count]


def connections_left(conn: Connection) -> list[Violation]:
    """Connections of the worker that outlive it."""
    name, last = "connections left behind", [Violation("", 0, "")]

    def gone() -> bool:
        last[0] = _ask(conn, "demo_check_connections", name)
        return not last[0].count

    return [] if until(gone, GONE_SECONDS) else last


def _ask(conn: Connection, check: str, name: str) -> Violation:
    count, example = demo_statements.run(conn, check).fetchall()[0]
    return Violation(name, int(count), str(example))


def _wrong_fingerprints(conn: Connection, files: dict[str, File], rng: random.Random) -> list[str]:
    """Keys of a sample whose row is not what the file holds. A file changed since is left out."""
    keys = rng.sample(sorted(files), min(SAMPLE_FILES, len(files)))
    wrong = []
    for key, digest, size in demo_statements.run(conn, "demo_sample", [keys]).fetchall():
        path = Path(os.fsdecode(files[key].path))
        try:
            content = path.read_bytes()
            unchanged = path.stat().st_mtime_ns == files[key].changed_ns
        except OSError:
            continue
        if unchanged and (digest, size) != (sha256(content).hexdigest(), len(content)):
            wrong.append(str(key))
    return wrong
