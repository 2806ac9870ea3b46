-- Validate what 0002 added: reads every row, and stops nobody from writing meanwhile.
-- expand

ALTER TABLE jobs
    VALIDATE CONSTRAINT jobs_state_known,
    VALIDATE CONSTRAINT jobs_ended_when_over;
