"""Utilities without reinforcement learning: keyed hashes, imports by name, signals, threads, timing, safe text."""
