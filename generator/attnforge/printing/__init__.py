"""Expressions as text: for kernels and tensors, in the language of the specs, as MathML and JavaScript."""
