"""Masks over tiles: normal forms, intervals, ranges and their inverse. Independent of kernels."""
