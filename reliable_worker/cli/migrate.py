"""`reliable-worker migrate`: install or upgrade the schema, and say where it stands. Floor 7."""

from __future__ import annotations

import argparse
import math
import signal

from reliable_worker.cli import failures, options, output
from reliable_worker.cli.session import open_session
from reliable_worker.postgres import migrate
from reliable_worker.postgres.database import Connection
from reliable_worker.postgres.lines import WORKER, Line

DESCRIPTION = """Install or upgrade the schema: a step of a release, never taken by `run`.

up: apply what is pending · status: the files and their state, 4 where this release cannot work
verify: changed files, files not applied, invalid indexes, 1 where there are any
force: after an interrupted migration, say which version the schema has
"""
EXAMPLES = """examples:
  reliable-worker migrate up
  reliable-worker migrate status --json
  reliable-worker migrate force 2          shows what an interrupted migration left behind
  reliable-worker migrate force 2 --yes    marks it applied; `force 1 --yes` lets it run again
"""
FORCE = """Look at what an interrupted migration left in the database; with --yes, mark those up to
VERSION applied and the rest not applied. Changes marks only, never the schema.
"""
USAGE = "reliable-worker migrate"


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the verb's arguments."""
    parser = subparsers.add_parser(
        "migrate",
        usage=f"{USAGE} up|status|verify|force VERSION [OPTIONS]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    for action in add_actions(parser, "reliable-worker"):
        options.add_settings(action)


def add_actions(parser: argparse.ArgumentParser, program: str) -> list[argparse.ArgumentParser]:
    """Define the actions on a line of migrations; returns their parsers."""
    usage = f"{program} migrate"
    actions = parser.add_subparsers(
        dest="action", metavar="up|status|verify|force", required=True, prog=usage
    )
    examples = EXAMPLES.replace("reliable-worker", program)
    made = []
    for name, text in (("up", DESCRIPTION), ("status", DESCRIPTION), ("verify", DESCRIPTION),
                       ("force", FORCE)):  # fmt: skip
        version = " VERSION" if name == "force" else ""
        action = actions.add_parser(
            name, usage=f"{usage} {name}{version} [OPTIONS]", description=text, epilog=examples
        )
        if name == "force":
            action.add_argument("version", metavar="VERSION", type=int, help="0 is: none applied")
            action.add_argument("--yes", action="store_true", help="change the marks")
        if name in ("up", "force"):
            action.add_argument(
                "--wait",
                metavar="SECONDS",
                type=_seconds,
                default=migrate.WAIT_SECONDS,
                help=f"for another migrator to end; default {migrate.WAIT_SECONDS:g}, then exit 75",
            )
        options.add_json(action)
        made.append(action)
    return made


def run(args: argparse.Namespace) -> int:
    """Do what the action says. Raises what `failures` explains."""
    with open_session(options.load_settings(args)) as conn:
        return act(conn, args, WORKER)


def act(conn: Connection, args: argparse.Namespace, line: Line) -> int:
    """Carry out the action on a line; returns the exit code."""
    actions = {"up": _up, "status": _status, "verify": _verify, "force": _force}
    return actions[args.action](conn, args, line)


def _up(conn: Connection, args: argparse.Namespace, line: Line) -> int:
    # systemd's stop is an operator's Ctrl-C: the statement is cancelled, its file rolled back
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def say(text: str) -> None:
        if not args.json:
            print(text, flush=True)

    applied = migrate.up(conn, line, wait_seconds=args.wait, say=say)
    version = migrate.status(conn, line).version
    if args.json:
        output.print_json({"applied": [each.label for each in applied], "version": version})
    else:
        print(f"schema version {version}" + ("" if applied else ", nothing to apply"))
    return 0


def _status(conn: Connection, args: argparse.Namespace, line: Line) -> int:
    found = migrate.status(conn, line)
    code = failures.SCHEMA if found.problem else 0
    if args.json:
        output.print_json(
            {
                "version": found.version,
                "minimum": line.minimum,
                "maximum": line.maximum,
                "problem": found.problem,
                "in_progress": found.in_progress,
                "drift": found.drift,
                "pending": [each.label for each in found.pending],
                "migrations": found.marks,
            }
        )
        return code
    rows = [(mark.label, mark.kind, mark.state, mark.applied_at) for mark in found.marks]
    rows += [(each.label, each.kind, "pending", None) for each in found.pending]
    output.print_table(("MIGRATION", "KIND", "STATE", "APPLIED"), rows)
    if found.in_progress:
        print("a migration is in progress")
    for drift in found.drift:
        print(drift)
    print(found.problem or f"schema version {found.version} fits this release")
    return code


def _verify(conn: Connection, args: argparse.Namespace, line: Line) -> int:
    migrate.check_range(conn, line)
    problems = migrate.verify(conn, line)
    if args.json:
        output.print_json({"problems": problems})
    else:
        print("\n".join(problems) or "the schema is what this release's migrations make")
    return failures.FAILED if problems else 0


def _force(conn: Connection, args: argparse.Namespace, line: Line) -> int:
    forced = migrate.force(conn, line, args.version, confirmed=args.yes, wait_seconds=args.wait)
    if args.json:
        output.print_json(forced)
    else:
        for text in (*forced.found, *forced.changes):
            print(text)
        if not forced.changes:
            print(f"the marks say version {args.version} already")
        elif not forced.done:
            print("nothing was changed: give --yes to change the marks")
    return 0 if forced.done or not forced.changes else failures.USAGE


def _seconds(word: str) -> float:
    seconds = float(word)
    if not math.isfinite(seconds) or seconds < 0:
        raise argparse.ArgumentTypeError("not a number of seconds")
    return seconds
