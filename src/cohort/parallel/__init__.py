"""Multi-process training with torchrun. A run of one process imports none of this."""
