"""reasoning-gym: its rows, and its verifiers behind a jail."""
