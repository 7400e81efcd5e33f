"""What masks mean for tiles: normal forms, intervals, ranges and their inverse. Knows no kernel."""
