"""The training state that a checkpoint saves, and how it is saved and restored.

The state is small because most of a run follows from keys: prompts from the cursor, noise from the step, minibatches from the seed and
the step. It holds only what cannot be derived: weights, optimizer, counters, and the batch of an unfinished step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import takewhile
from typing import Any, Protocol

import torch
from torch import Tensor

from cohort.base.interrupts import defer_interrupts
from cohort.base.processes import freeze_objects
from cohort.base.stopwatch import Stopwatch
from cohort.model.critic import Critic, NoCritic
from cohort.model.examples import VECTORS, Example, Examples, join_examples
from cohort.model.optim import Optimizer
from cohort.model.packing import Layouts, Minibatch
from cohort.training import checkpoint
from cohort.training.rollouts import decode_rollouts, encode_rollouts
from cohort.training.saver import Saver
from cohort.training.trace import TokenTrace
from cohort.training.updates import UpdateMeter
from cohort.types import Prompt, Rollout


@dataclass(frozen=True)
class Batch:
    """What a step collected and trains on."""

    rollouts: list[Rollout]
    advantages_N: list[float]
    examples: Examples
    plan: list[list[int]]
    """Example indices of each optimizer step."""
    metrics: dict[str, float]
    """Metrics of collecting and crediting the rollouts."""
    prompts_taken: int
    """Prompts that the step took from the stream, trained on or not."""
    verdicts: dict[int, tuple[int, int]]
    """Prompt index -> (successes, verdicts), for all groups drawn."""
    keyed: bool = True
    """Whether collecting again would return the same batch; otherwise it is saved even before its first update."""
    layouts: Layouts = field(default_factory=Layouts, compare=False, repr=False)
    """Cached layouts of minibatches. Not saved: they follow from the examples."""


class Component(Protocol):
    """A stateful component that a checkpoint saves besides the policy: critic, moving reference, choice of prompts, reward model."""

    def state(self) -> tuple[Mapping[str, Any], dict[str, Any]]:
        """(tensors or numpy arrays by name, JSON)."""
        ...

    def load_state(self, tensors: Mapping[str, Any], document: Mapping[str, Any], /) -> None: ...


@dataclass(kw_only=True)
class TrainState:
    """Weights, optimizer, counters and batch of a run. state.json holds the fields before `optimizer`."""

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
    """Measure of the best checkpoint, and its reward, which decides ties."""
    slots: int = 0
    """Completions decoded in parallel. Chosen once: another number could flip near-ties after a resume."""
    data_digest: str = ""
    """Digest of the prompts and demonstrations, which must not change within a run."""
    base_digest: str = ""
    """With LoRA, digest of the frozen base, which no checkpoint holds and which must not change within a run."""
    start_digest: str = ""
    """Digest of the starting weights, if the reference needs them again."""
    evaluation_digests: dict[str, str] = field(default_factory=dict)
    """Digests of the problems of each evaluation set."""
    files: dict[str, dict[str, str]] = field(default_factory=dict)
    """Recipe key (`model.source`) -> digests of the files that a resume reads again; see resume_checks.py."""
    recipe: dict[str, Any] = field(default_factory=dict)
    """The recipe when the state was saved, so that a resume can report edits."""
    baseline: dict[str, Any] = field(default_factory=dict)
    """The evaluation before training, which cannot be repeated later."""
    kl_coef: float = 0.0
    """Current weight of the KL; a target KL changes it."""
    iteration: int = 0
    """Finished fits of the reward model."""
    fitted_at: int = -1
    """Step after which the last fit was made."""
    scored_steps: int = 0
    """Finished steps with at least one score."""
    sums: str = ""
    """How gradients are summed, "exact" or "fast"; constant within a run."""
    products: str = ""
    """The library of float32 products on a CPU, "mkl" or "onednn" (ops/products.py); "": on another device."""
    threads: int = 0
    """Threads per process when the state was saved; another number rounds differently."""
    stopped: str = ""
    """Why the run ends early, after the last finished step; "": it continues."""
    optimizer: Optimizer
    components: dict[str, Component] = field(default_factory=dict)
    """Other saved components by name; see `attach`."""
    unattached: dict[str, tuple[dict[str, Tensor], dict[str, Any]]] = field(default_factory=dict)
    """State from the checkpoint of components that are not attached yet."""
    batch: Batch | None = None
    update_metrics: list[dict[str, float]] = field(default_factory=list)
    """Metrics of each optimizer step already taken on the unfinished batch."""
    trace: TokenTrace = field(default_factory=TokenTrace)
    """Token values of these optimizer steps, if they are recorded."""
    # -- of this process; not saved ---------------------------------------------------------------------------------------
    constant_metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the last reward-model fit, repeated in the row of every step."""
    updates_checked: int = 0
    """Number of updates before which engine, trainer and reference were found to be the same policy."""
    warned_of_idle_ranks: bool = False
    quiet_until: int = 0
    """Step before which no further message about an incomplete batch is printed."""
    stop_reason: str = ""
    """Becomes `stopped` when the step is finished."""
    saver: Saver = field(default_factory=Saver)
    watch: Stopwatch | None = None
    """The stopwatch of the last recorded step. Saving comes after its row, so its seconds count in the row of the next step."""

    @property
    def policy_version(self) -> int:
        return self.optimizer.updates if self.phase == "train" else 0

    def attach(self, name: str, component: Component) -> None:
        """Save this component from now on, and restore its state if the run was resumed."""
        self.components[name] = component
        if name in self.unattached:
            component.load_state(*self.unattached.pop(name))

    def remaining_steps(self, until: int) -> Iterator[int]:
        """Numbers of the remaining steps; ends when the run is to stop."""
        with freeze_objects():
            while self.step < until and not self.stopped:
                yield self.step + 1

    def begin_batch(self, batch: Batch) -> None:
        self.batch, self.update_metrics, self.trace = batch, [], TokenTrace()

    def remaining_minibatches(self) -> Iterator[Examples]:
        """The examples of each remaining optimizer step of this step."""
        assert self.batch is not None
        for members in self.batch.plan[len(self.update_metrics) :]:
            yield self.batch.examples.select(members)

    @property
    def layouts(self) -> Layouts:
        assert self.batch is not None
        return self.batch.layouts

    def update(self, meter: UpdateMeter, minibatch: Minibatch, critic: Critic | NoCritic) -> None:
        """Take one optimizer step and record its metrics, without interruption in between."""
        with defer_interrupts():
            probe = self.optimizer.weights.probe() if self.policy_version == 0 else None
            critic.join()  # involves other ranks and can fail, so it comes before the first change
            report = self.optimizer.clip_and_step(tokens_counted=minibatch.completions > 0)
            row = meter.metrics(report, minibatch) | critic.step()
            if probe is not None and report.grad_norm > 0:  # an update that rounding cancels would otherwise go unnoticed
                row["optim/weight_change"] = self.optimizer.weights.measure_change(probe)
            self.update_metrics.append(row)
            if meter.keeps_tokens:
                assert self.batch is not None
                update = len(self.update_metrics)
                members = self.batch.examples.select(self.batch.plan[update - 1])
                self.trace.note_update(update, members, minibatch.weights_N, meter.measured.values())
        self.optimizer.check_finite()
        critic.check_finite()

    def finish_step(self) -> None:
        assert self.batch is not None
        scores = [rollout.outcome.reward for rollout in self.batch.rollouts]
        verdicts = [count for _, count in self.batch.verdicts.values()]  # including groups that are not trained on
        with defer_interrupts():
            self.step += 1
            self.cursor += self.batch.prompts_taken
            self.scored_steps += any(verdicts) or any(score is not None for score in scores)
            self.stopped, self.stop_reason = self.stop_reason, ""
            self.batch, self.update_metrics, self.trace = None, [], TokenTrace()

    @property
    def checkpoint_name(self) -> str:
        if self.phase == "cold_start":
            return f"cold-{self.cold_steps}"
        inside = self.update_metrics or self.fitted_at == self.step
        name = f"step-{self.step}.{len(self.update_metrics)}" if inside else f"step-{self.step}"
        # A name identifies one state, and the checkpoint of the step before has the name without a suffix.
        return f"{name}-batch" if self._saves_batch and not self.update_metrics else name

    @property
    def _saves_batch(self) -> bool:
        """Whether a checkpoint includes the batch. A keyed batch without updates is collected again instead."""
        return self.batch is not None and (bool(self.update_metrics) or not self.batch.keyed)

    def make_snapshot(self) -> checkpoint.Snapshot:
        """The content of a checkpoint, valid until training continues: tensors that this process holds whole are not copied."""
        moments, counters = self.optimizer.state()
        tensors: dict[str, dict[str, Tensor]] = {"weights": self.optimizer.weights.tensors(), "optimizer": moments}
        document: dict[str, Any] = {name: getattr(self, name) for name in SAVED_FIELDS} | {"optimizer": counters}
        attached = {name: component.state() for name, component in self.components.items()}
        document["components"] = {}
        for name, (parts, counters) in {**self.unattached, **attached}.items():
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
        document = snapshot.document
        for name in SAVED_FIELDS:
            setattr(self, name, document[name])
        self.optimizer.weights.load(snapshot.tensors["weights"])
        self.optimizer.load_state(snapshot.tensors["optimizer"], document["optimizer"])
        self.unattached = {name: (dict(snapshot.tensors.get(name, {})), own) for name, own in document["components"].items()}
        if "batch" in document:
            self.batch = decode_batch(snapshot.tensors["batch"], document["batch"], find_prompt)
            self.update_metrics = list(document["update_metrics"])
            self.trace = TokenTrace.decode(snapshot.tensors.get("trace", {}), document["trace"])


SAVED_FIELDS = tuple(takewhile(lambda name: name != "optimizer", (one.name for one in fields(TrainState))))


def encode_batch(batch: Batch) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors, rows = encode_rollouts(batch.rollouts)
    for name in VECTORS if batch.examples else ():
        if (values_C := getattr(batch.examples, f"{name}_C")) is not None:
            tensors[f"{name}_T"] = values_C.clone()  # safetensors refuses tensors that share memory
    return tensors, {
        "rollouts": rows,
        "examples": batch.examples.rollout_N,
        "advantages": batch.advantages_N,
        "plan": batch.plan,
        "metrics": batch.metrics,
        "prompts_taken": batch.prompts_taken,
        "verdicts": [[prompt, *counts] for prompt, counts in batch.verdicts.items()],
        "keyed": batch.keyed,
    }


def decode_batch(tensors: Mapping[str, Tensor], document: Mapping[str, Any], find_prompt: Callable[[int], Prompt]) -> Batch:
    rollouts = decode_rollouts(tensors, document["rollouts"], find_prompt)
    names = [f"{name}_T" for name in VECTORS if f"{name}_T" in tensors]
    examples, offset = [], 0
    for index in document["examples"]:
        prompt, completion = rollouts[index].prompt, rollouts[index].completion
        span = slice(offset, offset + len(completion.token_ids))
        offset += len(completion.token_ids)
        vectors: dict[str, Any] = {name: tensors[name][span] for name in names}
        examples.append(Example(index, rollouts[index].group, prompt.token_ids, completion.token_ids, **vectors))
    plain = {name: document[name] for name in ("plan", "metrics", "prompts_taken", "keyed")}
    verdicts = {prompt: (right, judged) for prompt, right, judged in document["verdicts"]}
    return Batch(rollouts, document["advantages"], join_examples(examples), verdicts=verdicts, **plain)
