"""Does the completion follow its instructions? table -> wording, shape (the checkers) -> reward.

Written from the instruction texts of IFEval and IFBench, not from their code. Doubtful cases count against the completion, and every
checker takes time linear in the text. Imports only the standard library and cohort_verify.text. The rules are in docs/instruction-rewards.md.
"""
