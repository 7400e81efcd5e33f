"""Packages for other libraries."""
