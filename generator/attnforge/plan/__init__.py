"""What kernels, host code and suites of a variant hold, worked out before anything is printed."""
