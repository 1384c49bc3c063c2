"""Rows to prompts to the stream that a run draws from; tasks that make their own rows. No torch."""
