"""What processes share: collectives over ranks, parameters in shared memory."""
