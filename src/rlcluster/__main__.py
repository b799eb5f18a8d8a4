"""`python -m rlcluster` is the `rlcluster` command."""

import sys

from rlcluster.cli import main

if __name__ == "__main__":
    sys.exit(main())
