"""Does the program pass its tests? format (which text is the program) -> cases (what is asked) -> jail -> compare.

reward.py is the reward; formats and rules are written down, with examples, in docs/code-rewards.md.
"""
