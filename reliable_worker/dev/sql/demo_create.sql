-- A database for one demo. The name gets the demo's number appended, as 16 hexadecimal digits.
CREATE DATABASE reliable_worker_demo TEMPLATE template0
