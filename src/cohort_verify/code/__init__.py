"""Runs a completion's program against unit tests: format (finds the program) -> cases (reads the tests) -> jail -> compare.

reward.py has the reward function. docs/code-rewards.md explains formats and rules with examples.
"""
