"""Communication between processes: collectives over ranks, parameters in shared memory."""
