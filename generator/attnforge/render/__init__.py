"""Renders templates to formatted files with headers, and writes them."""
