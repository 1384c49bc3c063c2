"""The engine protocol: prompts in, groups of completions out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cohort.types import Completion, NoiseKey, Prompt, Sampling


class Engine(Protocol):
    """Samples completions from the policy.

    Contract, the same for every engine and tested engine against engine:
    - one list of `sampling.group_size` completions per prompt, in the order of the prompts;
    - the prompt's token ids are used as they are: nothing is re-tokenised, no BOS is added;
    - `sampling_logprobs` are float32 log-softmax of (logits / temperature) at the sampled token, over the full
      distribution (temperature 0: at temperature 1);
    - a completion ends with the first id in `sampling.stop_ids` (end "stop") or after max_completion_tokens ("length");
    - the noise of a token depends only on (seed, stream, step, draw, sample, position), where draw is the prompt's
      place in `prompts` plus `first_draw`: slots, batching and order change rollouts only at near-ties;
    - the weights used are those the policy has at the time of the call: no stale cache survives an optimizer step.
    """

    name: str
    slots: int
    """Completions decoded side by side; 0: the engine chooses, or has no such notion."""

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, noise: NoiseKey, first_draw: int = 0
    ) -> list[list[Completion]]: ...
