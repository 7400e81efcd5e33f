"""Kernels in Gluon without a GPU: groups of warps take turns as chance wills, copies and products take their time.

Gluon has no interpreter. What its kernels call is done here on tensors of the CPU, with what makes them hard to get
right: copies of tiles come when chance wills, a product reads shared memory as late as it may, what nobody wrote is
NaN, and every access to memory is checked. Layouts, registers and fences are not there: a compiler and a GPU try them.
"""
