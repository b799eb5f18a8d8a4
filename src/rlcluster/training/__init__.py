"""Training: from settings to a finished run, in one process or in many."""
