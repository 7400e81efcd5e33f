"""Kernels of decoding: `decode.py` selects those of a variant, the other modules build parts of them."""
