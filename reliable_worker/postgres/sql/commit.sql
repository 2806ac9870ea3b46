-- Commit; answered by the tag COMMIT, or ROLLBACK when a statement had failed and was swallowed.
COMMIT
