"""Expressions as text: in Triton, in torch, in the language of the specs, as MathML and as JavaScript."""
