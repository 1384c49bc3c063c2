"""The base class of engines with slots: a scheduler runs the requests over the slots of a decoder.

A subclass provides the decoder (`_make_workspace`), the size of a slot (`_count_slot_bytes`) and a context for the policy's modules
(`_prepare_modules`). Nothing is cached between calls: after an optimizer step the next call samples from the new policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np
import psutil
import torch
from torch import Tensor

from cohort.engine.protocol import Engine, EngineSetup, OnFinish, Turns
from cohort.engine.requests import check_prefix, count_left, find_finished_prefix, join_prefix
from cohort.engine.sampling import check_finite, check_request, describe_replies, sampling_mode
from cohort.engine.scheduler import Decoding, SlotState, Work, Workspace
from cohort.errors import EngineError
from cohort.model.architecture import find_exact_length
from cohort.model.head import SplitModel
from cohort.ops.noise import make_row_key
from cohort.types import Completion, End, NoiseKey, Request, Sampling

MOST_SLOTS = {"cpu": 512, "cuda": 1024}
"""More slots only make steps slower: the matrix products already run at full rate."""
MEMORY_SHARE = {"cpu": 0.5, "cuda": 0.8}
"""Share of the free memory that slots may use if the engine chooses their number."""
REQUESTED_SHARE = 0.95
"""Share of the free memory that a requested number of slots may use: less may be free now than when it was chosen."""
SAMPLER_FLOATS = 6
"""Arrays of [slots, V] 4-byte numbers that exist at once while sampling (logits, scaled, noise, hash)."""


class SlotEngine(Engine):
    parts: SplitModel

    def __init__(self, setup: EngineSetup) -> None:
        if setup.slots < 0:
            raise EngineError(f"sampling.slots is {setup.slots}. Set it to 1 or more, or to 0 to let the engine choose.")
        self.model, self.slots = setup.model, setup.slots
        self.decode_all = setup.decode_all or (lambda rows: [setup.decode(row) for row in rows])
        self.version = 0
        self.last: dict[str, float] = {}

    def generate(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        noise: NoiseKey,
        on_finish: OnFinish | None = None,
        limits: Sequence[int] | None = None,
    ) -> list[Completion]:
        """limits: maximum tokens of each completion, for benchmarks with fixed lengths."""
        self.check_requests(requests, sampling)
        most = [len(request.prefix_ids) + count_left(request, sampling) for request in requests]
        if limits is not None:
            most = [min(limit, sampling.max_completion_tokens) for limit in limits]
            if len(most) != len(requests) or min(most, default=1) < 1:
                raise EngineError(f"limits: expected {len(requests)} values of at least 1, one per request; found {len(most)}.")
        found = [find_finished_prefix(request, sampling) for request in requests]
        for request, completion in zip(requests, found, strict=True):
            if completion is not None and on_finish is not None:
                on_finish(request, completion)
        places = [place for place, completion in enumerate(found) if completion is None]
        if places:
            self._completed, self._wanted = 0, len(places)
            open_requests = [requests[place] for place in places]
            sampled = self._decode(open_requests, sampling, noise, [most[place] for place in places], on_finish)
            for place, completion in zip(places, sampled, strict=True):
                found[place] = completion
        return [completion for completion in found if completion is not None]

    def generate_turns(self, requests: Sequence[Request], sampling: Sampling, noise: NoiseKey, turns: Turns) -> None:
        self.check_requests(requests, sampling)
        self._completed, self._wanted = 0, len(requests)
        self._decode(requests, sampling, noise, [sampling.max_completion_tokens] * len(requests), None, turns)

    def _decode(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        noise: NoiseKey,
        most: Sequence[int],
        on_finish: OnFinish | None,
        turns: Turns | None = None,
    ) -> list[Completion]:
        """The completions; with `turns`, which receives each one at the end of each of its turns, an empty list."""
        keys = [make_row_key(noise, request.draw, request.sample) for request in requests]
        lengths = [max(limit, sampling.longest_completion) for limit in most]
        longest = max(len(one.prompt.token_ids) + length for one, length in zip(requests, lengths, strict=True))
        columns = max(one.position + length for one, length in zip(requests, lengths, strict=True))
        with sampling_mode(self.model), self._prepare_modules():
            workspace = self._make_workspace(longest, len(keys), sampling, columns)
            state = workspace.state
            greedy = [sampling.for_sample(request.sample).greedy for request in requests]
            state.start_call(keys, [request.position + limit for request, limit in zip(requests, most, strict=True)], greedy)
            slots = min(workspace.slots, len(keys))
            finished: dict[int, Completion] = {}

            def report_finished(numbers: np.ndarray) -> None:
                chosen = [decoding.work.requests[number] for number in numbers]
                rows = torch.from_numpy(numbers).to(state.token_ids_NT.device)
                found = self._read_completions(state, rows, chosen, decoding.lengths_N[numbers], sampling)
                for number, completion in zip(numbers.tolist(), found, strict=True):
                    if turns is not None:
                        turns.end_turn(number, completion)
                        continue
                    finished[number] = completion
                    if on_finish is not None:
                        on_finish(requests[number], completion)

            report = report_finished if on_finish is not None or turns is not None else None
            work = Work.group_requests(requests)
            decoding = Decoding(
                self.parts, workspace, work, sampling, slots, report, self.on_progress and self._report_progress, turns
            )
            try:
                if workspace.steps is not None:
                    workspace.steps.step = decoding.step
                with self._share_threads(workspace):
                    lengths_N = decoding.run()
            finally:
                # Reference cycles would keep the cache in memory until the garbage collector runs.
                decoding.on_finish = None
                if workspace.steps is not None:
                    workspace.steps.step = None
            if report is not None:  # each was read once, when it finished
                completions = [finished[number] for number in range(len(requests) if turns is None else 0)]
            else:
                completions = self._read_completions(state, slice(0, len(requests)), requests, lengths_N, sampling)
        self._completed += len(requests)
        self.last = {
            "slots": float(slots),
            "decode_steps": float(decoding.num_steps),
            "occupancy": decoding.decoded / max(1, decoding.num_steps * slots),
            "checks": float(decoding.num_checks),
            "prefills": float(decoding.num_prefills),
            "graphs": float(len(workspace.steps.graphs)) if workspace.steps else 0.0,
        }
        self._keep_or_drop(workspace)
        return completions

    def _report_progress(self, completions: float) -> None:
        """completions: of the current decoding; `generate` may need several."""
        assert self.on_progress is not None
        self.on_progress((self._completed + completions) / self._wanted)

    # -- for subclasses ------------------------------------------------------------------------------------------------

    def _make_workspace(self, longest: int, completions: int, sampling: Sampling, columns: int) -> Workspace:
        """A decoder and its slots for that many completions, of at most `longest` tokens with their prompts."""
        raise NotImplementedError

    def _count_slot_bytes(self, length: int) -> int:
        """Bytes of a slot of this length, without the sampler's arrays."""
        raise NotImplementedError

    def _prepare_modules(self) -> AbstractContextManager[None]:
        """Context in which the policy's modules run during a call."""
        return nullcontext()

    def _share_threads(self, workspace: Workspace) -> AbstractContextManager[None]:
        """Context in which the scheduler runs."""
        return nullcontext()

    def _keep_or_drop(self, workspace: Workspace) -> None:
        """After a call: keep the workspace for the next one, or drop it."""

    # -- for all engines -----------------------------------------------------------------------------------------------

    def choose_slots(self, longest: int) -> int:
        return self.fit_slots(longest, MOST_SLOTS[self.model.device.type])

    def check_requests(self, requests: Sequence[Request], sampling: Sampling) -> None:
        prompts = [request.prompt for request in requests]
        check_request(self.model.config.get_text_config(), prompts, sampling)
        for request in requests:
            check_prefix(request)
        longest = max((len(prompt.token_ids) for prompt in prompts), default=0) + sampling.longest_completion
        limit = find_exact_length(self.model)
        if limit and longest > limit:
            raise EngineError(
                f"prompt and sampling.max_completion_tokens{describe_replies(sampling)} reach {longest} tokens, but this model's rotary frequencies change beyond "
                f"{limit} tokens, so no cache is exact. Call hold_frequencies(model, longest) of cohort.model.architecture first, as "
                "every run does."
            )

    def fit_slots(self, length: int, completions: int) -> int:
        """The requested number of slots, or as many as fit in a share of the free memory; at most one per completion.

        If the requested slots do not fit, there are fewer: rollouts are the same, only slower.
        """
        kind = self.model.device.type
        vocabulary_bytes = 4 * SAMPLER_FLOATS * self.model.config.get_text_config().vocab_size
        slot_bytes = self._count_slot_bytes(length) + vocabulary_bytes
        free = measure_free_memory(self.model.device)
        share = REQUESTED_SHARE if self.slots else MEMORY_SHARE[kind]
        fitting = int(share * free / slot_bytes)
        if fitting < 1:
            raise EngineError(
                f"not even one slot fits: the keys and values of {length} tokens need {slot_bytes / 2**20:.0f} MiB, and "
                f"{free / 2**20:.0f} MiB are free. Lower sampling.max_completion_tokens or prompts.max_prompt_tokens."
            )
        return min(fitting, self.slots or MOST_SLOTS[kind], completions)

    def _read_completions(
        self,
        state: SlotState,
        rows: slice | Tensor,
        requests: Sequence[Request],
        lengths_N: np.ndarray,
        sampling: Sampling,
    ) -> list[Completion]:
        """The completions in these rows of the state, given their requests and full lengths."""
        check_finite(state.logprobs_NT[rows], self.version)
        token_ids_NT, logprobs_NT = state.token_ids_NT[rows].cpu().numpy(), state.logprobs_NT[rows].cpu().numpy()
        given_NT = None if state.given_NT is None else state.given_NT[rows].cpu().numpy()
        stop_ids = set(sampling.stop_ids)
        spans = [
            slice(request.position + len(request.prefix_ids), request.position + length)
            for request, length in zip(requests, lengths_N.tolist(), strict=True)
        ]
        ids_N = [token_ids_NT[row, span].tolist() for row, span in enumerate(spans)]
        texts_N = self.decode_all(
            [ids if one.prefix is None else [*one.prefix_ids, *ids] for one, ids in zip(requests, ids_N, strict=True)]
        )
        completions = []
        for row, (request, ids, text) in enumerate(zip(requests, ids_N, texts_N, strict=True)):
            end: End = "stop" if ids[-1] in stop_ids else "length"
            more = Completion(tuple(ids), tuple(logprobs_NT[row, spans[row]].tolist()), end, text)
            if given_NT is not None and (given_NT[row, spans[row]] >= 0).any():
                more = replace(more, sampled_mask=tuple((given_NT[row, spans[row]] < 0).tolist()))
            completions.append(join_prefix(request, more, self.version))
        return completions


def measure_free_memory(device: torch.device) -> int:
    if device.type != "cuda":
        return psutil.virtual_memory().available
    # Memory that torch has reserved but does not use is free for us, but not for the driver.
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
