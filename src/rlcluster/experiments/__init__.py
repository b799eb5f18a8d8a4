"""Many runs: suites, scaling, and the check of a machine."""
