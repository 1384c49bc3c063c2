"""No word of reinforcement learning: keyed hashes, loading by name, signals, threads, seconds, safe text."""
