"""Rows, prompts, the prompt stream, and tasks that generate rows. No torch."""
