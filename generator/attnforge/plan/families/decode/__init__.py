"""Kernels of decoding: `decode.py` says which a variant has, other modules what is in them."""
