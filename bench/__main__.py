"""`python -m bench`: the cases in turns on one embedded server, and a table of ratios."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
from psycopg import sql

from bench import fleet, pgbench
from reliable_worker.dev.embedded import Cluster

SCHEMA = fleet.ROOT / "schema.sql"
# What each case is held against: pgbench claiming 50 and finishing in the same manner.
AGAINST = {
    "noop": "pgbench group",
    "effect": "pgbench group",
    "transaction": "pgbench single",
    "work": "",
}


@contextmanager
def database(cluster: Cluster) -> Iterator[str]:
    """A fresh database with the schema and the effects' table."""
    name = "bench"
    place = sql.Identifier(name)
    with psycopg.connect(cluster.dsn(), autocommit=True) as conn:
        conn.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(place))
        conn.execute(sql.SQL("CREATE DATABASE {}").format(place))
    with psycopg.connect(cluster.dsn(name), autocommit=True) as conn:
        conn.execute(SCHEMA.read_bytes())
        conn.execute(fleet.statement("effects"))
    yield cluster.dsn(name)


def cases(
    args: argparse.Namespace, cluster: Cluster, folder: Path
) -> dict[str, Callable[[], float]]:
    """Case → a function that runs it once and returns jobs per second."""

    def ours(kind: str) -> float:
        jobs = args.jobs // 10 if kind == "work" else args.jobs
        with database(cluster) as dsn:
            return fleet.rate(
                dsn,
                kind,
                jobs=jobs,
                workers=args.workers,
                processes=args.processes,
                prefetch=args.prefetch,
            )

    def theirs(name: str) -> float:
        with database(cluster) as dsn:
            return pgbench.rate(
                cluster.bin, dsn, name, folder, jobs=args.jobs, clients=args.processes * 2
            )

    made: dict[str, Callable[[], float]] = {
        "pgbench group": lambda: theirs("group"),
        "pgbench single": lambda: theirs("single"),
    }
    for kind in args.cases:
        made[kind] = partial(ours, kind)
    return made


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000, help="jobs per run")
    parser.add_argument("--repeats", type=int, default=3, help="runs per case, in turns")
    parser.add_argument("--workers", type=int, default=8, help="thread workers in all")
    parser.add_argument("--processes", type=int, default=2, help="worker processes")
    parser.add_argument("--prefetch", type=int, default=100, help="jobs claimed ahead")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("cases", nargs="*", default=list(AGAINST), help=", ".join(AGAINST))
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run; print minimum, median and maximum of each case, and the medians' ratios."""
    args = parse(argv)
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="rw-bench-") as folder:
        place = Path(folder)
        place.chmod(0o755)  # the server may run under another account
        with Cluster(place / "data", options={"max_connections": "100"}) as cluster:
            made = cases(args, cluster, place)
            for repeat in range(args.repeats):
                for name, run in made.items():
                    print(f"run {repeat + 1} of {args.repeats}: {name}", file=sys.stderr)
                    figures.setdefault(name, []).append(run())
    report(figures, as_json=args.json)
    return 0


def report(figures: dict[str, list[float]], *, as_json: bool) -> None:
    """The table, or the same as JSON."""
    medians = {name: statistics.median(values) for name, values in figures.items()}
    rows = []
    for name, values in figures.items():
        other = AGAINST.get(name, "")
        ratio = medians[name] / medians[other] if other else None
        rows.append((name, min(values), medians[name], max(values), other, ratio))
    if as_json:
        keys = ("case", "min", "median", "max", "against", "ratio")
        print(json.dumps([dict(zip(keys, row, strict=True)) for row in rows]))
        return
    print(f"{'jobs/s':<16}{'min':>10}{'median':>10}{'max':>10}   ratio")
    for name, low, median, high, other, ratio in rows:
        told = f"{ratio:.2f} of {other}" if ratio is not None else ""
        print(f"{name:<16}{low:>10,.0f}{median:>10,.0f}{high:>10,.0f}   {told}")


if __name__ == "__main__":
    sys.exit(main())
