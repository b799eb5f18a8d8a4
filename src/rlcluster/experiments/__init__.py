"""Experiments over many runs: suites and scaling; and the machine check."""
