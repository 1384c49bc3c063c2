"""Where the seconds and tokens of a step went: pure functions from laps and counts to `time/` and `perf/`. No torch.

    seconds = {"rollout": 1.3, "update": 0.9, ...}             # laps of a Stopwatch: they add up to the step
    row |= make_time_metrics(seconds) | make_speed_metrics(row, seconds, costs)

The stages below are all there are, in the order in which a step goes through them. Diagnosis, report and console read this
table, so a stage has one name and one description everywhere.
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

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    subject: str
    """As the subject of a sentence: "... of a step go into <subject>"."""
    does: str
    fix: str
    """What to change where it takes too long."""
    normal: float = 0.5
    """Share of a step up to which it is no cause for a remark. Sampling and training are the work itself."""


STAGES = (
    Stage(
        "wait",
        "waiting for what is sampled ahead",
        "training waits for completions that are sampled and scored in the background",
        "See ahead/sample_seconds and ahead/score_seconds for who is waited for.",
        1.0,  # a finding of its own speaks of it
    ),
    Stage(
        "rollout",
        "sampling completions",
        "prompts are run and completions sampled, the copy to the host included",
        "Lower sampling.max_completion_tokens if few completions need it, raise sampling.slots, or use a GPU.",
        0.9,
    ),
    Stage(
        "reward",
        "rewards",
        "reward functions judge what they have not judged while it was sampled",
        "Look at reward/<part>/seconds for the slow one; make it cheaper or lower its timeout_s. If it looks at one completion at a time, "
        "per_completion = True scores while others are sampled; ahead.lag = 1 trains meanwhile.",
    ),
    Stage(
        "prepare",
        "preparing the batch",
        "rollouts become examples with advantages; this is work of the host",
        "It grows with the tokens of a step alone: fewer or shorter completions, or a faster CPU.",
    ),
    Stage(
        "old",
        "old log-probs",
        "the policy scores the batch before its first update",
        "train.minibatches_per_step = 1 and train.passes_per_step = 1 need none.",
    ),
    Stage(
        "reference",
        "the reference",
        "the reference scores the batch",
        "algorithm.kl_coef = 0 without monitors.kl needs no reference.",
    ),
    Stage(
        "teacher",
        "the teacher",
        "the teacher scores the batch",
        "A smaller teacher, or none: teacher.source.",
    ),
    Stage("critic", "the critic's values", "the critic values the batch", 'Every advantage but "gae" does without a critic.'),
    Stage(
        "pack",
        "packing micro-batches",
        "examples are laid out in micro-batches; this is work of the host",
        "It is work of the host: raise train.micro_batch_tokens, or use a faster CPU.",
    ),
    Stage(
        "update",
        "forward and backward passes",
        "the policy (and the critic) run forward and backward over every micro-batch",
        "Raise train.micro_batch_tokens while memory lasts; the gradient does not change.",
        0.8,
    ),
    Stage(
        "optimizer",
        "optimizer steps",
        "gradients are clipped, weights updated, and the update measured",
        "Its time does not depend on the batch: more prompts_per_step or fewer minibatches_per_step spread it over more tokens.",
    ),
    Stage(
        "observe",
        "writing things down",
        "metrics, signs of hacking, rollouts/ and the monitors",
        "Raise monitors.rollouts_every, or write to a faster disk.",
    ),
    Stage(
        "evaluate",
        "evaluation",
        "held-out problems are sampled and judged",
        "Raise evaluation.every_steps, or lower evaluation.every_problems or evaluation.samples.",
    ),
    Stage("checkpoint", "checkpoints", "weights and optimizer are saved", "Raise checkpoints.every_steps."),
)
STAGE_OF = {stage.name: stage for stage in STAGES}
HOST = ("prepare", "pack", "observe")
"""Stages in which a GPU has nothing to do."""


def make_time_metrics(seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds of every stage that ran, in order; time/step is their sum."""
    unknown = seconds.keys() - STAGE_OF.keys()
    if unknown:
        raise ValueError(f"laps of unknown stages {sorted(unknown)}; the stages are {', '.join(STAGE_OF)}")
    stages = {f"time/{stage}": seconds[stage] for stage in STAGE_OF if stage in seconds}
    return stages | {"time/step": sum(seconds.values())}


# -- tokens and operations -------------------------------------------------------------------------------------------------


DENSE = ("llama", "mistral", "qwen2", "qwen3")
"""Kinds of models whose cost per token is known here: gated MLPs, every parameter used by every token."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What a token costs the policy that is trained, and what the device could do at best (ops/flops.py)."""

    dimensions: Dimensions
    peak_flops: float
    frozen_base: bool = False
    ranks: int = 1
    """Devices that the tokens are run on, one for each rank."""

    @classmethod
    def of(cls, config: Any, device_name: str, frozen_base: bool, ranks: int = 1) -> Costs | None:
        """None where the formula does not hold for the model, or the peak of the device is not known."""
        from cohort.ops.flops import Dimensions, find_peak_flops

        peak = find_peak_flops(device_name)
        if peak is None or config.model_type not in DENSE:
            return None
        return cls(Dimensions.from_config(config), peak, frozen_base, ranks)

    def utilisation(self, executed: float, scored: float, seconds: float) -> float:
        """MFU: the body on every token that is run, the head on those whose log-prob is taken, forward and backward."""
        from cohort.ops.flops import count_training_flops

        flops = count_training_flops(self.dimensions, int(executed), int(scored), self.frozen_base)
        return flops / self.ranks / seconds / self.peak_flops


EXECUTED, FORWARDED, TRAINABLE = "tokens/executed", "tokens/forwarded", "tokens/trainable"
"""Counts of one optimizer step that add up over a step. They become shares and rates, and stand in no row themselves."""


def count_minibatch_tokens(minibatch: Any) -> dict[str, float]:
    """Tokens of one minibatch: run through the model, of the rows that were run, and all that could have been trained on; and
    the micro-batches that they lie in."""
    return {
        "perf/micro_batches": float(len(minibatch.micro_batches)),
        EXECUTED: float(minibatch.executed_tokens),
        FORWARDED: float(minibatch.forwarded_tokens),
        TRAINABLE: float(minibatch.trained_tokens),
    }


def make_speed_metrics(row: Row, seconds: Mapping[str, float], costs: Costs | None = None) -> dict[str, float]:
    """Rates and shares of one step, those that can be told."""
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
    """What the engine counted in its last call, where it counts anything (`engine.last`); a name with an area is whole."""
    counted = getattr(engine, "last", {}).items()
    return {name if "/" in name else f"perf/engine_{name}": float(value) for name, value in counted}


# -- in words --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageTime:
    stage: Stage
    median: float
    """Seconds of the middle step, of those that went through the stage."""
    total: float
    share: float
    """Of the seconds of all steps."""
    steps: int


def measure_stages(rows: Sequence[Row]) -> list[StageTime]:
    """Every stage that took time, in the order of a step. Shares are of sums, so that rare stages count for what they are."""
    laps = {stage: [value for value in list_seconds(rows, stage.name) if value] for stage in STAGES}
    whole = sum(list_seconds(rows, "step"))
    return [
        StageTime(stage, median(values), sum(values), sum(values) / whole, len(values))
        for stage, values in laps.items()
        if values and whole
    ]


def drop_first_step(rows: Sequence[Row]) -> Sequence[Row]:
    """Without the first step of a run, which imports, compiles and captures: it says nothing about the others."""
    return rows[1:] if len(rows) > 1 else rows


def seconds_of(row: Row, stage: str) -> float | None:
    return next(iter(list_seconds([row], stage)), None)


def list_seconds(rows: Sequence[Row], stage: str) -> list[float]:
    """Of those steps that went through the stage."""
    name = f"time/{stage}"
    values: list[Any] = [row.get(name) for row in rows]
    return [max(0.0, float(value)) for value in values if type(value) in (float, int) and abs(value) <= LARGEST]


def describe_times(rows: Sequence[Row], most: int = 4) -> str:
    """One line, the largest first: "rollout 52 % · update 34 % · reward 9.1 % · the rest 4.9 %"."""
    times = sorted(measure_stages(drop_first_step(rows)), key=lambda time: -time.share)
    named = [f"{time.stage.name} {write_percent(time.share)}" for time in times[:most]]
    rest = sum(time.share for time in times[most:])
    return " · ".join([*named, *([f"the rest {write_percent(rest)}"] if rest >= 0.001 else [])])
