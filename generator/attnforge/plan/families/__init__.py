"""Families of kernels, a module or a folder each: the parameters of its kernels, and how they visit tiles.

In a folder, start with the module of the same name: `hopper/hopper.py`, `decode/decode.py`.
"""
