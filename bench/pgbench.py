"""What PostgreSQL can do: pgbench running the worker's statements with no Python in between."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import psycopg

SQL = Path(__file__).parent / "sql"
CLAIM = 50  # jobs per claim, as the table of known figures has it
_COMPLETE = (
    "UPDATE jobs SET state = 'succeeded', completed_at = clock_timestamp(), "
    "ended_at = clock_timestamp(), lease_owner = NULL, lease_until = NULL, last_error = NULL, "
    "crashes = 0, refunds = 0, snoozes = 0 WHERE id = (':ids'::bigint[])[{n}] "
    "AND lease_owner = 'pgbench.' || :client_id;"
)
_EFFECT = "INSERT INTO bench_effects (key) SELECT 'pgbench-' || (':ids'::bigint[])[{n}];"


def script(name: str, folder: Path) -> Path:
    """The pgbench script of a case: claim 50, then finish as a group or one by one."""
    claim = (SQL / "claim.pgbench").read_text()
    if name == "group":
        text = claim + (SQL / "finish_group.pgbench").read_text()
    else:
        each = [
            f"BEGIN;\n{_COMPLETE.format(n=n)}\n{_EFFECT.format(n=n)}\nCOMMIT;\n"
            for n in range(1, CLAIM + 1)
        ]
        text = claim + "".join(each)
    path = folder / f"{name}.pgbench"
    path.write_text(text)
    return path


def rate(binaries: Path, dsn: str, name: str, folder: Path, *, jobs: int, clients: int) -> float:
    """Jobs per second of one run. Raises CalledProcessError with pgbench's own words."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO jobs (idempotency_key, kind, payload)"
            " SELECT 'pgbench-' || n, 'pgbench', '{\"n\": 1}' FROM generate_series(1, %s) AS n",
            (jobs,),
        )
        conn.execute("VACUUM ANALYZE jobs")
    rounds = jobs // (CLAIM * clients)
    done = subprocess.run(
        [
            str(binaries / "pgbench"),
            *("--no-vacuum", "--protocol=simple", f"--client={clients}", "--jobs=2"),
            *(f"--transactions={rounds}", f"--file={script(name, folder)}", dsn),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )
    found = re.search(r"tps = ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout
    return float(found[1]) * CLAIM
