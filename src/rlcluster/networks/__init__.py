"""Policies, from observations to action logits and values, and our own convolution kernels."""
