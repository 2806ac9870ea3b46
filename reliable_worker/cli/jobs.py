"""`reliable-worker jobs`: look at jobs, and bring dead ones back. Floor 7."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re

from reliable_worker.cli import options, output
from reliable_worker.cli.session import session
from reliable_worker.jobs.errors import ReliableWorkerError
from reliable_worker.postgres import catalog
from reliable_worker.postgres.database import Connection

DESCRIPTION = "Look at jobs, and bring dead ones back."
EXAMPLES = """examples:
  reliable-worker jobs list --state dead
  reliable-worker jobs list --queue mail --limit 100 --before 4711
  reliable-worker jobs show 4711
  reliable-worker jobs retry 4711
"""
STATES = ("ready", "running", "succeeded", "dead")
_MAX_ID = 2**63 - 1
_MAX_LIMIT = 1000


class NoSuchJob(ReliableWorkerError):
    """The id names no job, or none that the verb can act on."""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the verb's arguments."""
    parser = subparsers.add_parser(
        "jobs",
        usage="reliable-worker jobs list|show ID|retry ID [OPTIONS]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    actions = parser.add_subparsers(
        dest="action", metavar="list|show|retry", required=True, prog="reliable-worker jobs"
    )
    listing = actions.add_parser(
        "list",
        usage="reliable-worker jobs list [OPTIONS]",
        description="The newest jobs first. Keys and payloads are left to `jobs show`.",
        epilog=EXAMPLES,
    )
    listing.add_argument("--state", choices=STATES, help=" ".join(STATES))
    listing.add_argument("--queue", help="only this queue")
    listing.add_argument("--kind", help="only this kind")
    listing.add_argument("--limit", metavar="N", type=_limit, default=20, help="default 20")
    listing.add_argument("--before", metavar="ID", type=_job_id, help="go on under this id")
    show = actions.add_parser(
        "show",
        usage="reliable-worker jobs show ID [OPTIONS]",
        description="Everything about one job, its key and its payload included.",
        epilog=EXAMPLES,
    )
    retry = actions.add_parser(
        "retry",
        usage="reliable-worker jobs retry ID [OPTIONS]",
        description="Make a dead job ready again, now, with all its attempts.",
        epilog=EXAMPLES,
    )
    for action in (show, retry):
        action.add_argument("id", metavar="ID", type=_job_id, help="as `jobs list` shows it")
    for action in (listing, show, retry):
        options.add_json(action)
        options.add_settings(action)


def run(args: argparse.Namespace) -> int:
    """Do what the action says. Raises what `failures` explains."""
    settings = options.load_settings(args)
    with session(settings) as conn:
        actions = {"list": _list, "show": _show, "retry": _retry}
        actions[args.action](conn, args)
    return 0


def _list(conn: Connection, args: argparse.Namespace) -> None:
    found = catalog.list_jobs(
        conn,
        state=args.state,
        queue=args.queue,
        kind=args.kind,
        before=args.before,
        limit=args.limit,
    )
    if args.json:
        output.print_json(found)
        return
    rows = [
        (
            job.id,
            job.state,
            job.kind,
            job.queue,
            job.priority,
            f"{job.attempts}/{job.max_attempts}",
            job.available_at,
            # enough to recognise the error; `jobs show` has all of it
            (job.last_error or "")[:60] or None,
        )
        for job in found
    ]
    heads = ("ID", "STATE", "KIND", "QUEUE", "PRIORITY", "ATTEMPTS", "AVAILABLE", "LAST ERROR")
    output.print_table(heads, rows)


def _show(conn: Connection, args: argparse.Namespace) -> None:
    job = catalog.show_job(conn, args.id)
    if job is None:
        raise NoSuchJob(f"there is no job {args.id}")
    facts = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
    if args.json:
        try:
            facts["payload"] = json.loads(job.payload)
        except (ValueError, RecursionError):
            pass  # text that no worker can read either: shown as it is
        output.print_json(facts)
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{output.paint(name.ljust(width), 'dim')}  {output.text(value)}")


def _retry(conn: Connection, args: argparse.Namespace) -> None:
    if not catalog.retry_job(conn, args.id):
        job = catalog.show_job(conn, args.id)
        if job is None:
            raise NoSuchJob(f"there is no job {args.id}")
        raise NoSuchJob(f"job {args.id} is {job.state}: only a dead job can be retried")
    if args.json:
        output.print_json({"id": args.id, "state": "ready"})
    else:
        print(f"job {args.id} ready")


def _job_id(word: str) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", word) or not 0 < int(word) <= _MAX_ID:
        raise argparse.ArgumentTypeError("not the id of a job")
    return int(word)


def _limit(word: str) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", word) or not 0 < int(word) <= _MAX_LIMIT:
        raise argparse.ArgumentTypeError(f"not a number from 1 to {_MAX_LIMIT}")
    return int(word)
