"""Seconds and tokens per stage of a step: pure functions that compute the `time/` and `perf/` metrics. No torch.

    seconds = {"rollout": 1.3, "update": 0.9, ...}             # laps of a Stopwatch: they add up to the step
    row |= make_time_metrics(seconds) | make_speed_metrics(row, seconds, costs)

STAGES lists all stages in the order of a step. Findings, report and console take names and descriptions from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from cohort.base.text import write_percent
from cohort.observe.metrics import LARGEST

if TYPE_CHECKING:
    from cohort.ops.flops import Dimensions


from typing import Literal

from cohort.base.text import write_seconds

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    subject: str
    """A noun phrase for "... of a step's time goes into <subject>"."""
    does: str
    fix: str
    """What to change if it takes too long."""
    normal: float = 0.5
    """Share of a step above which the stage is a finding. Sampling and training are the actual work, so theirs is higher."""


STAGES = (
    Stage("wait", "waiting for rollouts sampled ahead", "training waits for completions that are sampled and scored in the background", "ahead/sample_seconds and ahead/score_seconds show which of the two is slower.", 1.0),  # has its own finding
    Stage("rollout", "sampling completions", "runs prompts and samples completions, including the copy to the host", "Lower sampling.max_completion_tokens if few completions need it, raise sampling.slots, or use a GPU.", 0.9),
    Stage("reward", "rewards", "scores the completions not yet scored during sampling", "Find the slow function in reward/<part>/seconds; make it cheaper or lower its timeout_s. If it scores one completion at a time, per_completion = True scores during sampling; ahead.lag = 1 trains meanwhile."),
    Stage("prepare", "preparing the batch", "turns rollouts into examples with advantages, on the host", "It depends only on the tokens of a step: use fewer or shorter completions, or a faster CPU."),
    Stage("old", "old log-probs", "scores the batch with the policy before its first update", "train.minibatches_per_step = 1 and train.passes_per_step = 1 need none."),
    Stage("reference", "the reference", "scores the batch with the reference", "algorithm.kl_coef = 0 without monitors.kl needs no reference."),
    Stage("teacher", "the teacher", "scores the batch with the teacher", "Use a smaller teacher, or none (teacher.source)."),
    Stage("critic", "the critic's values", "computes the critic's values of the batch", 'Every advantage except "gae" needs no critic.'),
    Stage("pack", "packing micro-batches", "arranges examples in micro-batches, on the host", "Raise train.micro_batch_tokens, or use a faster CPU."),
    Stage("update", "forward and backward passes", "runs the policy (and the critic) forward and backward over every micro-batch", "Raise train.micro_batch_tokens while memory lasts; the gradient does not change.", 0.8),
    Stage("optimizer", "optimizer steps", "clips gradients, updates weights and measures the update", "Its time does not depend on the batch: more prompts_per_step or fewer minibatches_per_step spread it over more tokens."),
    Stage("observe", "recording metrics and rollouts", "writes metrics, signs of hacking and rollouts/, and calls the monitors", "Raise monitors.rollouts_every, or write to a faster disk."),
    Stage("evaluate", "evaluation", "samples and scores held-out problems", "Raise evaluation.every_steps, or lower evaluation.every_problems or evaluation.samples."),
    Stage("checkpoint", "checkpoints", "saves weights and optimizer", "Raise checkpoints.every_steps."),
)  # fmt: skip
STAGE_OF = {stage.name: stage for stage in STAGES}
HOST = ("prepare", "pack", "observe")
"""Stages in which the GPU is idle."""


def make_time_metrics(seconds: Mapping[str, float]) -> dict[str, float]:
    """The seconds of every stage that ran, in order, and their sum time/step."""
    unknown = seconds.keys() - STAGE_OF.keys()
    if unknown:
        raise ValueError(f"laps of unknown stages {sorted(unknown)}; the stages are {', '.join(STAGE_OF)}")
    stages = {f"time/{stage}": seconds[stage] for stage in STAGE_OF if stage in seconds}
    return stages | {"time/step": sum(seconds.values())}


# -- tokens and operations -------------------------------------------------------------------------------------------------


DENSE = ("llama", "mistral", "qwen2", "qwen3")
"""Model types with a known cost per token: gated MLPs, every parameter used by every token."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The cost of a token in training, and the peak of the device (ops/flops.py)."""

    dimensions: Dimensions
    peak_flops: float
    frozen_base: bool = False
    ranks: int = 1
    """Devices that share the tokens, one per rank."""

    @classmethod
    def of(cls, config: Any, device_name: str, frozen_base: bool, ranks: int = 1) -> Costs | None:
        """None if the formula does not apply to the model, or the peak of the device is unknown."""
        from cohort.ops.flops import Dimensions, find_peak_flops

        peak = find_peak_flops(device_name)
        if peak is None or config.model_type not in DENSE:
            return None
        return cls(Dimensions.from_config(config), peak, frozen_base, ranks)

    def utilisation(self, executed: float, scored: float, seconds: float) -> float:
        """MFU of forward and backward passes: the body on every executed token, the head on tokens with a log-prob."""
        from cohort.ops.flops import count_training_flops

        flops = count_training_flops(self.dimensions, int(executed), int(scored), self.frozen_base)
        return flops / self.ranks / seconds / self.peak_flops


EXECUTED, FORWARDED, TRAINABLE = "tokens/executed", "tokens/forwarded", "tokens/trainable"
"""Counts of one optimizer step, summed over a step. They become shares and rates and are not metrics themselves."""


def count_minibatch_tokens(minibatch: Any) -> dict[str, float]:
    """Counts of one minibatch: its micro-batches, and its executed, forwarded and trainable tokens."""
    return {
        "perf/micro_batches": float(len(minibatch.micro_batches)),
        EXECUTED: float(minibatch.executed_tokens),
        FORWARDED: float(minibatch.forwarded_tokens),
        TRAINABLE: float(minibatch.trained_tokens),
    }


def make_speed_metrics(row: Row, seconds: Mapping[str, float], costs: Costs | None = None) -> dict[str, float]:
    """The rates and shares of one step that its counts and times allow."""
    speeds: dict[str, float] = {}
    step = sum(seconds.values())
    rollout, update = seconds.get("rollout", 0.0) or row.get("ahead/sample_seconds", 0.0), seconds.get("update", 0.0)
    sampled, trained = row.get("rollout/tokens", 0), row.get("loss/trained_tokens", 0)
    executed, forwarded, trainable = (row.get(name, 0) for name in (EXECUTED, FORWARDED, TRAINABLE))
    if rollout and sampled:
        speeds["perf/rollout_tokens_per_second"] = sampled / rollout
        speeds["perf/tokens_per_second"] = sampled / step
    if update:
        speeds["perf/train_tokens_per_second"] = trained / update
    if update and executed:
        speeds["perf/executed_tokens_per_second"] = executed / update
        if costs:
            speeds["perf/update_mfu"] = costs.utilisation(executed, trained, update)
    if executed and forwarded:
        speeds["perf/padding_share"] = max(0.0, 1 - forwarded / executed)
        speeds["perf/shared_share"] = max(0.0, 1 - executed / forwarded)
    if trainable:
        speeds["perf/skipped_share"] = 1 - trained / trainable
    if step:
        speeds["perf/host_share"] = sum(seconds.get(stage, 0.0) for stage in HOST) / step
        speeds["perf/slowest_stage_share"] = max(seconds.values()) / step
    return speeds


def make_engine_metrics(engine: Any) -> dict[str, float]:
    """The counts of the engine's last call (`engine.last`), if it has any; names with an area are kept as they are."""
    counted = getattr(engine, "last", {}).items()
    return {name if "/" in name else f"perf/engine_{name}": float(value) for name, value in counted}


# -- summaries -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageTime:
    stage: Stage
    median: float
    """Median seconds of the steps with this stage."""
    total: float
    share: float
    """Share of the seconds of all steps."""
    steps: int


def measure_stages(rows: Sequence[Row]) -> list[StageTime]:
    """Every stage that took time, in the order of a step. Shares are of sums, so that rare stages count in proportion."""
    laps = {stage: [value for value in list_seconds(rows, stage.name) if value] for stage in STAGES}
    whole = sum(list_seconds(rows, "step"))
    return [
        StageTime(stage, median(values), sum(values), sum(values) / whole, len(values))
        for stage, values in laps.items()
        if values and whole
    ]


def drop_first_step(rows: Sequence[Row]) -> Sequence[Row]:
    """The rows without the first step, which imports, compiles and captures, and so does not represent the others."""
    return rows[1:] if len(rows) > 1 else rows


def list_seconds(rows: Sequence[Row], stage: str) -> list[float]:
    """The seconds of the stage in every step that has it."""
    name = f"time/{stage}"
    values: list[Any] = [row.get(name) for row in rows]
    return [max(0.0, float(value)) for value in values if type(value) in (float, int) and abs(value) <= LARGEST]


def describe_times(rows: Sequence[Row], most: int = 4) -> str:
    """One line, the largest stage first: "rollout 52 % · update 34 % · reward 9.1 % · other 4.9 %"."""
    times = sorted(measure_stages(drop_first_step(rows)), key=lambda time: -time.share)
    named = [f"{time.stage.name} {write_percent(time.share)}" for time in times[:most]]
    rest = sum(time.share for time in times[most:])
    return " · ".join([*named, *([f"other {write_percent(rest)}"] if rest >= 0.001 else [])])


# -- sampling ahead ----------------------------------------------------------------------------------------------------

NOTICED = 0.1
"""Share of a step that training may wait while still counting as the slowest."""
NEARLY = 0.85
"""Share of a step that sampling or scoring must take to be the bottleneck on its own."""

Slowest = Literal["training", "sampling", "scoring", "both"]
"""both: sampling plus scoring, if neither takes as long as a step."""


@dataclass(frozen=True)
class AheadTimes:
    """Seconds of the median step of a run that samples ahead.

    A batch is sampled, scored and trained on in sequence, with lag + 1 batches in flight. So a step takes the longest of

        training,  sampling,  scoring,  (training + sampling + scoring) / (lag + 1)
    """

    train: float
    wait: float
    sample: float
    score: float

    @property
    def wait_share(self) -> float:
        return self.wait / (self.wait + self.train) if self.wait else 0.0

    @property
    def slowest(self) -> Slowest:
        if self.wait_share < NOTICED:
            return "training"
        if max(self.sample, self.score) < NEARLY * (self.train + self.wait):
            return "both"
        return "sampling" if self.sample >= self.score else "scoring"


def measure_ahead(rows: Sequence[Row]) -> AheadTimes | None:
    """The times of sampling, scoring and training; None if nothing is sampled ahead, or nothing was timed."""
    chosen = [row for row in drop_first_step(rows) if isinstance(row.get("ahead/sample_seconds"), int | float)]
    whole, waits = ([sum(list_seconds([row], stage)) for row in chosen] for stage in ("step", "wait"))
    if not chosen or not median(whole):
        return None
    sample, score = (median(float(row.get(f"ahead/{name}_seconds") or 0.0) for row in chosen) for name in ("sample", "score"))
    return AheadTimes(median(a - b for a, b in zip(whole, waits, strict=True)), median(waits), sample, score)


def describe_ahead(rows: Sequence[Row]) -> str:
    """The times and the bottleneck in a sentence; "" if nothing is sampled ahead."""
    times = measure_ahead(rows)
    if times is None:
        return ""
    parts = {"sampling": times.sample, "scoring": times.score, "training": times.train}
    seconds = ", ".join(f"{name} {write_seconds(value)}" for name, value in parts.items())
    slowest = "sampling and scoring together (raise ahead.lag)" if times.slowest == "both" else times.slowest
    return f"{seconds} per step; training waited {write_percent(times.wait_share)} of the time; bottleneck: {slowest}"
