"""`python -m rlcluster` is the `rlcluster` command."""

import sys

from rlcluster.system.signals import hold_signals

if __name__ == "__main__":
    if "--in-job" in sys.argv:  # before the imports below, which take a while
        hold_signals()
    from rlcluster.cli import main

    sys.exit(main())
