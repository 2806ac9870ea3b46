-- The effect of a job of kind demo.file: one measured file.
CREATE TABLE demo_files (
    key     text PRIMARY KEY,
    path    text NOT NULL,
    sha256  text,
    bytes   bigint,
    lines   bigint,
    words   bigint,
    problem text, -- why it could not be measured: it changed or went since it was found
    CHECK ((problem IS NULL) = (sha256 IS NOT NULL))
)
