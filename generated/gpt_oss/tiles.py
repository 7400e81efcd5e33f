# Written by attnforge. Do not edit: change the spec, then render it again.
#
#   made from     specs/gpt_oss.yaml
#   content hash  6f1782d4eca45d8d
#   text hash     ea96d32341ce49d3
#   render with   attnforge render specs/gpt_oss.yaml
"""The tile shapes with which kernels are launched.

For each kernel and for head sizes up to a number, (block_m, block_n, warps, stages): queries and keys of a tile, and
options for the compiler. The best is first; the others need less shared memory, for GPUs without room for it.
"""

# float16 and bfloat16, by `architecture` of runtime.py
TILES_16BIT = {
    "sm_90": {
        "forward": {
            64: ((64, 128, 4, 2), (64, 64, 4, 2), (32, 32, 4, 1)),
            128: ((128, 64, 4, 2), (64, 64, 4, 2), (64, 32, 4, 2), (32, 32, 4, 1)),
            256: ((128, 64, 8, 2), (128, 32, 8, 3), (64, 32, 4, 2), (32, 32, 4, 1), (32, 16, 4, 1)),
            512: ((64, 32, 8, 2), (32, 32, 8, 1), (16, 32, 8, 1)),
        },
        "backward_dkv": {
            64: ((64, 64, 4, 3), (64, 64, 4, 1), (32, 32, 4, 1)),
            128: ((64, 64, 4, 2), (32, 64, 4, 1), (32, 32, 4, 1)),
            256: ((64, 64, 8, 2), (32, 64, 8, 1), (16, 32, 4, 1)),
            512: ((32, 64, 8, 1), (16, 32, 8, 1), (16, 16, 8, 1)),
        },
        "backward_dq": {
            64: ((128, 64, 4, 3), (64, 64, 4, 3), (64, 64, 4, 1), (32, 32, 4, 1)),
            128: ((128, 64, 8, 3), (64, 64, 4, 2), (64, 32, 4, 1), (32, 32, 4, 1)),
            256: ((128, 32, 8, 3), (64, 32, 4, 2), (64, 32, 4, 1), (32, 16, 4, 1)),
            512: ((64, 32, 8, 1), (32, 32, 8, 1), (16, 32, 8, 1), (16, 16, 8, 1)),
        },
    },
    "sm_80": {
        "forward": {
            64: ((128, 64, 4, 3), (128, 64, 4, 2), (64, 64, 4, 2), (32, 32, 4, 1)),
            128: ((128, 64, 8, 3), (128, 64, 8, 2), (64, 32, 4, 2), (32, 32, 4, 1)),
            256: ((64, 64, 8, 2), (64, 64, 8, 1), (64, 32, 8, 1), (32, 32, 4, 1), (32, 16, 4, 1)),
            512: ((32, 32, 8, 1), (32, 16, 4, 1)),
        },
        "backward_dkv": {
            64: ((32, 64, 4, 2), (32, 32, 4, 2), (32, 32, 4, 1)),
            128: ((64, 64, 8, 2), (32, 64, 8, 2), (32, 32, 4, 1)),
            256: ((32, 32, 8, 2), (16, 32, 4, 1)),
            512: ((32, 32, 8, 1), (16, 32, 8, 1), (16, 16, 8, 1)),
        },
        "backward_dq": {
            64: ((64, 64, 4, 3), (64, 64, 4, 1), (32, 32, 4, 1)),
            128: ((64, 64, 4, 2), (64, 32, 4, 2), (32, 32, 4, 1)),
            256: ((64, 32, 8, 2), (64, 32, 8, 1), (32, 32, 4, 2), (32, 16, 4, 1)),
            512: ((32, 32, 8, 1), (16, 32, 8, 1), (16, 16, 8, 1)),
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
    "backward_dkv": {
        64: ((16, 32, 4, 1),),
        128: ((32, 32, 8, 1), (16, 32, 4, 1)),
        256: ((64, 32, 16, 1), (32, 32, 16, 1), (16, 16, 4, 1)),
        512: ((16, 16, 8, 1),),
    },
    "backward_dq": {
        64: ((16, 32, 4, 1),),
        128: ((32, 32, 8, 1), (16, 32, 4, 1)),
        256: ((32, 64, 16, 1), (16, 32, 8, 1), (16, 16, 4, 1)),
        512: ((16, 16, 8, 1),),
    },
}

# float16 and bfloat16, kernels for Hopper GPUs: for head sizes up to a number, by the least number of keys that a query
# can see; a worker of four warps for each 64 queries, backward for each 64 keys
TILES_HOPPER = {
    "forward": {
        32: {0: (128, 128, 8, 2), 3072: (192, 128, 12, 3)},
        64: {0: (128, 128, 8, 2), 3072: (192, 128, 12, 3)},
        128: {0: (128, 128, 8, 2)},
        256: {0: (128, 64, 8, 2)},
    },
    "backward": {
        32: {0: (128, 128, 8, 2)},
        64: {0: (128, 128, 8, 2)},
        128: {0: (64, 128, 8, 2)},
        256: {0: (64, 64, 4, 2)},
    },
}

# from the first number of keys of the longest sequence on, these kernels are faster than the portable ones; from the
# second on they are not, from the third on again; for head sizes up to a number, or up to one of q and one of v if these
# two have a row
HOPPER_IS_FASTER = {
    "forward": {32: (192,), 64: (256,), 128: (0,), 256: (0,)},
    "backward": {32: (0,), 64: (512,), 128: (512,), 256: (512,), (256, 128): (1024,)},
}
