-- Write down what must become of jobs about to be enqueued.
--
-- $1 keys text[] · $2 outcome text · $3 table of the effect text, or null
INSERT INTO demo_expected (key, outcome, effect)
SELECT key, $2::text, $3::text
FROM unnest($1::text[]) AS key
