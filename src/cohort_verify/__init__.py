"""Scores untrusted model output: mathematics, programs with unit tests, instructions, output format. Needs neither torch nor a
trainer.

    import cohort_verify

    cohort_verify.math_answer([r"so \\boxed{1/2}"], answer=["0.5"])                                     # [1.0]
    cohort_verify.code_tests(["```python\\ndef f(x): return x\\n```"], tests=[["assert f(3) == 3"]])    # [1.0]

Each function takes lists and returns one score per completion, or None for one that could not be scored. The signatures are
those of TRL's reward functions. Programs run in a jail: `cohort_verify.sandbox`.
"""

from cohort_verify.code.reward import code_tests
from cohort_verify.format import regex_format, think_answer_format, think_format
from cohort_verify.instruction_following.reward import instructions
from cohort_verify.math.answer import exact_match, math_answer

__all__ = ["code_tests", "exact_match", "instructions", "math_answer", "regex_format", "think_answer_format", "think_format"]
