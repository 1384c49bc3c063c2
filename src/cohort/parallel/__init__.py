"""Several processes that train one policy, started by torchrun. A run of one process imports nothing of this."""
