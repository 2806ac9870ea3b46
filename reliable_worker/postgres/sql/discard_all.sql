-- Forget what a handler's statements left in the session: roles, settings, temporary tables,
-- advisory locks, LISTEN. The session returns to its start-up options.
DISCARD ALL
