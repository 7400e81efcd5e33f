"""The content of a variant's kernels, host code and suite, computed before anything is printed."""
