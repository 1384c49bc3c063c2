"""What a run has earned so far: everything that must survive a kill, and how it is saved and restored.

The state is small because the rest is keyed: prompts follow from the cursor, noise from the step, minibatches from the
seed and the step. What cannot be derived is here: weights, optimizer, counters, and the batch of an unfinished step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from cohort.base.interrupts import defer_interrupts
from cohort.base.processes import freeze_objects
from cohort.base.stopwatch import Stopwatch
from cohort.base.trees import reach
from cohort.model.critic import Critic, NoCritic
from cohort.model.examples import VECTORS, Example, Examples, join_examples
from cohort.model.optim import Optimizer
from cohort.model.packing import Layouts, Minibatch
from cohort.training import checkpoint
from cohort.training.encoding import decode_rollouts, encode_rollouts
from cohort.training.trace import TokenTrace
from cohort.training.updates import UpdateMeter
from cohort.types import Prompt, Rollout


@dataclass(frozen=True)
class Batch:
    """What one step collected and now trains on."""

    rollouts: list[Rollout]
    advantages_N: list[float]
    examples: Examples
    plan: list[list[int]]
    """Examples of each optimizer step of this step."""
    metrics: dict[str, float]
    """Metrics of the collecting half of the step."""
    prompts_taken: int
    """Prompts that the step took from the stream, trained on or not."""
    verdicts: dict[int, tuple[int, int]]
    """Prompt -> (successes, verdicts) of every group drawn."""
    keyed: bool = True
    """Whether collecting it again would give the same; one that is not is saved even before its first update."""
    layouts: Layouts = field(default_factory=Layouts, compare=False, repr=False)
    """Minibatches laid out so far. No part of a checkpoint: they follow from the examples."""

    @property
    def any_scored(self) -> bool:
        """Whether any reward function said anything, of what is trained on or of a group that was drawn and left out."""
        judged = any(count for _, count in self.verdicts.values())
        return judged or any(rollout.outcome.reward is not None for rollout in self.rollouts)


class Component(Protocol):
    """Something beside the policy that a checkpoint must hold: critic, moving reference, choice of prompts, reward model."""

    def state(self) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """(tensors, or arrays of numpy, by name; what JSON holds)."""
        ...

    def load_state(self, tensors: Mapping[str, Any], document: Mapping[str, Any], /) -> None: ...


@dataclass
class Record:
    """The plain part of the state: what state.json holds of it, field by field."""

    phase: str = "train"
    """"cold_start" or "train"."""
    cold_steps: int = 0
    step: int = 0
    """Finished steps."""
    cursor: int = 0
    """Prompts taken from the stream by finished steps."""
    seconds: float = 0.0
    best_step: int = -1
    best_score: list[float] = field(default_factory=list)
    """Of the best checkpoint: the measure it was chosen by, and the reward, which decides ties."""
    slots: int = 0
    """Completions decoded side by side, chosen once: another number could flip near-ties after a resume."""
    data_digest: str = ""
    """Of the prompts and demonstrations: a resumed run must go on with the same ones."""
    base_digest: str = ""
    """With LoRA, of the frozen base, which no checkpoint holds: a resumed run must go on with the same one."""
    start_digest: str = ""
    """Of the starting weights, where they are needed again as the reference."""
    evaluation_digests: dict[str, str] | None = None
    """Of the problems of each evaluation set; None: a checkpoint from before they were written down."""
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    """By place (`model.source`): digests of the files there that a resume reads again; see read_again.py."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """As it was when the run was saved, so that an edit in between is mentioned."""
    baseline: dict[str, Any] = field(default_factory=dict)
    """The evaluation before training, once it is made: it cannot be made again later."""
    kl_coef: float = 0.0
    """Weight of the KL as it is now; a target KL moves it."""
    iteration: int = 0
    """Finished fits of the reward model."""
    fitted_at: int = -1
    """Step after which the last of them was made."""
    scored_steps: int = 0
    """Finished steps in which anything was scored."""
    sums: str = ""
    """How gradients are added, "exact" or "fast": a run goes on as it was begun."""
    products: str = ""
    """The library of float32 products on a CPU, "mkl" or "onednn" (ops/products.py); "": on another device."""
    threads: int = 0
    """Of each process when the run was saved: another number rounds differently."""
    stopped: str = ""
    """Why the run ends with the step that was finished last, before its last one; "": it does not."""


RECORDED = tuple(one.name for one in fields(Record))


class Save(NamedTuple):
    """What saving once cost."""

    seconds: float
    """In which nothing else was done."""
    size: int
    """Bytes; 0 where there was nothing new to write."""


@dataclass(kw_only=True)
class TrainState(Record):
    optimizer: Optimizer
    components: dict[str, Component] = field(default_factory=dict)
    """The rest of what a checkpoint holds, by name; see `attach`."""
    found: dict[str, tuple[dict[str, Tensor], dict[str, Any]]] = field(default_factory=dict)
    """State of components that the checkpoint held and that are not attached yet."""
    batch: Batch | None = None
    update_metrics: list[dict[str, float]] = field(default_factory=list)
    """One entry per optimizer step already taken on the unfinished batch."""
    trace: TokenTrace = field(default_factory=TokenTrace)
    """What these showed of single tokens, where they are written down."""
    # -- of this process alone; no part of a checkpoint ------------------------------------------------------------------
    constant_metrics: dict[str, float] = field(default_factory=dict)
    """Written into the row of every step: what the last fit of the reward model measured."""
    updates_checked: int = 0
    """How often engine, trainer and reference were found to be the same policy."""
    idle_said: bool = False
    """Whether it was said that there are more ranks than micro-batches."""
    quiet_until: int = 0
    """Step before which nothing more is said about a batch that could not be filled."""
    stops_because: str = ""
    """What the row of the step says of going on; it counts once the step is finished."""
    saves: list[Save] = field(default_factory=list)
    """Every time that this process has saved, the last one included, which no row comes after."""
    watch: Stopwatch | None = None
    """Of the step whose row was written last. Saving comes after a row, so its seconds stand in the row of the next step."""

    @property
    def policy_version(self) -> int:
        return self.optimizer.updates if self.phase == "train" else 0

    def attach(self, name: str, component: Component) -> None:
        """Save this component from now on; if the run was resumed, give it the state it had."""
        self.components[name] = component
        if name in self.found:
            component.load_state(*self.found.pop(name))

    def detach(self, name: str) -> None:
        """Save this component no more: its work is done."""
        del self.components[name]

    def remaining_steps(self, until: int) -> Iterator[int]:
        """The steps that are left, one after the other: none more once the run has been told to stop."""
        with freeze_objects():
            while self.step < until and not self.stopped:
                yield self.step + 1

    def begin_batch(self, batch: Batch) -> None:
        self.batch, self.update_metrics, self.trace = batch, [], TokenTrace()

    def remaining_minibatches(self) -> Iterator[Examples]:
        """The examples of each optimizer step that this step still owes."""
        assert self.batch is not None
        for members in self.batch.plan[len(self.update_metrics) :]:
            yield self.batch.examples.select(members)

    @property
    def layouts(self) -> Layouts:
        assert self.batch is not None
        return self.batch.layouts

    def update(self, meter: UpdateMeter, minibatch: Minibatch, critic: Critic | NoCritic) -> None:
        """One optimizer step, and its metrics, with no moment in between at which only one of the two is done."""
        with defer_interrupts():
            probe = self.optimizer.weights.probe() if self.policy_version == 0 else None
            critic.join()  # what other ranks take part in comes before the first change: it can fail
            report = self.optimizer.clip_and_step(tokens_counted=minibatch.completions > 0)
            row = meter.metrics(report, minibatch) | critic.step()
            if probe is not None and report.grad_norm > 0:  # an update lost to rounding would otherwise go unnoticed
                row["optim/weight_change"] = self.optimizer.weights.measure_change(probe)
            self.update_metrics.append(row)
            if meter.keeps_tokens:
                self._note_tokens(meter, minibatch)
        self.optimizer.check_finite()
        critic.check_finite()

    def _note_tokens(self, meter: UpdateMeter, minibatch: Minibatch) -> None:
        assert self.batch is not None
        update = len(self.update_metrics)
        members = self.batch.examples.select(self.batch.plan[update - 1])
        self.trace.note_update(update, members, minibatch.weights_N, meter.measured.values())

    def finish_step(self) -> None:
        assert self.batch is not None
        with defer_interrupts():
            self.step += 1
            self.cursor += self.batch.prompts_taken
            self.scored_steps += self.batch.any_scored
            self.stopped, self.stops_because = self.stops_because, ""
            self.batch, self.update_metrics, self.trace = None, [], TokenTrace()

    @property
    def checkpoint_name(self) -> str:
        if self.phase == "cold_start":
            return f"cold-{self.cold_steps}"
        inside = self.update_metrics or self.fitted_at == self.step
        name = f"step-{self.step}.{len(self.update_metrics)}" if inside else f"step-{self.step}"
        # A name fixes a state, and without an update the step before has this one already.
        return f"{name}-batch" if self._saves_batch and not self.update_metrics else name

    @property
    def _saves_batch(self) -> bool:
        """A keyed batch without updates is not saved: it comes out the same when it is collected again."""
        return self.batch is not None and (bool(self.update_metrics) or not self.batch.keyed)

    def save(self, root: Path) -> Path:
        return checkpoint.save(root, self.checkpoint_name, self.make_snapshot())

    def make_snapshot(self) -> checkpoint.Snapshot:
        """All that a checkpoint of now holds. Nothing is copied that this process has whole."""
        moments, counters = self.optimizer.state()
        tensors: dict[str, dict[str, Tensor]] = {"weights": self.optimizer.weights.tensors(), "optimizer": moments}
        document: dict[str, Any] = {name: getattr(self, name) for name in RECORDED} | {"optimizer": counters}
        attached = {name: component.state() for name, component in self.components.items()}
        document["components"] = {}
        for name, (parts, counters) in {**self.found, **attached}.items():
            document["components"][name] = counters
            if parts:
                tensors[name] = {part: torch.as_tensor(values) for part, values in parts.items()}
        if self.batch and self._saves_batch:
            tensors["batch"], document["batch"] = encode_batch(self.batch)
            document["update_metrics"] = self.update_metrics
            vectors, document["trace"] = self.trace.encode()
            if vectors:
                tensors["trace"] = vectors
        return checkpoint.Snapshot(tensors, document)

    def restore(self, snapshot: checkpoint.Snapshot, find_prompt: Callable[[int], Prompt]) -> None:
        document = add_missing_fields(snapshot.document)
        for name in RECORDED:
            setattr(self, name, document[name])
        self.optimizer.weights.load(snapshot.tensors["weights"])
        self.optimizer.load_state(snapshot.tensors["optimizer"], document["optimizer"])
        self.found = {name: (dict(snapshot.tensors.get(name, {})), own) for name, own in document["components"].items()}
        if "batch" in document:
            self.batch = decode_batch(dict(snapshot.tensors["batch"]), document["batch"], find_prompt)
            self.update_metrics = list(document["update_metrics"])
        if "trace" in document:
            self.trace = TokenTrace.decode(snapshot.tensors.get("trace", {}), document["trace"])


ADDED_FIELDS: dict[str, dict[str, Any]] = {
    "": {
        "base_digest": "",
        "evaluation_digests": None,
        "files": {},
        "recipe": {},
        "baseline": {},
        "best_score": [],
        "scored_steps": 1,
        "stopped": "",
        "sums": "fast",
        "products": "mkl",
        "threads": 0,
    },
}
"""Fields that checkpoints on disk may lack, by the path of the record in state.json that they belong to ("": the document itself,
"batch.rollouts.*": every rollout of the batch), and the value that says what was the case before they were written down."""


def add_missing_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a checkpoint of any age with every field, so that nothing behind this asks how old it is."""
    whole: dict[str, Any] = copy.deepcopy(dict(document))
    for pattern, defaults in ADDED_FIELDS.items():
        for _, record in reach(whole, pattern.split(".") if pattern else []):
            record.update(copy.deepcopy(defaults) | record)
    return whole


def encode_batch(batch: Batch) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Token-sized data as tensors, the rest as JSON."""
    tensors, rows = encode_rollouts(batch.rollouts)
    for name in VECTORS if batch.examples else ():
        if (values_C := getattr(batch.examples, f"{name}_C")) is not None:
            tensors[f"{name}_T"] = values_C.clone()  # two names of one tensor are no file
    document = {
        "rollouts": rows,
        "examples": batch.examples.rollout_N,
        "advantages": batch.advantages_N,
        "plan": batch.plan,
        "metrics": batch.metrics,
        "prompts_taken": batch.prompts_taken,
        "verdicts": [[prompt, *counts] for prompt, counts in batch.verdicts.items()],
        "keyed": batch.keyed,
    }
    return tensors, document


def decode_batch(tensors: dict[str, Tensor], document: dict[str, Any], find_prompt: Callable[[int], Prompt]) -> Batch:
    rollouts = decode_rollouts(tensors, document["rollouts"], find_prompt)
    names = [f"{name}_T" for name in VECTORS if f"{name}_T" in tensors]
    examples, offset = [], 0
    for index in document["examples"]:
        prompt, completion = rollouts[index].prompt, rollouts[index].completion
        span = slice(offset, offset + len(completion.token_ids))
        offset += len(completion.token_ids)
        vectors: dict[str, Any] = {name: tensors[name][span] for name in names}
        examples.append(Example(index, rollouts[index].group, prompt.token_ids, completion.token_ids, **vectors))
    plain = {name: document[name] for name in ("plan", "metrics", "prompts_taken")}
    verdicts = {prompt: (right, judged) for prompt, right, judged in document["verdicts"]}
    keyed = document.get("keyed", True)
    return Batch(rollouts, document["advantages"], join_examples(examples), verdicts=verdicts, keyed=keyed, **plain)
