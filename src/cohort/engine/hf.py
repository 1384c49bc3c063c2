"""The slow and obvious engine: the model's own full forward for every single token, one completion at a time.

No KV cache, no batching, no padding, nothing shared with the fast engine but the sampler and the noise. It is the oracle
that the fast engine is tested against, and what runs where the fast engine cannot be exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cohort.engine.sampling import check_finite, check_request, next_tokens, sampling_mode
from cohort.ops.noise import gumbel, row_key
from cohort.types import Completion, NoiseKey, Prompt, Sampling


class HFEngine:
    name = "hf"
    slots = 0

    def __init__(self, model: Any, decode: Callable[[Sequence[int]], str]) -> None:
        self.model, self.decode = model, decode

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, noise: NoiseKey, first_draw: int = 0
    ) -> list[list[Completion]]:
        check_request(self.model.config.get_text_config(), list(prompts), sampling)
        with sampling_mode(self.model):
            return [
                [self.complete(prompt, sampling, row_key(noise, draw, sample)) for sample in range(sampling.group_size)]
                for draw, prompt in enumerate(prompts, start=first_draw)
            ]

    def complete(self, prompt: Prompt, sampling: Sampling, key: tuple[int, int]) -> Completion:
        device = self.model.device
        row_keys_12 = torch.tensor([key], dtype=torch.int32, device=device)
        token_ids: list[int] = []
        logprobs: list[float] = []
        for position in range(sampling.max_completion_tokens):
            input_ids = torch.tensor([[*prompt.token_ids, *token_ids]], device=device)
            logits_1V = self.model(input_ids=input_ids, use_cache=False).logits[:, -1].float()
            positions_1 = torch.tensor([position], device=device)
            noise_1V = None if sampling.greedy else gumbel(row_keys_12, positions_1, logits_1V.shape[-1])
            ids_1, logprobs_1 = next_tokens(logits_1V, sampling, noise_1V)
            check_finite(logprobs_1)
            token_ids.append(int(ids_1))
            logprobs.append(float(logprobs_1))
            if token_ids[-1] in sampling.stop_ids:
                return Completion(tuple(token_ids), tuple(logprobs), "stop", self.decode(token_ids))
        return Completion(tuple(token_ids), tuple(logprobs), "length", self.decode(token_ids))
