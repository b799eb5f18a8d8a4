"""What the machine gives: cores, memory, processes, signals, shared memory, files, the terminal."""
