-- Begin a finishing transaction; READ COMMITTED whatever the database's default is, so that a
-- completion that waited for a row lock sees the row as it is then.
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE
