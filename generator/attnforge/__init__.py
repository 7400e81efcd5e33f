"""Writes attention variants, given as YAML, out as Triton kernel packages."""

__version__ = "0.1.0"
