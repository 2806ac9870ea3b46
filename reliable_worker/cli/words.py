"""Words on the command line that several verbs take: ids, limits, durations, priorities.

Floor 7; imports the standard library. Each is a `type` of argparse.
"""

from __future__ import annotations

import argparse
import re

_MAX_ID = 2**63 - 1
_MAX_LIMIT = 1000
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def job_id(word: str) -> int:
    """The id of a job."""
    if not re.fullmatch(r"[0-9]{1,19}", word) or not 0 < int(word) <= _MAX_ID:
        raise argparse.ArgumentTypeError("not the id of a job")
    return int(word)


def limit(word: str) -> int:
    """How many jobs to list."""
    if not re.fullmatch(r"[0-9]{1,4}", word) or not 0 < int(word) <= _MAX_LIMIT:
        raise argparse.ArgumentTypeError(f"not a number from 1 to {_MAX_LIMIT}")
    return int(word)


def priority(word: str) -> int:
    """A priority."""
    if not re.fullmatch(r"[0-9]", word):
        raise argparse.ArgumentTypeError("not a priority from 0 (first) to 9 (last)")
    return int(word)


def duration_seconds(word: str) -> float:
    """A duration with its unit."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhd])", word)
    if match is None:
        raise argparse.ArgumentTypeError("not a duration like 30s, 5m, 2h or 1d")
    return float(match[1]) * _UNITS[match[2]]


def pause_seconds(word: str) -> float:
    """The length of a pause: not nothing, and at most what is still a pause."""
    seconds = duration_seconds(word)
    if not 1 <= seconds <= 366 * 86400:
        raise argparse.ArgumentTypeError("not a duration from 1s to 366d")
    return seconds
