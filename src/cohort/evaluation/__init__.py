"""Evaluation: pass@k, majority votes, intervals, paired tests."""
