"""Families of kernels: one module each, which says what its kernels take and how they visit tiles."""
