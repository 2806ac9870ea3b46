"""`reliable-worker jobs`: look at jobs, and change those that wait, run or are dead. Floor 7."""

from __future__ import annotations

import argparse
import dataclasses
import json

from reliable_worker.cli import change, options, output, words
from reliable_worker.cli.change import NoSuchJob
from reliable_worker.cli.main import fail
from reliable_worker.cli.session import session
from reliable_worker.postgres import catalog, explain, operators
from reliable_worker.postgres.catalog import Listed
from reliable_worker.postgres.database import Connection
from reliable_worker.settings import Settings

DESCRIPTION = "Look at jobs, and change those that wait, run or are dead."
EXAMPLES = """examples:
  reliable-worker jobs list --state dead --error timeout
  reliable-worker jobs list --queue mail --older 1h --limit 100 --before 4711
  reliable-worker jobs show 4711
  reliable-worker jobs explain 4711
  reliable-worker jobs retry 4711 4712
  reliable-worker jobs retry --kind invoice.send --error "connection refused" --dry-run
  reliable-worker jobs cancel --queue mail --older 2d --limit 5000
  reliable-worker jobs reprioritise --to 1 4711
"""
STATES = ("ready", "running", "succeeded", "dead", "cancelled")
ACTIONS = "list|show|explain|retry|cancel|discard|reprioritise"


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the verb's arguments."""
    parser = subparsers.add_parser(
        "jobs",
        usage=f"reliable-worker jobs {ACTIONS} [OPTIONS]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    actions = parser.add_subparsers(
        dest="action", metavar=ACTIONS, required=True, prog="reliable-worker jobs"
    )
    listing = actions.add_parser(
        "list",
        usage="reliable-worker jobs list [OPTIONS]",
        description="The newest jobs first. Keys and payloads are left to `jobs show`.",
        epilog=EXAMPLES,
    )
    listing.add_argument("--limit", metavar="N", type=words.limit, default=20, help="default 20")
    listing.add_argument("--before", metavar="ID", type=words.job_id, help="go on under this id")
    change.add_filters(listing, STATES)
    show = actions.add_parser(
        "show",
        usage="reliable-worker jobs show ID [OPTIONS]",
        description="Everything about one job: its key, its payload, what became of each attempt.",
        epilog=EXAMPLES,
    )
    show.add_argument("id", metavar="ID", type=words.job_id, help="as `jobs list` shows it")
    why = actions.add_parser(
        "explain",
        usage="reliable-worker jobs explain ID|--key KEY [OPTIONS]",
        description="Why a job is where it is, and what to do about it."
        "\nWith --key, --kind and --payload: also why such a job would be refused.",
        epilog=EXAMPLES,
    )
    why.add_argument("id", metavar="ID", type=words.job_id, nargs="?")
    why.add_argument("--key", help="the job of this key")
    why.add_argument("--kind", help="what one meant to enqueue under it")
    why.add_argument("--payload", metavar="JSON", help="likewise")
    for action in (listing, show, why):
        options.add_json(action)
        options.add_settings(action)
    change.add(actions, EXAMPLES)


def run(args: argparse.Namespace) -> int:
    """Do what the action says. Raises what `failures` explains."""
    settings = options.load_settings(args)
    with session(settings) as conn:
        if args.action == "explain":
            _explain(conn, settings, args)
        else:
            {"list": _list, "show": _show}.get(args.action, change.run)(conn, args)
    return 0


def _list(conn: Connection, args: argparse.Namespace) -> None:
    filters = change.filters(args)
    page = operators.list_jobs(conn, filters, before=args.before, limit=args.limit)
    if args.json:
        output.print_json(page.jobs)
        return
    print_jobs(page.jobs)
    if page.before is not None and len(page.jobs) < args.limit:
        print(f"looked at the jobs down to {page.before}: go on with --before {page.before}")


def print_jobs(jobs: list[Listed]) -> None:
    """A table of jobs."""
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
        for job in jobs
    ]
    heads = ("ID", "STATE", "KIND", "QUEUE", "PRIORITY", "ATTEMPTS", "AVAILABLE", "LAST ERROR")
    output.print_table(heads, rows)


def _show(conn: Connection, args: argparse.Namespace) -> None:
    job = catalog.show_job(conn, args.id)
    if job is None:
        raise NoSuchJob(f"there is no job {args.id}")
    steps = operators.timeline(conn, args.id)
    facts = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
    if args.json:
        try:
            facts["payload"] = json.loads(job.payload)
        except (ValueError, RecursionError):
            pass  # text that no worker can read either: shown as it is
        output.print_json({**facts, "timeline": steps})
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{output.paint(name.ljust(width), 'dim')}  {output.text(value)}")
    if steps:
        print()
        heads = ("ENDED", "ATTEMPT", "OUTCOME", "SECONDS", "BY", "ERROR")
        output.print_table(
            heads, [(s.at, s.attempt, s.outcome, s.seconds, s.owner, s.error) for s in steps]
        )


def _explain(conn: Connection, settings: Settings, args: argparse.Namespace) -> None:
    if (args.id is None) == (args.key is None):
        fail(2, "name one job, by ID or by --key; see reliable-worker jobs explain --help")
    if args.key is not None:
        found = explain.explain_key(conn, settings, args.key, args.kind, args.payload)
        if found is None:
            raise NoSuchJob("no job has this key: it is free, or its job was deleted")
    else:
        found = explain.explain(conn, settings, args.id)
        if found is None:
            raise NoSuchJob(
                f"there is no job {args.id}: its time to keep is over, or it was never stored;"
                " ask for its key with --key"
            )
    if args.json:
        output.print_json(dataclasses.asdict(found))
        return
    subject = f"job {found.id} ({found.kind} in {found.queue}) is {found.state}"
    for number, answer in enumerate(found.answers):
        print(output.text(f"{'also' if number else subject}: {answer.text}"))
        print(output.paint(output.text(f"  → {answer.remedy}"), "bold"))
