"""Multi-process training with torchrun. A run of one process imports nothing of this."""
