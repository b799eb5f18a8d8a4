"""What a run is doing now, drawn for a terminal: the live view of `train`, and `rlcluster watch` for other runs."""
