-- Drop the database of one demo, which has its number in its name, with whoever is connected to it.
DROP DATABASE IF EXISTS reliable_worker_demo WITH (FORCE)
