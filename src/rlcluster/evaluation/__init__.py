"""How good a trained agent is: episodes on training levels and on unseen ones."""
