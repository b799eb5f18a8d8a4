"""Jobs of SLURM and PBS: from a command to a script, to the scheduler, and to their status."""
