"""Observation in, action logits and value out: the policies, and our convolutions behind them."""
