"""`reliable-worker doctor`: what keeps, or may come to keep, a worker from working. Floor 7."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import psycopg

from reliable_worker.cli import options, output
from reliable_worker.cli.session import open_session
from reliable_worker.enqueue.app import load_app
from reliable_worker.postgres.database import Connection
from reliable_worker.postgres.doctor import examine
from reliable_worker.postgres.doctor_live import FIXES
from reliable_worker.postgres.findings import Finding
from reliable_worker.settings import Settings

DESCRIPTION = """Check the way to the database, its schema, the budgets, connections and privileges.

Also: notifications, clocks, what keeps vacuum from its work, the claim's plan, jobs that nobody
handles or takes back, the unit's stop time. Nothing is changed without --fix. Ends with 0 when a
worker can run, warnings or not; 1 when something must be mended; 3 when the database cannot be
reached; 4 when the schema does not fit.
"""
EXAMPLES = """examples:
  reliable-worker doctor
  reliable-worker doctor --app shop.jobs:app --workers 16 --processes 4
  reliable-worker doctor --fix
  reliable-worker doctor --json
"""
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the verb's arguments."""
    parser = subparsers.add_parser("doctor", description=DESCRIPTION, epilog=EXAMPLES)
    parser.add_argument(
        "--fix", action="store_true", help="do what is safe: VACUUM, ANALYZE, autovacuum, chmod"
    )
    options.add_json(parser)
    options.add_settings(parser, queues=True, listed=True)


def run(args: argparse.Namespace) -> int:
    """Look, print the findings, and say by the exit code whether a worker can run."""
    settings = options.load_settings(args)
    kinds = load_app(settings.app).handlers.keys() if settings.app else None
    conn = open_session(settings)
    try:
        findings = list(examine(conn, settings, kinds))
        tried = _fix(conn, settings, findings) if args.fix else []
        if tried:
            findings = list(examine(conn, settings, kinds))
    finally:
        conn.close()
    if args.json:
        output.print_json(findings)
    else:
        width = max(len(finding.check) for finding in findings)
        for finding in findings:
            level = output.paint(finding.level.ljust(4), _COLOURS[finding.level])
            print(f"{level}  {finding.check.ljust(width)}  {output.text(finding.text)}")
            if finding.remedy:
                print(f"{' ' * (width + 6)}  → {output.text(finding.remedy)}")
        left = {finding.fix for finding in findings}
        for name in tried:
            print(f"not fixed: {name}, ask its owner" if name in left else f"fixed: {name}")
    failed = {finding.check for finding in findings if finding.level == "fail"}
    if "schema" in failed:
        return 4
    return 1 if failed else 0


def _fix(conn: Connection, settings: Settings, findings: Sequence[Finding]) -> list[str]:
    """Do what can be done; the names of what was tried."""
    names = list(dict.fromkeys(found.fix for found in findings if found.fix))
    for name in names:
        try:
            FIXES[name](conn, settings)
        except (psycopg.errors.InsufficientPrivilege, PermissionError):
            continue  # the next look finds it as it was
    return names
