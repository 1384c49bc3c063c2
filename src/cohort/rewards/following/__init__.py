"""Does the completion follow its instructions? table -> wording, shape (the checkers) -> reward.

After the texts of IFEval and IFBench, not their code. What is doubtful counts against the text; every checker takes time linear
in it. Imports nothing but the standard library and cohort.rewards.text. The rules are in docs/form-rewards.md.
"""
