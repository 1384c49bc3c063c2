"""Cohort: GRPO for language models with verifiable rewards."""
