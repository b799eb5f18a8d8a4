"""Evaluation of trained agents on training levels and on unseen ones."""
