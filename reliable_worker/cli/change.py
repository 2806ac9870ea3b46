"""The changing half of `reliable-worker jobs`: retry, cancel, discard, reprioritise. Floor 7.

Each takes ids, or filters that say which jobs; `--dry-run` shows them and changes nothing.
"""

from __future__ import annotations

import argparse
import getpass
import os
import socket
from collections.abc import Mapping, Sequence

from reliable_worker.cli import options, output, words
from reliable_worker.jobs.errors import ReliableWorkerError
from reliable_worker.postgres import catalog, operators
from reliable_worker.postgres.catalog import Listed
from reliable_worker.postgres.database import Connection
from reliable_worker.postgres.operators import ACTS_ON, Action, Filters

DONE = {"retry": "ready", "cancel": "cancelled", "discard": "dead", "reprioritise": "ready"}
_ABOUT: Mapping[Action, str] = {
    "retry": "Make dead jobs ready again, now, with all their attempts.",
    "cancel": "Take jobs back: a ready one will not run, a running one loses its lease, so that"
    "\nits handler is stopped and nothing it does is committed.",
    "discard": "Give jobs up that wait: they are dead, and can be retried later.",
    "reprioritise": "Let jobs that wait run earlier or later. 0 runs first, 9 last.",
}
_PAST = {"retry": "retried", "cancel": "cancelled", "discard": "discarded",
         "reprioritise": "reprioritised"}  # fmt: skip
# Enough for most incidents, and little enough to be seen through after --dry-run.
_LIMIT = 1000


class NoSuchJob(ReliableWorkerError):
    """The id names no job, or none that the verb can act on."""


def add(actions: argparse._SubParsersAction[argparse.ArgumentParser], examples: str) -> None:
    """Define the four actions' arguments."""
    for name, about in _ABOUT.items():
        parser = actions.add_parser(
            name,
            usage=f"reliable-worker jobs {name} ID …|FILTERS [--dry-run] [OPTIONS]",
            description=about,
            epilog=examples,
        )
        parser.add_argument("ids", metavar="ID", type=words.job_id, nargs="*")
        if name == "reprioritise":
            parser.add_argument(
                "--to", metavar="N", type=words.priority, required=True, help="0 to 9"
            )
        add_filters(parser, ACTS_ON[name])
        parser.add_argument(
            "--limit", metavar="N", type=_limit, default=_LIMIT, help=f"default {_LIMIT}"
        )
        parser.add_argument("--dry-run", action="store_true", help="show which, change nothing")
        options.add_json(parser)
        options.add_settings(parser)


def add_filters(parser: argparse.ArgumentParser, states: Sequence[str]) -> None:
    """The options that say which jobs."""
    parser.add_argument("--state", choices=states, help=" ".join(states))
    parser.add_argument("--queue", help="only this queue")
    parser.add_argument("--kind", help="only this kind")
    parser.add_argument("--key", help="only the job of this key")
    parser.add_argument("--error", metavar="TEXT", help="only where last_error has this text")
    age = words.duration_seconds
    parser.add_argument("--older", metavar="AGE", type=age, help="enqueued at least 1h ago")
    parser.add_argument("--newer", metavar="AGE", type=age, help="enqueued at most 1h ago")


def filters(args: argparse.Namespace) -> Filters:
    """The filters given."""
    return Filters(
        state=args.state,
        queue=args.queue,
        kind=args.kind,
        key=args.key,
        error=args.error,
        older_seconds=args.older,
        newer_seconds=args.newer,
    )


def run(conn: Connection, args: argparse.Namespace) -> None:
    """Change the jobs named, or those that fit. Raises what `failures` explains."""
    wanted = filters(args)
    chosen = bool(wanted.given() or wanted.key)
    if bool(args.ids) == chosen:
        from reliable_worker.cli.main import fail

        fail(2, f"name the jobs by id, or by filters, not both; see jobs {args.action} --help")
    done = _named(conn, args) if args.ids else _chosen(conn, args, wanted)
    if args.json:
        output.print_json(done)


def _named(conn: Connection, args: argparse.Namespace) -> list[dict[str, object]]:
    action: Action = args.action
    done: list[dict[str, object]] = []
    refused: NoSuchJob | None = None
    for job_id in args.ids:
        if args.dry_run:
            job = catalog.show_job(conn, job_id)
            changed = job is not None and job.state in ACTS_ON[action]
        else:
            details = _details(args)
            changed = job_id in operators.change(
                conn, action, [job_id], operator(), details, priority=getattr(args, "to", None)
            )
        if not changed:
            refused = _refusal(conn, action, job_id)
            break
        done.append({"id": job_id, "state": DONE[action]})
        if not args.json:
            would = "would be " if args.dry_run else ""
            print(f"job {job_id} {would}{DONE[action]}")
    if refused is not None:
        raise refused
    return done


def _chosen(conn: Connection, args: argparse.Namespace, wanted: Filters) -> list[dict[str, object]]:
    action: Action = args.action
    done: list[Listed] = []
    for batch in operators.pick(conn, action, wanted, args.limit):
        if args.dry_run:
            done += batch
            continue
        details = _details(args, wanted)
        changed = operators.change(
            conn,
            action,
            [job.id for job in batch],
            operator(),
            details,
            priority=getattr(args, "to", None),
        )
        done += [job for job in batch if job.id in changed]
    if not args.json:
        from reliable_worker.cli.jobs import print_jobs

        if args.dry_run:
            print_jobs(done)
        would = "would be " if args.dry_run else ""
        jobs = f"{len(done)} job{'' if len(done) == 1 else 's'}"
        more = "; there may be more: repeat, or raise --limit" if len(done) >= args.limit else ""
        print(f"{jobs} {would}{_PAST[action]}{more}")
    return [{"id": job.id, "state": DONE[action]} for job in done]


def _details(args: argparse.Namespace, wanted: Filters | None = None) -> dict[str, object]:
    given = wanted.given() if wanted else {}
    return {**given, "priority": args.to} if args.action == "reprioritise" else given


def _refusal(conn: Connection, action: Action, job_id: int) -> NoSuchJob:
    job = catalog.show_job(conn, job_id)
    if job is None:
        return NoSuchJob(f"there is no job {job_id}")
    states = " or ".join(ACTS_ON[action])
    hint = ": cancel it instead" if (action, job.state) == ("discard", "running") else ""
    return NoSuchJob(
        f"job {job_id} is {job.state}: only a {states} job can be {_PAST[action]}{hint}"
    )


def operator() -> str:
    """Who gives this command, for the audit."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # an account without an entry in the system's list
        name = f"uid {os.getuid()}"
    return f"{name}@{socket.gethostname()}"


def _limit(word: str) -> int:
    if not word.isascii() or not word.isdecimal() or not 0 < int(word[:9]) <= 1_000_000:
        raise argparse.ArgumentTypeError("not a number from 1 to 1000000")
    return int(word[:9])
