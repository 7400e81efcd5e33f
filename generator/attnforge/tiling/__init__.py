"""Masks over tiles: normal forms, intervals, ranges and their inverse. Knows no kernel."""
