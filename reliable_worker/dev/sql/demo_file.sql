-- Effect of kind demo.file: the measured file.
--
-- $1 key, $2 path, $3 sha256, $4 bytes, $5 lines, $6 words, $7 problem
INSERT INTO demo_files (key, path, sha256, bytes, lines, words, problem)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING
