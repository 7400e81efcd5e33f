# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/flash2_strided_k.yaml
#   content hash  ba64faefa1c3eae3
#   text hash     011010bbf1423c10
#   render with   attnforge render specs/flash2_strided_k.yaml
"""The tile shapes with which kernels are launched.

For each kernel and for head sizes up to a number, (block_m, block_n, warps, stages): queries and keys of a tile, and
options for the compiler. The best is first; the others need less shared memory, for GPUs without room for it.
"""

# float16 and bfloat16, by `architecture` of runtime.py
TILES_16BIT = {
    "sm_90": {
        "forward": {
            64: ((128, 64, 4, 3), (64, 64, 4, 3), (64, 32, 4, 3), (32, 32, 4, 1)),
            128: ((128, 64, 8, 3), (64, 64, 4, 3), (64, 32, 4, 3), (32, 32, 4, 1)),
            256: ((128, 32, 8, 3), (64, 32, 4, 3), (32, 32, 4, 1), (32, 16, 4, 1)),
            512: ((64, 32, 8, 2), (32, 32, 8, 1), (16, 32, 8, 1)),
        },
    },
    "sm_80": {
        "forward": {
            64: ((128, 64, 4, 3), (128, 64, 4, 2), (64, 64, 4, 2), (32, 32, 4, 1)),
            128: ((128, 64, 8, 3), (128, 64, 8, 2), (64, 32, 4, 2), (32, 32, 4, 1)),
            256: ((64, 64, 8, 2), (64, 64, 8, 1), (64, 32, 8, 1), (32, 32, 4, 1), (32, 16, 4, 1)),
            512: ((32, 32, 8, 1), (32, 16, 4, 1)),
        },
    },
}

# float32, on any GPU
TILES_FP32 = {
    "forward": {
        64: ((32, 32, 4, 1),),
        128: ((32, 64, 8, 1), (32, 32, 4, 1)),
        256: ((32, 64, 16, 1), (32, 32, 8, 1), (16, 16, 4, 1)),
        512: ((16, 16, 8, 1),),
    },
}
