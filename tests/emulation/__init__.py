"""Kernels in Gluon without a GPU: warp groups take turns at random, and copies and products are asynchronous.

Gluon has no interpreter. The functions that its kernels call are emulated here on CPU tensors, including what makes
kernels hard to get right: copies of tiles arrive at random times, a product reads shared memory as late as possible,
unwritten memory is NaN, and every access is checked. Layouts, registers and fences need a compiler and a GPU.
"""
