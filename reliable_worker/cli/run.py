"""`reliable-worker run`: settings, the port, then the supervisor. It is the parent from its first
line on, so it imports nothing that would load libpq.

Floor 7. The children's mains are put together here, because only this floor may know both the
supervisor and what its children do; each imports its floor after the fork, in the child alone.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from reliable_worker.cli.options import add_settings, config_path, flags
from reliable_worker.supervisor.signals import Signals

if TYPE_CHECKING:
    from reliable_worker.process import Child, ChildMain, Role
    from reliable_worker.settings import Settings

DESCRIPTION = """Run jobs until told to stop.

SIGTERM and SIGINT drain: nothing more is claimed, what cannot end in time is released.
SIGHUP reads the settings file again and replaces the processes one by one.
SIGQUIT kills everything at once. The schema is never changed: `migrate up` does that.
"""
EXAMPLES = """examples:
  reliable-worker run --app shop.jobs:app
  reliable-worker run --app shop.jobs:app --queue mail --workers 8 --processes 2
  reliable-worker run --app shop.jobs:app --drain
"""
_FLUSH_SECONDS = 0.5


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the verb's arguments."""
    parser = subparsers.add_parser(
        "run", usage="reliable-worker run [OPTIONS]", description=DESCRIPTION, epilog=EXAMPLES
    )
    ending = parser.add_mutually_exclusive_group()
    ending.add_argument("--once", action="store_true", help="one claim of at most WORKERS jobs")
    ending.add_argument("--drain", action="store_true", help="end when nothing can be claimed")
    add_settings(parser, queues=True, app=True)


def run(args: argparse.Namespace) -> int:
    """Run until told to stop; the exit code."""
    return execute(flags(args), config=config_path(args), once=args.once, drain=args.drain)


def execute(
    given: Mapping[str, object],
    *,
    config: Path | None = None,
    once: bool = False,
    drain: bool = False,
    mains: Mapping[Role, ChildMain] | None = None,
) -> int:
    """Run with the settings `given` as flags; the exit code. Once in a process.

    `mains`: other mains than the real ones, for tests.
    """
    signals = Signals()  # before anything else: a SIGTERM from here on is kept, not lost

    from reliable_worker import logs

    logs.take_stdout()

    def read() -> Settings:
        from reliable_worker.settings import load

        return load(given, environ=os.environ, config=config)

    try:
        return _run(signals, read, once=once, drain=drain, mains=mains or _mains())
    finally:
        logs.close(_FLUSH_SECONDS)


def _run(
    signals: Signals,
    read: Callable[[], Settings],
    *,
    once: bool,
    drain: bool,
    mains: Mapping[Role, ChildMain],
) -> int:
    from reliable_worker import logs
    from reliable_worker.jobs import failpoints
    from reliable_worker.settings import SettingsError
    from reliable_worker.supervisor.admin import Admin, AdminError
    from reliable_worker.supervisor.metrics import Metrics
    from reliable_worker.supervisor.supervisor import Supervisor
    from reliable_worker.supervisor.systemd import Notifier

    try:
        failpoints.check_allowed(os.environ)
        settings = read()
    except (SettingsError, failpoints.FailpointRefused) as error:
        return _refuse(str(error), 2)
    logs.start(settings.log_level, settings.log_format)
    supervisor = Supervisor(
        settings,
        mains,
        signals=signals,
        reload=read,
        notifier=Notifier.from_environ(os.environ),
        once=once,
        drain=drain,
    )
    metrics = Metrics(
        supervisor.staff.arena,
        children=lambda: [(child.role, child.pid) for child in supervisor.staff.processes],
        ready=lambda: supervisor.readiness()[0],
    )
    try:
        admin = Admin(
            settings.metrics_address, metrics=metrics.render, readiness=supervisor.readiness
        )
    except AdminError as error:
        return _refuse(str(error), 1)
    code = supervisor.run(admin, metrics.take_census)
    return code if supervisor.failure is None else _refuse(supervisor.failure.line, code)


def _refuse(line: str, code: int) -> int:
    print(f"reliable-worker: {line}", file=sys.stderr)
    return code


def _mains() -> dict[Role, ChildMain]:
    from reliable_worker.process import Role

    return {
        Role.WORKER: _work,
        Role.QUARANTINE: _work,
        Role.TRIAL: _work,
        Role.MAINTENANCE: _maintain,
    }


def _work(child: Child) -> int:
    from reliable_worker.worker.worker import main

    return main(child)


def _maintain(child: Child) -> int:
    from reliable_worker.maintenance.service import main

    return main(child)
