"""Does the final answer equal the gold? find -> tokens -> readers -> compare here, symbolic in jailed workers.

answer.py is the reward; the rules it follows are written down, with examples, in docs/math-rewards.md.
"""
