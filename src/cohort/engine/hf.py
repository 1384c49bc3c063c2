"""The reference engine: the model's own full forward pass for every token, one completion at a time.

No KV cache, no batching, no padding; it shares only the sampler and the noise with the fast engines. The fast engines are tested
against it, and it serves models that they cannot serve exactly.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cohort.engine.protocol import Capabilities, Engine, EngineSetup, OnFinish
from cohort.engine.requests import check_prefix, count_left, find_finished_prefix, join_prefix
from cohort.engine.sampling import check_finite, check_request, choose_tokens, sampling_mode
from cohort.ops.noise import make_gumbel, make_row_key
from cohort.types import Completion, End, NoiseKey, Request, Sampling

FORWARD_ROUNDING = 10.0
"""The modules' attention adds in float32, the trainer's in float64. On SmolLM2 (30 layers of width 576) 4.2e-5 nats were measured, at
most, and 4.9e-6 on average."""


def make_hf(setup: EngineSetup) -> tuple[HFEngine, str]:
    return HFEngine(setup), "engine hf: the model's own forward for every token (slow, the reference)"


class HFEngine(Engine):
    name = "hf"
    slots = 0

    def __init__(self, setup: EngineSetup) -> None:
        self.model, self.decode = setup.model, setup.decode
        self.version = 0
        self.last: dict[str, float] = {}

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(most_slots=1, cache_itemsize=self.model.dtype.itemsize, rounding=FORWARD_ROUNDING, steady=True)

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, noise: NoiseKey, on_finish: OnFinish | None = None
    ) -> list[Completion]:
        check_request(self.model.config.get_text_config(), [request.prompt for request in requests], sampling)
        completions = []
        with sampling_mode(self.model):
            for request in requests:
                check_prefix(request)
                completions.append(find_finished_prefix(request, sampling) or self.complete(request, sampling, noise))
                if on_finish is not None:
                    on_finish(request, completions[-1])
                if self.on_progress is not None:
                    self.on_progress(len(completions) / len(requests))
        return completions

    def complete(self, request: Request, sampling: Sampling, noise: NoiseKey) -> Completion:
        sampling = sampling.for_sample(request.sample)
        device, begun = self.model.device, len(request.prefix_ids)
        row_keys_12 = torch.tensor([make_row_key(noise, request.draw, request.sample)], dtype=torch.int32, device=device)
        token_ids: list[int] = []
        logprobs: list[float] = []
        end: End = "length"
        for place in range(begun, begun + count_left(request, sampling)):
            input_ids = torch.tensor([[*request.context_ids, *token_ids]], device=device)
            logits_1V = self.model(input_ids=input_ids, use_cache=False).logits[:, -1].float()
            positions_1 = torch.tensor([request.position + place], device=device)
            noise_1V = None if sampling.greedy else make_gumbel(row_keys_12, positions_1, logits_1V.shape[-1])
            ids_1, logprobs_1 = choose_tokens(logits_1V, sampling, noise_1V)
            check_finite(logprobs_1, self.version)
            token_ids.append(int(ids_1))
            logprobs.append(float(logprobs_1))
            if token_ids[-1] in sampling.stop_ids:
                end = "stop"
                break
        text = self.decode([*request.prefix_ids, *token_ids])
        return join_prefix(request, Completion(tuple(token_ids), tuple(logprobs), end, text), self.version)
