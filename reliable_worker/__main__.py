"""`python -m reliable_worker` is the command `reliable-worker`."""

import sys

from reliable_worker.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
