"""Work that needs a compiler or a GPU: compiling, measuring, tuning. Torch and triton are imported inside functions."""
