"""`reliable-worker demo`: real jobs on an embedded PostgreSQL. Floor 7."""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path

from reliable_worker.cli import options, output
from reliable_worker.settings import SettingsError

DESCRIPTION = """See real jobs run on a real PostgreSQL, which is started for it.

One job per text file below PATH (without it: of this package) fingerprints and measures the file;
beside them run jobs that sleep, fail for a while, are invalid, or kill their process. Midway the
demo kills a worker process. At the end it proves by SQL that nothing was lost and that every effect
is there exactly once; else it exits 1 and says what is not.

DATABASE_URL is never touched. With --database the demo makes a database of its own on that server,
for which the role needs CREATEDB, and drops it at the end.
"""
EXAMPLES = """examples:
  reliable-worker demo
  reliable-worker demo ~/notes
  reliable-worker demo --json 2>/dev/null
  reliable-worker demo --database postgresql://me@db.example/postgres
"""
# Short enough to be typed again.
SEEDS = 1_000_000


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the verb's arguments."""
    parser = subparsers.add_parser(
        "demo",
        usage="reliable-worker demo [PATH] [OPTIONS]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    parser.add_argument("path", metavar="PATH", nargs="?", help="a folder, or a file")
    parser.add_argument("--database", metavar="URL", help="a server to use instead of its own")
    parser.add_argument("--seed", type=int, metavar="S", help="repeats an earlier demo's chances")
    options.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Play the demo and show its result: 0 if every invariant holds. Raises what `failures`
    explains."""
    if args.database is None:
        # libpq would read them beside the embedded server's own connection string.
        for name in [name for name in os.environ if name.startswith("PG")]:
            del os.environ[name]
    from reliable_worker.dev import demo, demo_files, demo_show

    path = args.path if args.path is not None else str(Path(__file__).parents[1])
    try:
        found = demo_files.find(os.fsencode(path))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SettingsError(
            f"PATH {output.text(demo_files.shown(os.fsencode(path)))}: {reason}"
        ) from None
    seed = random.randrange(SEEDS) if args.seed is None else args.seed
    chosen = demo.Options(found, args.database, seed)
    # In JSON stdout belongs to the one value; the lines on the way go to stderr.
    show = demo_show.Plain(sys.stderr) if args.json else demo_show.choose(sys.stdout)
    try:
        report = demo.run(chosen, show)
    except KeyboardInterrupt:
        print("reliable-worker: interrupted; all that the demo started is gone", file=sys.stderr)
        return 1
    if args.json:
        output.print_json(report.as_json())
    else:
        show.end(report)
    return 0 if report.ok else 1
