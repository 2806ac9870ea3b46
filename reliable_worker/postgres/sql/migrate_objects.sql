-- Which of the named tables, indexes, views and sequences exist.
-- $1 text[]: names as a migration file writes them. Returns: name.
-- Called by: postgres.migrate (force), to say what a file left half made.
SELECT named.name
FROM unnest($1::text[]) AS named (name)
WHERE to_regclass(named.name) IS NOT NULL
ORDER BY 1
