"""The commands beside train and resume."""
