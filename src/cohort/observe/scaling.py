"""What a step would take on other numbers of ranks: a formula for each stage, from the seconds of one rank. No torch.

    work = read_work(rows, prompts=32, updates=1, ...)       # rows of metrics.jsonl of a run on one rank
    predict_step(work, ranks=8, link=NVLINK).step            # seconds

Some of a step is shared out: draws by blocks of prompts, rewards with them, scoring passes and updates by micro-batches. Whoever has
most of it decides, so that 9 micro-batches on 8 ranks take as long as 16 would. Some of it every rank does for itself: preparing the
batch, packing, the optimizer, writing down. And some is added: what ranks tell each other. Times of the exchanges are those of a ring
(every rank sends to the next while it receives), whose bandwidth is that of its narrowest place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from cohort.observe.perf import STAGE_OF, Row, drop_first_step, seconds_of
from cohort.ops.flops import FROZEN_BASE_FACTOR, TRAIN_FACTOR, Accelerator, Dimensions, estimate_training_cost
from cohort.recipe.schema import Recipe

# -- what ranks tell each other --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Link:
    """The narrowest place between ranks."""

    bandwidth: float
    """Bytes a second that go out while as many come in."""
    latency: float
    """Seconds until a message is there."""
    meeting: float | None = None
    """Seconds of a meeting, where that was measured; else of MEETING_MESSAGES messages."""


NVLINK = Link(450e9, 10e-6)
"""Of an H100 or H200, by the data sheet (900 GB/s in both directions together); nothing of it was measured here."""
LOOPBACK = Link(1e9, 1e-4)
"""Processes of one host without a link between devices: about what gloo gives on one."""
NETWORK_LATENCY = 50e-6
RANKS_PER_HOST = 8


def choose_link(ranks: int, inside: Link, network_gbit: float, per_host: int = RANKS_PER_HOST) -> Link:
    """Within a host its own; over several the network of a host, if that is narrower: all rings of a host share it."""
    if ranks <= per_host:
        return inside
    return Link(min(inside.bandwidth, network_gbit * 1e9 / 8), max(inside.latency, NETWORK_LATENCY))


def time_all_reduce(size: float, ranks: int, link: Link) -> float:
    """A sum of `size` bytes on every rank: 2 (N - 1) turns, each with an N-th of the bytes."""
    return 2 * (ranks - 1) * (size / ranks / link.bandwidth + link.latency)


def time_all_gather(size: float, ranks: int, link: Link) -> float:
    """All of `size` bytes, of which each rank has an N-th: N - 1 turns. A reduce-scatter is the same, backwards."""
    return (ranks - 1) * (size / ranks / link.bandwidth + link.latency)


MEETING_MESSAGES = 4
"""Before every exchange the ranks leave notes at the launcher's store and read each other's, twice there and back: 21 ms at 5 ms a message."""
ROLLOUT_BYTES, SCORE_BYTES, METER_BYTES = 17, 5, 13
"""Of a token, as it is pickled: its id, log-prob and text; a score; what the meter keeps until all are joined. Measured."""
UNPICKLE_SECONDS = 0.13e-6
"""Of a sampled token: every rank makes objects of all of them."""
MEETINGS = {"rollout": 1, "reward": 1, "old": 1, "reference": 1, "teacher": 1, "critic": 1, "observe": 1}
"""Exchanges of a step in a stage that runs."""
UPDATE_MEETINGS = {"update": 1, "optimizer": 2}
"""Those of each optimizer step."""


# -- a step on one rank ----------------------------------------------------------------------------------------------------


SHARED_BY_BATCHES = ("old", "reference", "teacher", "critic")
OFTEN = tuple(stage for stage in STAGE_OF if stage not in ("evaluate", "checkpoint"))
"""Stages of every step. Evaluations and checkpoints are left out: they come when the recipe says so."""


@dataclass(frozen=True)
class Work:
    """A step as one rank does it alone, and what decides how it is shared out."""

    seconds: Mapping[str, float]
    tokens: float
    """Sampled in the step."""
    prompts: int
    micro_batches: float
    """Of the step, all minibatches and passes."""
    updates: int = 1
    """Optimizer steps of the step."""
    passes: int = 1
    decode_steps: float = 1.0
    longest: float = 1.0
    """Tokens of the longest completion: no rank needs fewer decode steps for it."""
    step_rows: float = 0.0
    """What a decode step costs however few rows are live, in rows: reading the weights, launches."""
    trained: int = 0
    parameters: int = 0
    element: int = 2
    exact: bool = False
    shard: bool = False
    overlaps: bool = True
    """Whether weights are fetched while the device computes: on GPUs."""
    units: int = 1
    """Parts that are whole at a time where weights are shared out: layers, embedding and head."""


@dataclass(frozen=True)
class Prediction:
    ranks: int
    work: Work
    own: Mapping[str, float]
    """Seconds by stage of the rank that has most to do."""
    talk: Mapping[str, float] = field(default_factory=dict)
    """Seconds by stage of what ranks tell each other there."""

    @property
    def seconds(self) -> dict[str, float]:
        return {stage: self.own.get(stage, 0.0) + self.talk.get(stage, 0.0) for stage in self.own}

    @property
    def step(self) -> float:
        return sum(self.seconds.values())

    @property
    def tokens_per_second(self) -> float:
        return self.work.tokens / self.step

    @property
    def bound(self) -> str:
        """What takes the largest part of the step, and why more ranks do not make it shorter where they do not."""
        stage = max(self.own, key=lambda stage: self.own[stage])
        talk = sum(self.talk.values())
        if talk > self.own[stage]:
            return "the link"
        if (
            stage == "rollout"
            and self.ranks > 1
            and share_decoding(self.work, 2 * self.ranks) > 0.75 * share_decoding(self.work, self.ranks)
        ):
            return "rollout (a decode step takes as long with fewer rows)"
        if stage == "update" and self.ranks > self.work.micro_batches / self.work.updates:
            return "update (fewer micro-batches than ranks)"
        return stage


def share_out(count: float, ranks: int) -> float:
    """The share of whoever has most of `count` things."""
    whole = max(1, math.ceil(count))
    return math.ceil(whole / ranks) / whole


def share_decoding(work: Work, ranks: int) -> float:
    """Of the seconds of rollouts on one rank. Decoding is steps x (what every step costs + its live rows).

    The tokens are shared out, but the steps are not: where all rows have slots, a rank with fewer rows decodes as many steps as the
    longest completion has tokens. Only steps that came from waiting for a slot become fewer.
    """
    share = share_out(work.prompts, ranks)
    steps = max(work.longest, work.decode_steps * share)
    one = max(work.longest, work.decode_steps) * work.step_rows + work.tokens
    return (steps * work.step_rows + work.tokens * share) / one


def predict_step(work: Work, ranks: int, link: Link) -> Prediction:
    updates = max(1, work.updates)
    shares = dict.fromkeys(SHARED_BY_BATCHES, share_out(work.micro_batches / max(1, work.passes), ranks))
    shares |= {
        "rollout": share_decoding(work, ranks),
        "reward": share_out(work.prompts, ranks),
        "update": share_out(work.micro_batches / updates, ranks),
        # Its time is that of reading and writing every weight and moment: a share of them where they are shared out.
        "optimizer": 1.0 / ranks if work.shard else 1.0,
    }
    own = {stage: seconds * shares.get(stage, 1.0) for stage, seconds in work.seconds.items()}
    if ranks == 1 and not work.shard:
        return Prediction(ranks, work, own)
    talk = time_talk(work, ranks, link, own)
    return Prediction(ranks, work, own, talk)


def time_talk(work: Work, ranks: int, link: Link, own: Mapping[str, float]) -> dict[str, float]:
    """Seconds of the exchanges, by the stage in which they are waited for."""
    meeting = (MEETING_MESSAGES * link.latency if link.meeting is None else link.meeting) * (ranks > 1)
    talk = {stage: meeting * (MEETINGS.get(stage, 0) + UPDATE_MEETINGS.get(stage, 0) * work.updates) for stage in own}

    def add(stage: str, seconds: float) -> None:
        if stage in talk:
            talk[stage] += seconds

    add("rollout", time_all_gather(ROLLOUT_BYTES * work.tokens, ranks, link) + UNPICKLE_SECONDS * work.tokens * (ranks > 1))
    for stage in SHARED_BY_BATCHES:
        add(stage, time_all_gather(SCORE_BYTES * work.tokens, ranks, link))
    add("update", work.passes * time_all_gather(METER_BYTES * work.tokens, ranks, link))
    bytes_summed = 8 if work.exact else 4
    if not work.shard:
        add("optimizer", work.updates * time_all_reduce(bytes_summed * work.trained, ranks, link))
        return talk
    # Whole for the engine once a step; then for every micro-batch once forwards and once backwards, and its gradient is scattered.
    messages = Link(link.bandwidth, link.latency * work.units)
    fetch = time_all_gather(work.element * work.parameters, ranks, messages)
    scatter = time_all_gather(bytes_summed * work.trained, ranks, messages)
    add("rollout", fetch)
    turns = work.updates * math.ceil(max(1.0, work.micro_batches / work.updates) / ranks)
    for stage, seconds in (
        ("update", turns * (2 * fetch + scatter)),
        *((stage, turns / work.passes * fetch) for stage in SHARED_BY_BATCHES),
    ):
        # Fetched while the device computes, it costs what it takes longer than computing.
        add(stage, max(0.0, seconds - own.get(stage, 0.0)) if work.overlaps else seconds)
    return talk


# -- from a run ------------------------------------------------------------------------------------------------------------


def read_sharing(recipe: Recipe) -> dict[str, Any]:
    """What of a recipe decides how a step is shared out."""
    train = recipe.train
    return {
        "prompts": train.prompts_per_step,
        "updates": train.minibatches_per_step * train.passes_per_step,
        "passes": train.passes_per_step,
        "shard": recipe.parallel.shard == "full",
    }


def read_work(rows: Sequence[Row], **known: Any) -> Work | None:
    """A step of a run on one rank: medians over its steps but the first. None where no step was timed.

    known: what rows do not tell (prompts, updates, trained, parameters, ...), or what is taken where they do not tell it.
    """
    rows = [row for row in drop_first_step(rows) if seconds_of(row, "step")]
    if not rows:
        return None
    laps = {stage: [value for row in rows if (value := seconds_of(row, stage)) is not None] for stage in OFTEN}
    found = {
        "tokens": middle(rows, "rollout/tokens"),
        "longest": (middle(rows, "rollout/length_max") or 1.0) * (middle(rows, "rollout/rounds") or 1.0),
        "micro_batches": middle(rows, "perf/micro_batches"),
        "decode_steps": middle(rows, "perf/engine_decode_steps"),
    }
    numbers = (
        {"tokens": 0.0, "micro_batches": 1.0} | known | {name: value for name, value in found.items() if value is not None}
    )
    return Work(seconds={stage: median(values) for stage, values in laps.items() if values}, **numbers)


def middle(rows: Sequence[Row], name: str) -> float | None:
    values = [float(row[name]) for row in rows if isinstance(row.get(name), int | float)]
    return median(values) if values else None


# -- without a run ---------------------------------------------------------------------------------------------------------


LAUNCH_SECONDS = 35e-6
"""Of a layer in a decode step, beside bytes and FLOPs: launches, norms, sampling. On an H200 30 to 44 µs at 0.5B and 1.5B."""
MODULE_MFU = 0.34
"""Of training on the modules of transformers, as with adapters and slices: 0.35 and 0.34 in slices at 1.5B and 7B, 0.30 with adapters."""
ISSUE_SECONDS = 3.5e-3
"""That the host takes to issue forward and backward of a layer, however few tokens there are: 2.4 to 5 ms were measured."""
OPTIMIZER_BYTES = 70.0
"""Read and written for a trained parameter, by the measured 10 ms at 0.5B and 24 ms at 1.5B."""
HOST_SECONDS = 0.4e-6
"""Of a token, in prepare and pack."""


def count_step_rows(dimensions: Dimensions, accelerator: Accelerator, context: float, element: int = 2) -> float:
    """What a decode step costs whoever is live, in rows of `context` tokens: launches and the weights against FLOPs and keys."""
    parameters = dimensions.body_parameters + dimensions.head_parameters
    fixed = dimensions.layers * LAUNCH_SECONDS + parameters * element / accelerator.bandwidth
    row = 2 * parameters / accelerator.flops + context * dimensions.kv_bytes(element) / accelerator.bandwidth
    return fixed / row


def expect_mfu(parameters: float) -> float:
    """A line through what was measured on an H200: 0.38 at 0.5B, 0.49 at 1.5B, 0.56 at 7B and, so it is assumed, beyond."""
    return min(0.56, max(0.1, 0.38 + 0.06 * math.log2(parameters / 0.5e9)))


CPU_STEP_ROWS = 17.0
"""The same on a CPU: 2.4 ms beside 0.14 ms a row, 4.4 M parameters on one thread."""


def estimate_seconds(
    dimensions: Dimensions,
    accelerator: Accelerator,
    *,
    prompt_tokens: int,
    length: int,
    prompts: int,
    group: int,
    slots: int,
    micro_batches: float,
    trained: int,
    passes: int = 1,
    scoring: Sequence[str] = (),
    frozen_base: bool = False,
    modules: bool = False,
) -> dict[str, float]:
    """Seconds by stage of a step on one known GPU, before anything has run. Rewards are not in it: nobody knows theirs.

    micro_batches: of all passes. modules: without own kernels.
    """
    completions = prompts * group
    tokens = completions * length
    parameters = dimensions.body_parameters + dimensions.head_parameters
    context = prompt_tokens + length / 2
    row = 2 * parameters / accelerator.flops + context * dimensions.kv_bytes(2) / accelerator.bandwidth
    steps = length * math.ceil(completions / max(1, slots))
    rollout = row * (steps * count_step_rows(dimensions, accelerator, context) + tokens)
    rate = accelerator.peak_flops * (MODULE_MFU if modules or frozen_base else expect_mfu(dimensions.total_parameters))
    computing = estimate_training_cost(dimensions, prompt_tokens, [length] * completions, group) / rate
    issuing = micro_batches / passes * dimensions.layers * ISSUE_SECONDS
    factor = FROZEN_BASE_FACTOR / TRAIN_FACTOR if frozen_base else 1.0
    return {
        "rollout": rollout,
        "prepare": HOST_SECONDS * tokens,
        **dict.fromkeys(scoring, max(computing, issuing) / 3),
        "update": passes * max(computing * factor, issuing),
        "optimizer": OPTIMIZER_BYTES * trained / accelerator.bandwidth,
    }
