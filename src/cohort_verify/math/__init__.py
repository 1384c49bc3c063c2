"""Compares final answers with reference answers: find -> text -> readers -> compare here, symbolic in jailed workers.

answer.py has the reward functions. docs/math-rewards.md explains the rules with examples.
"""
