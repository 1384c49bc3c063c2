"""On-policy distillation: what a teacher adds to the advantage of every sampled token.

    A_t += coef (log pi_teacher(o_t) - log mu(o_t))        mu: the probability when it was sampled

Both at the sampling temperature. A token is credited with its own gap alone, with no return-to-go: the expected gradient is then
that of coef times the reverse KL of each next token, along the policy's own completions. It comes last, on top of whatever the
advantage is: nothing normalises or whitens it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cohort.algorithms.regions import k1
from cohort.base.stopwatch import Stopwatch
from cohort.model.examples import Example, Examples, join_examples
from cohort.model.frozen import Teacher
from cohort.model.packing import Layouts


@dataclass(frozen=True)
class Lesson:
    """What the teacher said of the completions of one step."""

    terms: Mapping[int, Tensor] = field(default_factory=dict)
    """Rollout -> what is added to the advantages of its tokens, 0 where a token is not trained."""
    metrics: dict[str, float] = field(default_factory=dict)

    def add_to(self, examples: Sequence[Example]) -> Examples:
        """The examples with the teacher's credit on top of their own; as they are, where there is no teacher."""
        examples = join_examples(examples)
        if not self.terms:
            return examples
        terms_C = torch.cat([self.terms[rollout] for rollout in examples.rollout_N])
        advantages_C = (examples.advantages_C.double() + terms_C).to(examples.advantages_C.dtype)
        return replace(examples, advantages_C=advantages_C)


def hear_teacher(
    teacher: Teacher | None,
    examples: Sequence[Example],
    micro_batch_tokens: int,
    watch: Stopwatch | None = None,
    layouts: Layouts | None = None,
) -> Lesson:
    """Score the completions with the teacher, all of them: a group of equal rewards is taught too."""
    if teacher is None:
        return Lesson()
    trained = int((join_examples(examples).trained_N > 0).sum())
    if not trained:
        return Lesson()
    watch = watch or Stopwatch()
    watch.lap("prepare")
    scores = teacher.policy.score_examples(examples, micro_batch_tokens, layouts=layouts)
    terms, gaps_N = {}, []
    for example, logprobs_T in zip(examples, scores, strict=True):
        gap_T = k1(example.sampling_logprobs_T.double(), logprobs_T.double()).masked_fill(~example.loss_mask_T, 0.0)
        terms[example.rollout] = -teacher.coef * gap_T
        gaps_N.append(gap_T[example.loss_mask_T])
    watch.lap("teacher")
    gap_M = torch.cat(gaps_N)
    metrics = {"teacher/gap": float(gap_M.mean()), "teacher/gap_per_completion": float(gap_M.sum()) / trained}
    return Lesson(terms, metrics)
