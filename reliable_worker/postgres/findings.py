"""What `doctor` finds. Floor 1; imports nothing of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at: its name, how it stands, a sentence, and what to do about it.

    `fix` names what `doctor --fix` can do by itself; None where a person has to.
    """

    check: str
    level: Level
    text: str
    remedy: str = ""
    fix: str | None = None
