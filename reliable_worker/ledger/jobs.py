"""The application of the outbox: delivers `transfer.completed`.

Floor 6; imports enqueue, jobs. A worker runs it: `reliable-worker run --app
reliable_worker.ledger.jobs:app`, on the same database and with the ledger's environment. Without
LEDGER_WEBHOOK_URL nobody is to be told: the handler is not registered, and the jobs wait.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass

from reliable_worker.enqueue.app import App
from reliable_worker.jobs.errors import Discard, Retry
from reliable_worker.jobs.job import Job
from reliable_worker.ledger import webhook
from reliable_worker.ledger.settings import load
from reliable_worker.ledger.webhook import DeliveryFailed, Webhook

KIND = "transfer.completed"

# Pauses after the first, second … failure: soon for a restart, then days for an outage. With the
# ten attempts of the enqueuing statement they add up to three days.
PAUSES_SECONDS = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)


@dataclass(frozen=True, slots=True)
class TransferCompleted:
    """The payload, as ledger_transfer writes it; amounts in minor units, the time in RFC 3339."""

    transfer_id: int
    from_id: int
    to_id: int
    amount: int
    completed_at: str


def body_of(event: TransferCompleted) -> bytes:
    """What is delivered: the same bytes at every try, since the payload never changes."""
    message = {"type": KIND, "timestamp": event.completed_at, "data": asdict(event)}
    return json.dumps(message, separators=(",", ":"), sort_keys=True).encode()


def make_app(environ: dict[str, str]) -> App:
    """The application for an environment. Raises SettingsError, WebhookMisconfigured."""
    made = App()
    settings = load(environ, need_database=False)
    if settings.webhook_url is None:
        return made
    hook = webhook.parse(
        settings.webhook_url,
        settings.webhook_secret or "",
        settings.webhook_timeout_seconds,
        settings.webhook_private,
    )

    # The delivery's own budget ends first.
    @made.handler(KIND, timeout_seconds=settings.webhook_timeout_seconds + 5)
    def deliver(job: Job[TransferCompleted]) -> None:
        deliver_event(hook, job)

    return made


def deliver_event(hook: Webhook, job: Job[TransferCompleted]) -> None:
    """Deliver once. Raises Retry with the next pause, or Discard where nobody wants it any more."""
    try:
        webhook.deliver(hook, str(job.payload.transfer_id), body_of(job.payload), _epoch)
    except DeliveryFailed as error:
        if error.gone:
            raise Discard(str(error)) from None
        pause = PAUSES_SECONDS[min(job.attempt, len(PAUSES_SECONDS)) - 1]
        raise Retry(pause, str(error)) from None


def _epoch() -> float:
    return time.clock_gettime(time.CLOCK_REALTIME)


app = make_app(dict(os.environ))
