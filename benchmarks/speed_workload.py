"""The work of every engine: prompts, planned lengths, and a reward with signal in every group. No torch.

Lengths are planned, because random weights do not know when to stop. `fixed`: every completion has the maximum length. `ragged`: lengths
are log-normal, cut at the maximum, and scaled to a given mean, as for a real policy. The plan depends only on the workload, so every
engine, ours or a peer's, ends each completion at the same token.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

SPREAD = 0.8
"""Standard deviation of the logarithm of a length."""
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
PAD, BOS, EOS, UNKNOWN = range(4)
HASHES = 2**32


@dataclass(frozen=True)
class Workload:
    """Prompts, completions, and the planned length of each."""

    prompts: int
    group: int
    prompt_tokens: int
    new: int
    lengths: Literal["fixed", "ragged"] = "fixed"
    mean_share: float = 0.5
    """ragged: mean length as a share of `new`."""
    silent_every: int = 0
    """All completions of every N-th prompt get the same reward; 0: every group has signal."""

    @property
    def completions(self) -> int:
        return self.prompts * self.group

    @cached_property
    def plan(self) -> list[list[int]]:
        """Planned length of each completion, by prompt and sample."""
        if self.lengths == "fixed":
            return [[self.new] * self.group for _ in range(self.prompts)]
        flat = draw_lengths(self.completions, self.new, self.mean_share)
        return [flat[at : at + self.group] for at in range(0, len(flat), self.group)]

    @property
    def flat_plan(self) -> list[int]:
        return [length for lengths in self.plan for length in lengths]

    @property
    def tokens(self) -> int:
        """Planned completion tokens."""
        return sum(self.flat_plan)

    def is_silent(self, prompt: int) -> bool:
        return bool(self.silent_every) and prompt % self.silent_every == self.silent_every - 1

    def draw_prompt_ids(self, count: int, vocabulary: int) -> list[list[int]]:
        """Random prompts of exactly `prompt_tokens` tokens, without special tokens."""
        draw = random.Random("cohort bench prompts")
        return [[draw.randrange(len(SPECIAL), vocabulary) for _ in range(self.prompt_tokens)] for _ in range(count)]

    def make_rows(self, steps: int, vocabulary: int) -> list[dict[str, Any]]:
        """Rows for `steps` steps: `prompt` as text, and whether its group has signal."""
        prompts = self.draw_prompt_ids(steps * self.prompts, vocabulary)
        return [
            {"prompt": " ".join(map(spell_token, ids)), "signal": 0 if self.is_silent(number % self.prompts) else 1}
            for number, ids in enumerate(prompts)
        ]


def spell_token(token_id: int) -> str:
    """The text of a token; the tokenizer of shapes.py splits at white space."""
    return SPECIAL[token_id] if token_id < len(SPECIAL) else f"t{token_id}"


def draw_lengths(count: int, longest: int, mean_share: float) -> list[int]:
    """`count` log-normal lengths from 1 to `longest` whose mean is `mean_share * longest`, as nearly as whole tokens allow."""
    if not 0 < mean_share < 1:
        raise ValueError(f"mean_share is {mean_share}; ragged lengths need a share between 0 and 1.")
    draw = random.Random("cohort bench lengths")
    sizes = [draw.lognormvariate(0.0, SPREAD) for _ in range(count)]

    def cut(scale: float) -> list[int]:
        return [min(longest, max(1, round(scale * size))) for size in sizes]

    wanted = mean_share * longest * count
    low, high = 0.0, longest / min(sizes)  # at `high` every length is cut at the longest
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(cut(middle)) < wanted else (low, middle)
    return cut(high)


def varied(completions: Sequence[Any], signal: Sequence[int], **columns: Any) -> list[float]:
    """A reward in [0, 1) that differs between completions and cannot be learned; constant in rows without signal.

    Practically no completion has the mean of its group, so none is skipped for a zero advantage.
    """
    return [
        zlib.crc32(str(completion).encode()) / HASHES if has_signal else 0.5
        for completion, has_signal in zip(completions, signal, strict=True)
    ]
