"""What engines with slots share: requests in, a scheduler over the slots of a decoder, completions out.

An engine derives from `SlotEngine` and says who decodes (`_make_workspace`), what a slot weighs (`_count_slot_bytes`), and how the modules of
the policy are driven meanwhile (`_drive_modules`). No number survives a call: after an optimizer step the next call samples from the new policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import psutil
import torch
from torch import Tensor

from cohort.engine.protocol import EngineSetup, OnFinish
from cohort.engine.requests import check_prefix, find_finished_prefix, join_prefix
from cohort.engine.sampling import check_finite, check_request, sampling_mode
from cohort.engine.scheduler import Decoding, SlotState, Work, Workspace
from cohort.errors import EngineError
from cohort.model.architecture import find_exact_length
from cohort.model.head import SplitModel
from cohort.ops.noise import make_row_key
from cohort.types import Completion, End, NoiseKey, Request, Sampling

MOST_SLOTS = {"cpu": 512, "cuda": 1024}
"""Beyond these a step only gets slower: the matrix products are already at full rate."""
MEMORY_SHARE = {"cpu": 0.5, "cuda": 0.8}
"""Part of the free memory that slots may take when the engine chooses their number."""
NEARLY_ALL = 0.95
"""Part of the free memory that a number of slots fixed beforehand may take: what is free can have become less since."""
SAMPLER_FLOATS = 6
"""Arrays of [slots, V] 4-byte numbers alive at once while sampling (logits, scaled, noise, hash)."""


class SlotEngine:
    name: str
    parts: SplitModel

    def __init__(self, setup: EngineSetup) -> None:
        if setup.slots < 0:
            raise EngineError(f"sampling.slots is {setup.slots}; 0 lets the engine choose, otherwise at least 1.")
        self.model, self.slots = setup.model, setup.slots
        self.decode_all = setup.decode_all or (lambda rows: [setup.decode(row) for row in rows])
        self.version = 0
        self.last: dict[str, float] = {}
        """Figures of the last call."""

    def generate(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        noise: NoiseKey,
        on_finish: OnFinish | None = None,
        limits: Sequence[int] | None = None,
    ) -> list[Completion]:
        """`limits`: tokens that the completion of each request may have at most; for benchmarks with planned lengths."""
        self.check_requests(requests, sampling)
        most = [sampling.max_completion_tokens] * len(requests)
        if limits is not None:
            most = [min(limit, sampling.max_completion_tokens) for limit in limits]
            if len(most) != len(requests) or min(most, default=1) < 1:
                raise EngineError(f"limits: {len(requests)} of at least 1 are needed, one for each request; found {len(most)}.")
        found = [find_finished_prefix(request, sampling) for request in requests]
        for request, completion in zip(requests, found, strict=True):
            if completion is not None and on_finish is not None:
                on_finish(request, completion)
        places = [place for place, completion in enumerate(found) if completion is None]
        if places:
            asked = [requests[place] for place in places]
            sampled = self._decode(asked, sampling, noise, [most[place] for place in places], on_finish)
            for place, completion in zip(places, sampled, strict=True):
                found[place] = completion
        return [completion for completion in found if completion is not None]

    def _decode(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        noise: NoiseKey,
        most: Sequence[int],
        on_finish: OnFinish | None,
    ) -> list[Completion]:
        keys = [make_row_key(noise, request.draw, request.sample) for request in requests]
        longest = max(len(request.prompt.token_ids) for request in requests) + sampling.max_completion_tokens
        columns = max(request.position for request in requests) + sampling.max_completion_tokens
        with sampling_mode(self.model), self._drive_modules():
            workspace = self._make_workspace(longest, len(keys), sampling, columns)
            state = workspace.state
            greedy = [sampling.for_sample(request.sample).greedy for request in requests]
            state.start_call(keys, [request.position + limit for request, limit in zip(requests, most, strict=True)], greedy)
            slots = min(workspace.slots, len(keys))
            handed: dict[int, Completion] = {}

            def hand_back(numbers: np.ndarray) -> None:
                assert on_finish is not None
                chosen = [requests[number] for number in numbers]
                rows = torch.from_numpy(numbers).to(state.token_ids_NT.device)
                found = self._read_completions(state, rows, chosen, decoding.lengths_N[numbers], sampling)
                for number, completion in zip(numbers.tolist(), found, strict=True):
                    handed[number] = completion
                    on_finish(requests[number], completion)

            finished = hand_back if on_finish is not None else None
            decoding = Decoding(self.parts, workspace, Work.group_requests(requests), sampling, slots, finished)
            try:
                if workspace.steps is not None:
                    workspace.steps.step = decoding.step
                with self._share_threads(workspace):
                    lengths_N = decoding.run()
            finally:
                # A ring of references would hold the cache, after the last use of it, until Python looks for rings.
                decoding.on_finish = None
                if workspace.steps is not None:
                    workspace.steps.step = None
            if on_finish is not None:  # each was read once, when it was finished
                completions = [handed[number] for number in range(len(requests))]
            else:
                completions = self._read_completions(state, slice(0, len(requests)), requests, lengths_N, sampling)
        self._record_figures(decoding, workspace)
        self._keep_or_drop(workspace)
        return completions

    # -- what an engine says of itself ---------------------------------------------------------------------------------

    def _make_workspace(self, longest: int, completions: int, sampling: Sampling, columns: int = 0) -> Workspace:
        """A decoder and its slots for a call of so many completions, of at most `longest` tokens with their prompts."""
        raise NotImplementedError

    def _count_slot_bytes(self, length: int) -> int:
        """What a slot of so many tokens takes, the sampler's numbers aside."""
        raise NotImplementedError

    def _drive_modules(self) -> AbstractContextManager[None]:
        """How the modules of the policy are driven during a call."""
        return nullcontext()

    def _share_threads(self, workspace: Workspace) -> AbstractContextManager[None]:
        """Held while the scheduler runs."""
        return nullcontext()

    def _keep_or_drop(self, workspace: Workspace) -> None:
        """After a call: what of the workspace serves the next one."""

    # -- what all of them do -------------------------------------------------------------------------------------------

    def choose_slots(self, longest: int) -> int:
        return self.fit_slots(longest, MOST_SLOTS[self.model.device.type])

    def close(self) -> None:
        """Nothing is held besides the policy's weights."""

    def sync(self, weights: Mapping[str, Tensor], version: int) -> None:
        self.version = version

    def check_requests(self, requests: Sequence[Request], sampling: Sampling) -> None:
        prompts = [request.prompt for request in requests]
        check_request(self.model.config.get_text_config(), prompts, sampling)
        for request in requests:
            check_prefix(request)
        longest = max((len(prompt.token_ids) for prompt in prompts), default=0) + sampling.max_completion_tokens
        limit = find_exact_length(self.model)
        if limit and longest > limit:
            raise EngineError(
                f"prompt and sampling.max_completion_tokens reach {longest} tokens, but beyond {limit} this model's rotary frequencies "
                "change with the length, and no cache is exact. Hold them still first: hold_frequencies(model, longest) of "
                "cohort.model.architecture, as every run does."
            )

    def fit_slots(self, length: int, completions: int) -> int:
        """Slots asked for, or as many as fit into a share of the free memory; never more than there are completions.

        Slots asked for that do not fit are fewer then: rollouts are the same, only slower.
        """
        kind = self.model.device.type
        vocabulary_bytes = 4 * SAMPLER_FLOATS * self.model.config.get_text_config().vocab_size
        slot_bytes = self._count_slot_bytes(length) + vocabulary_bytes
        free = measure_free_memory(self.model.device)
        share = NEARLY_ALL if self.slots else MEMORY_SHARE[kind]
        fitting = int(share * free / slot_bytes)
        if fitting < 1:
            raise EngineError(
                f"not even one slot fits: {length} tokens of keys and values need {slot_bytes / 2**20:.0f} MiB and "
                f"{free / 2**20:.0f} MiB are free. Lower sampling.max_completion_tokens or prompts.max_prompt_tokens."
            )
        return min(fitting, self.slots or MOST_SLOTS[kind], completions)

    def _record_figures(self, decoding: Decoding, workspace: Workspace) -> None:
        tally = decoding.tally
        decoded = int((decoding.lengths_N - decoding.work.begun_N - 1).sum())
        figures = {
            "slots": decoding.slots,
            "decode_steps": tally.steps,
            "occupancy": decoded / max(1, tally.steps * decoding.slots),
            "looks": tally.looks,
            "prefills": tally.prefills,
            "graphs": len(workspace.steps.graphs) if workspace.steps else 0,
        }
        self.last = {name: float(value) for name, value in figures.items()}

    def _read_completions(
        self,
        state: SlotState,
        rows: slice | Tensor,
        requests: Sequence[Request],
        lengths_N: np.ndarray,
        sampling: Sampling,
    ) -> list[Completion]:
        """What stands in these rows of the state, whose requests and whole lengths are given."""
        check_finite(state.logprobs_NT[rows])
        token_ids_NT, logprobs_NT = state.token_ids_NT[rows].cpu().numpy(), state.logprobs_NT[rows].cpu().numpy()
        stop_ids = set(sampling.stop_ids)
        spans = [
            slice(request.position + len(request.prefix_ids), request.position + length)
            for request, length in zip(requests, lengths_N.tolist(), strict=True)
        ]
        ids_N = [token_ids_NT[row, span].tolist() for row, span in enumerate(spans)]
        whole_N = [ids if one.prefix is None else [*one.prefix_ids, *ids] for one, ids in zip(requests, ids_N, strict=True)]
        texts_N = self.decode_all(whole_N)
        completions = []
        for row, (request, ids, text) in enumerate(zip(requests, ids_N, texts_N, strict=True)):
            end: End = "stop" if ids[-1] in stop_ids else "length"
            more = Completion(tuple(ids), tuple(logprobs_NT[row, spans[row]].tolist()), end, text)
            completions.append(join_prefix(request, more, self.version))
        return completions


def measure_free_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return psutil.virtual_memory().available
    # What torch has reserved but does not use is free to us, though not to the driver.
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
