"""Checks whether a completion follows its instructions. checkers.py has the checkers, reward.py the reward function.

Written from the instruction texts of IFEval and IFBench, not from their code. Doubtful cases count against the completion, and
every checker takes time linear in the text. docs/instruction-rewards.md has the rules.
"""
