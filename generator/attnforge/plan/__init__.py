"""The content of a variant's kernels, host code and suite, worked out before anything is printed."""
