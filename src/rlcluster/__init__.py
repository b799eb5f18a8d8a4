"""Train and compare reinforcement-learning algorithms on CPUs, from a laptop to a cluster."""

__version__ = "0.1.0"
