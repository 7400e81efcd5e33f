"""Kernels for Hopper GPUs: `hopper.py` says which a variant has, other modules what is in them."""
