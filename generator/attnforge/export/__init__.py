"""Modules for other libraries."""
