"""Families of kernels, a module or a folder each: what its kernels take, and how they visit tiles.

The module to begin with in a folder has its name: `hopper/hopper.py`, `decode/decode.py`.
"""
