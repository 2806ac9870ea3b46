"""A verb's one connection: made within its budget, on a schema this code works with.

Floor 7; imports postgres.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from reliable_worker.postgres.database import Connection, connect
from reliable_worker.postgres.marks import check_range
from reliable_worker.settings import Settings, SettingsError

LANE = "cli"


@contextmanager
def session(settings: Settings) -> Iterator[Connection]:
    """A connection in autocommit. Raises psycopg.Error, InvalidUrl, SchemaMismatch."""
    conn = open_session(settings)
    try:
        check_range(conn)
        yield conn
    finally:
        conn.close()


def open_session(settings: Settings) -> Connection:
    """The same without a look at the schema; the caller closes it."""
    try:
        return connect(settings, lane=LANE)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise SettingsError(
            f"password_file {settings.password_file} cannot be read ({reason}):"
            " mend the file or the setting"
        ) from None
