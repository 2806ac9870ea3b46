"""What a well-formed connection string may still get wrong: values libpq refuses at every connect.

Floor 1; imports nothing of the package. Found here, they are a bad setting and end a command at
once; left to libpq they would look like a database that is down, which `run` waits for.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

_CHOICES = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "target_session_attrs": (
        "any",
        "read-write",
        "read-only",
        "primary",
        "standby",
        "prefer-standby",
    ),
    "gssencmode": ("disable", "prefer", "require"),
    "channel_binding": ("disable", "prefer", "require"),
    "load_balance_hosts": ("disable", "random"),
}
_NUMBERS = (
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
)


def find_mistake(parameters: Mapping[str, object]) -> str | None:
    """One clause about the first value that cannot be, without the value: it may be a secret."""
    given = {name: str(value) for name, value in parameters.items() if value is not None}
    ports = given.get("port", "").split(",")
    for port in ports:
        if port and not (re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= 65_535):
            return "its port is not a number from 1 to 65535"
    places = max(len(given.get(name, "").split(",")) for name in ("host", "hostaddr"))
    if len(ports) not in (1, places):
        return "it has not one port, nor one for each host"
    for address in given.get("hostaddr", "").split(","):
        try:
            ipaddress.ip_address(address or "::")  # an empty one falls back to the host's name
        except ValueError:
            return "its hostaddr is not an IP address"
    for name, choices in _CHOICES.items():
        if given.get(name) and given[name] not in choices:
            return f"its {name} is none of {', '.join(choices)}"
    for name in _NUMBERS:
        if given.get(name) and not re.fullmatch(r"-?[0-9]{1,9}", given[name].strip()):
            return f"its {name} is not a whole number"
    return None
