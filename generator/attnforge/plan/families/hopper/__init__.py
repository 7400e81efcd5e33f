"""Kernels for Hopper GPUs: `hopper.py` selects those of a variant, the other modules build them."""
