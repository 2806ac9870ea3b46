"""doctor's look at the service's unit: does systemd wait as long as a stop may take?

Floor 1; imports settings. Reads the unit and its drop-ins as files, so that it needs neither
systemd nor its bus.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from reliable_worker.postgres.findings import Finding
from reliable_worker.settings import Settings

UNIT = "reliable-worker.service"
# In the order in which systemd prefers them.
PLACES = (Path("/etc/systemd/system"), Path("/run/systemd/system"), Path("/lib/systemd/system"))
# What systemd takes where the unit says nothing.
DEFAULT_SECONDS = 90.0

_SETTING = re.compile(r"^\s*Timeout(?:Stop)?Sec\s*=\s*(.*?)\s*$", re.MULTILINE)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_UNITS = {"": 1.0, "s": 1.0, "sec": 1.0, "ms": 0.001, "m": 60.0, "min": 60.0, "h": 3600.0}


def check_unit(settings: Settings, places: Iterable[Path] = PLACES) -> list[Finding]:
    """Whether the unit's TimeoutStopSec leaves room for stop_seconds; nothing without a unit."""
    seconds = _timeout_seconds(list(places))
    if seconds is None:
        return []
    if seconds <= settings.stop_seconds:
        return [
            Finding(
                "unit",
                "fail",
                f"{UNIT} is killed {seconds:g} s after a stop, and a drain may take"
                f" stop_seconds {settings.stop_seconds:g} s",
                f"set TimeoutStopSec={settings.stop_seconds + 5:g}s in a drop-in"
                f" (systemctl edit {UNIT}), or lower stop_seconds",
            )
        ]
    text = f"TimeoutStopSec {seconds:g} s, more than stop_seconds {settings.stop_seconds:g} s"
    return [Finding("unit", "ok", text)]


def _timeout_seconds(places: list[Path]) -> float | None:
    unit = next((place / UNIT for place in places if (place / UNIT).is_file()), None)
    if unit is None:
        return None
    drop_ins = {
        file.name: file
        for place in reversed(places)
        for file in sorted((place / f"{UNIT}.d").glob("*.conf"))
    }
    files = [unit, *(drop_ins[name] for name in sorted(drop_ins))]
    found = [word for file in files for word in _SETTING.findall(file.read_text("utf-8"))]
    return _seconds(found[-1]) if found else DEFAULT_SECONDS


def _seconds(word: str) -> float:
    """A time span of systemd: "15s", "1min 30s", "90", "infinity"."""
    if word in ("infinity", "0", ""):
        return float("inf")
    return sum(float(number) * _UNITS.get(unit, 1.0) for number, unit in _PART.findall(word))
