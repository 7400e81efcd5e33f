"""Templates to formatted files, their headers, and how they are written."""
