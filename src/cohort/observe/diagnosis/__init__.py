"""What the numbers mean, in words."""
