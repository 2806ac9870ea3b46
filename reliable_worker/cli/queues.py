"""`reliable-worker queues`: the queues and their numbers; pause one, resume it. Floor 7."""

from __future__ import annotations

import argparse

from reliable_worker.cli import options, output, words
from reliable_worker.cli.change import operator
from reliable_worker.cli.session import session
from reliable_worker.postgres import operators
from reliable_worker.postgres.operators import MOST_COUNTED, QueueCounts

DESCRIPTION = f"""Every queue that holds unfinished or dead jobs or is paused, with its numbers,
each counted up to {MOST_COUNTED}.

ready: due now · scheduled: due later · suspects: of both, run alone after a crash ·
running: lease live · expired: lease over, about to be taken back · dead: given up
"""
EXAMPLES = """examples:
  reliable-worker queues list
  reliable-worker queues list --json
  reliable-worker queues pause mail --for 1h
  reliable-worker queues resume mail
"""
_PAUSE = """Let no worker claim from a queue. What runs goes on; enqueueing goes on.

Without --for the pause lasts until `queues resume`."""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the verb's arguments."""
    parser = subparsers.add_parser(
        "queues",
        usage="reliable-worker queues list|pause NAME|resume NAME [OPTIONS]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    actions = parser.add_subparsers(
        dest="action", metavar="list|pause|resume", required=True, prog="reliable-worker queues"
    )
    listing = actions.add_parser(
        "list",
        usage="reliable-worker queues list [OPTIONS]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    pause = actions.add_parser(
        "pause",
        usage="reliable-worker queues pause NAME [--for 1h] [OPTIONS]",
        description=_PAUSE,
        epilog=EXAMPLES,
    )
    pause.add_argument("name", metavar="NAME", type=_name)
    pause.add_argument("--for", dest="seconds", metavar="TIME", type=words.pause_seconds)
    resume = actions.add_parser(
        "resume",
        usage="reliable-worker queues resume NAME [OPTIONS]",
        description="End a pause.",
        epilog=EXAMPLES,
    )
    resume.add_argument("name", metavar="NAME", type=_name)
    for action in (listing, pause, resume):
        options.add_json(action)
        options.add_settings(action)


def run(args: argparse.Namespace) -> int:
    """Do what the action says. Raises what `failures` explains."""
    with session(options.load_settings(args)) as conn:
        if args.action == "list":
            _list(operators.list_queues(conn), args.json)
            return 0
        name = output.text(args.name)
        if args.action == "pause":
            until = operators.pause(conn, args.name, args.seconds, operator())
            answer = {"queue": args.name, "paused": True, "paused_until": until}
            line = f"queue {name} paused until {output.text(until) if until else 'resumed'}"
        else:
            resumed = operators.resume(conn, args.name, operator())
            answer = {"queue": args.name, "paused": False}
            line = f"queue {name} {'resumed' if resumed else 'was not paused'}"
    if args.json:
        output.print_json(answer)
    else:
        print(line)
    return 0


def _list(found: list[QueueCounts], as_json: bool) -> None:
    if as_json:
        output.print_json(found)
        return
    heads = ("QUEUE", "READY", "SCHEDULED", "SUSPECTS", "RUNNING", "EXPIRED", "DEAD", "OLDEST S",
             "PAUSED")  # fmt: skip
    output.print_table(heads, [row(queue) for queue in found])


def row(queue: QueueCounts) -> tuple[object, ...]:
    """A queue as a line of a table."""
    numbers = (queue.ready, queue.scheduled, queue.suspects, queue.running, queue.expired)
    paused = (queue.paused_until or "until resumed") if queue.paused else None
    return (queue.queue, *numbers, queue.dead, queue.oldest_ready_age_seconds, paused)


def _name(word: str) -> str:
    if not 1 <= len(word.encode("utf-8", "surrogateescape")) <= 128 or "\0" in word:
        raise argparse.ArgumentTypeError("not the name of a queue: 1 to 128 bytes")
    return word
