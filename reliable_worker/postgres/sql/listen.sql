-- Hear that jobs are waiting. A hint only: notifications may be lost, polling goes on.
LISTEN reliable_worker
