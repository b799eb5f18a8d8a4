"""The operating system: cores, memory, processes, signals, shared memory, files, the terminal."""
