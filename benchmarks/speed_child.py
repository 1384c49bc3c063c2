"""One stage of ours in its own process: `python speed_child.py JOB.json`.

`Session` builds everything, as in a real run. The differences:

- weights are random and made on the device (speed_shapes.py);
- completions end at their planned length: the engine gets no stop tokens, and a limit per completion;
- `rollout` calls only the engine: prompts in, completions on the host out, including prefill and decoding to text;
- `train` runs the loop on rollouts sampled once: packing, forward, backward, optimizer step;
- `step` runs the ordinary loop, ended after the last step without saving.

The first repetition warms up and is reported separately. Seconds of a step are those of its metrics.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from speed_job import BenchJob

from cohort.base.stopwatch import Stopwatch

TINY_RATE = "optimizer.learning_rate=1e-12"
"""train: repeated training on the same rollouts must not move the policy."""


def main(path: str) -> int:
    job = BenchJob.read(Path(path))
    result = STAGES[job.stage](job)
    job.result_file.write_text(json.dumps(result), encoding="utf-8")
    return 0


# -- building ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_session(job: BenchJob) -> Iterator[Any]:
    """A session with the job's recipe, random weights and planned lengths."""
    from cohort.observe.run_folder import RunFolder
    from cohort.rewards.runner import RewardRunner
    from cohort.session import Session

    recipe = job.make_recipe()
    folder = RunFolder.create(recipe)
    try:
        # Reward workers start first, before torch is imported, as in a run.
        with (
            RewardRunner.for_run(recipe) as rewards,
            use_random_weights(job),
            end_where_planned(job),
        ):
            yield Session(folder, recipe, rewards, None)
    finally:
        folder.unlock()


@contextlib.contextmanager
def replace_attributes(owner: Any, **others: Any) -> Iterator[None]:
    """Replace attributes of a module or class while a stage runs."""
    own = {name: getattr(owner, name) for name in others}
    for name, value in others.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in own.items():
            setattr(owner, name, value)


def use_random_weights(job: BenchJob) -> contextlib.AbstractContextManager[None]:
    """Make the loader return the job's random model instead of reading files."""
    import torch
    from speed_shapes import make_random_model, make_tokenizer

    from cohort.model import loading

    def make(
        source: str, revision: str = "", dtype: Any = torch.float32, *, in_four_bits: bool = False, **options: Any
    ) -> tuple[Any, Any]:
        model = make_random_model(job.model, job.device, dtype, in_four_bits)
        return model, make_tokenizer(job.shape.dimensions.vocabulary)

    return replace_attributes(loading, load_pretrained=make)


def end_where_planned(job: BenchJob) -> contextlib.AbstractContextManager[None]:
    """Make the engine end each completion at its planned length."""
    from cohort.engine.local import LocalEngine

    original: Callable[..., Any] = LocalEngine.generate
    plan = job.workload.plan

    def generate(self: Any, requests: Sequence[Any], sampling: Any, noise: Any) -> Any:
        endless = replace(sampling, stop_ids=())
        if job.workload.lengths == "fixed":
            return original(self, requests, endless, noise)
        limits = [plan[request.draw][request.sample] for request in requests]
        return original(self, requests, endless, noise, limits=limits)

    return replace_attributes(LocalEngine, generate=generate)


def synchronise_device(job: BenchJob) -> None:
    if job.device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()


def time_work(job: BenchJob, work: Callable[[], Any]) -> float:
    """Seconds until the device has finished the work."""
    synchronise_device(job)
    started = time.perf_counter()
    work()
    synchronise_device(job)
    return time.perf_counter() - started


# -- memory ------------------------------------------------------------------------------------------------------------

STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
RESET_PEAK = "5"


@dataclass
class Peak:
    held: int = 0
    """Bytes in use before."""
    growth: int | None = None
    """Peak bytes above those; None if it cannot be measured."""

    def since(self, held: int) -> int | None:
        """Peak bytes above `held`."""
        return None if self.growth is None else max(0, self.held + self.growth - held)


@contextlib.contextmanager
def peak_memory(device: str) -> Iterator[Peak]:
    """Measure the peak memory of a block: of the GPU, or on Linux of the process.

    On a CPU the kernel's high-water mark of the resident set is reset before (`clear_refs`), after the allocator has released free memory.
    The figure is the growth; it is None if the mark cannot be reset.
    """
    peak = Peak()
    gc.collect()
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        peak.held = torch.cuda.memory_allocated()
        yield peak
        torch.cuda.synchronize()
        peak.growth = torch.cuda.max_memory_allocated() - peak.held
        return
    resettable = reset_resident_peak()
    peak.held = resident("VmRSS") if resettable else 0
    yield peak
    if resettable:
        peak.growth = max(0, resident("VmHWM") - peak.held)


def largest_ever(device: str) -> int:
    """Peak bytes of the GPU or the process since it began, or since the last reset."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_resident_peak() -> bool:
    try:
        ctypes.CDLL(None).malloc_trim(0)
        CLEAR.write_text(RESET_PEAK, encoding="ascii")
    except (OSError, AttributeError):  # not Linux, not glibc, or not allowed
        return False
    return True


def resident(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB$", STATUS.read_text(encoding="ascii"), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


# -- rollouts ----------------------------------------------------------------------------------------------------------


def measure_rollout(job: BenchJob) -> dict[str, Any]:
    """The engine, and if requested transformers' `generate`, in turn, so that both see the same noise."""
    from cohort.engine import sample_groups
    from cohort.training.stages import describe_paths
    from cohort.types import NoiseKey

    with open_session(job) as running:
        parts, _, encoded = running.assemble()
        prompts = encoded.train[: job.workload.prompts]

        def sample(turn: int) -> None:
            groups = sample_groups(parts.engine, prompts, parts.sampling, NoiseKey(turn + 1, "train", 1))
            check_planned_lengths(job, groups)

        turns: dict[str, Callable[[int], Any]] = {"cohort": sample}
        if job.hf_generate:
            turns["hf_generate"] = make_hf_generate(job)
        results = take_turns(job, turns)
        results["cohort"]["engine"] = parts.engine.name
        results["cohort"]["paths"] = {"sampling": describe_paths(parts)["sampling"]}
        # An engine without slots decodes all rows at once.
        results["cohort"]["slots"] = min(parts.engine.slots or job.workload.completions, job.workload.completions)
    return results


def measure_hf_generate(job: BenchJob) -> dict[str, Any]:
    """Only transformers' `generate`."""
    return take_turns(job, {"hf_generate": make_hf_generate(job)})


def take_turns(job: BenchJob, turns: dict[str, Callable[[int], Any]]) -> dict[str, dict[str, Any]]:
    """Run the engines in turn, with a warm-up round: seconds of each round, memory of the last one."""
    results: dict[str, dict[str, Any]] = {name: {"seconds": [], "tokens": job.workload.tokens} for name in turns}
    held: dict[str, int] = {}
    for turn in range(job.repeats + 1):
        for name, work in turns.items():
            with peak_memory(job.device) as peak:
                seconds = time_work(job, lambda work=work, turn=turn: work(turn))  # type: ignore[misc]
            if turn == 0:
                results[name]["first_seconds"] = seconds
            else:
                results[name]["seconds"].append(seconds)
            # Memory that an engine keeps between rounds counts as its growth.
            held.setdefault(name, peak.held)
            results[name]["growth_bytes"] = peak.since(held[name])
    return results


def check_planned_lengths(job: BenchJob, groups: Sequence[Sequence[Any]]) -> None:
    found = [[completion.length for completion in group] for group in groups]
    if found != job.workload.plan:
        raise SystemExit(f"the engine sampled {sum(map(sum, found))} tokens instead of the planned {job.workload.tokens}")


def make_hf_generate(job: BenchJob) -> Callable[[int], Any]:
    """`generate` as usually called, without log-probs (in its favour). Finished rows are padded to the longest of the batch; a stopping
    criterion per row ends the call when all rows have their planned length."""
    import torch
    from speed_shapes import make_random_model
    from speed_workload import PAD
    from transformers import StoppingCriteria, StoppingCriteriaList

    dtype = torch.bfloat16 if job.device.startswith("cuda") else torch.float32
    model = make_random_model(job.model, job.device, dtype)
    model.generation_config.eos_token_id = None
    work = job.workload
    prompt_ids = torch.tensor(work.draw_prompt_ids(work.prompts, job.shape.dimensions.vocabulary), device=job.device)
    ids_NT = prompt_ids.repeat_interleave(work.group, 0)
    limits_N = torch.tensor(work.flat_plan, device=job.device)

    class Planned(StoppingCriteria):
        def __init__(self, limits_B: torch.Tensor) -> None:
            self.limits_B = limits_B

        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            return input_ids.shape[1] - work.prompt_tokens >= self.limits_B

    @torch.inference_mode()
    def generate(turn: int) -> list[Any]:
        torch.manual_seed(turn)
        outputs = []
        for ids_BT, limits_B in zip(
            ids_NT.split(job.peer_batch or len(ids_NT)), limits_N.split(job.peer_batch or len(ids_NT)), strict=True
        ):
            criteria = StoppingCriteriaList([Planned(limits_B)] if work.lengths == "ragged" else [])
            output = model.generate(
                ids_BT, attention_mask=torch.ones_like(ids_BT), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                max_new_tokens=int(limits_B.max()), pad_token_id=PAD, stopping_criteria=criteria,
            )  # fmt: skip
            outputs.append(output[:, work.prompt_tokens :].cpu())
        return outputs

    return generate


# -- training ----------------------------------------------------------------------------------------------------------


@dataclass
class LoopRecord:
    """Times and memory of the loop that its metrics do not hold."""

    first_step_after: float = 0.0
    """Seconds from the request for the process to the end of the first step."""
    first_peak: int = 0
    """Peak bytes until the end of the first step."""
    peak: Peak = field(default_factory=Peak)
    """Of the later steps."""
    paths: dict[str, Any] = field(default_factory=dict)
    """The code that sampled and trained (describe_paths)."""


class LoopEnded(BaseException):
    """Ends the run after its last step. Not an Exception: the run would save its state."""


def watch_loop(job: BenchJob, watched: LoopRecord, given_rollouts: bool) -> contextlib.AbstractContextManager[None]:
    """End the run after the last step, with peak memory measured. With `given_rollouts`, every step trains on the first rollouts."""
    # loop_iterative imports `train` by name, so it has to be imported before `train` is replaced.
    from cohort import loop
    from cohort import loop_iterative as iterative  # noqa: F401
    from cohort.training.stages import describe_paths

    train = loop.train

    def training(parts: Any, state: Any, until: int) -> None:
        if given_rollouts:
            methods = {"stream": "take", "scorer": "score", "source": "complete"}
            parts = replace(parts, **{name: RepeatedPart(getattr(parts, name), method) for name, method in methods.items()})
        train(parts, state, 1)
        synchronise_device(job)
        watched.first_step_after = time.time() - job.requested
        watched.first_peak = largest_ever(job.device)
        with peak_memory(job.device) as watched.peak:  # which resets the mark
            train(parts, state, until)
        watched.paths = describe_paths(parts)
        raise LoopEnded

    return replace_attributes(loop, train=training)


class RepeatedPart:
    """A part of the loop whose `method` is called once; later calls return the first result again."""

    def __init__(self, part: Any, method: str) -> None:
        self.part, results = part, []  # type: ignore[var-annotated]

        def repeat(*arguments: Any) -> Any:
            if not results:
                results.append(getattr(part, method)(*arguments))
            elif method == "complete":
                next(one for one in arguments if isinstance(one, Stopwatch)).lap("rollout")
            return results[0]

        setattr(self, method, repeat)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.part, name)


NOT_TRAINING = ("rollout", "reward", "observe", "evaluate", "checkpoint")


def read_stage_seconds(rows: Sequence[dict[str, Any]], leave_out: Sequence[str] = ()) -> dict[str, list[float]]:
    """Stage -> its seconds in each row of metrics."""
    names = {name.removeprefix("time/"): None for row in rows for name in row if name.startswith("time/")}
    return {name: [row.get(f"time/{name}", 0.0) for row in rows] for name in names if name != "step" and name not in leave_out}


def sum_training_seconds(row: dict[str, Any]) -> float:
    """Seconds of a step without sampling, scoring and observing: advantages, packing, passes, the update."""
    return sum(seconds for (seconds,) in read_stage_seconds([row], NOT_TRAINING).values())


def measure_train(job: BenchJob) -> dict[str, Any]:
    job = replace(job, overrides=(*job.overrides, TINY_RATE))
    watched, rows = run_loop(job, given_rollouts=True)
    last, warm = rows[-1], rows[1:]
    padded = last["perf/executed_tokens_per_second"] * last["time/update"]
    return {
        "cohort": {
            "seconds": [sum_training_seconds(row) for row in warm],
            "first_seconds": sum_training_seconds(rows[0]),
            "stages": read_stage_seconds(warm, leave_out=NOT_TRAINING),
            "tokens": int(last["loss/trained_tokens"]),
            "executed_tokens": round(padded * (1 - last.get("perf/padding_share", 0.0))),
            "frozen_base": job.trains_adapters,
            "paths": {"training": watched.paths["training"]},
            **read_memory(job, watched),
        }
    }


def measure_step(job: BenchJob) -> dict[str, Any]:
    watched, rows = run_loop(job, given_rollouts=False)
    return {
        "cohort": {
            "seconds": [row["time/step"] for row in rows[1:]],
            "first_seconds": rows[0]["time/step"],
            "first_step_after": watched.first_step_after,
            "tokens": job.workload.tokens,
            "stages": read_stage_seconds(rows[1:]),
            "frozen_base": job.trains_adapters,
            "paths": watched.paths,
            "mismatch_mean": statistics.median(row.get("rollout/mismatch_mean", 0.0) for row in rows),
            **read_memory(job, watched),
        }
    }


def read_memory(job: BenchJob, watched: LoopRecord) -> dict[str, Any]:
    """The peak covers the whole process including the first step, as for the peers."""
    return {"peak_bytes": max(watched.first_peak, largest_ever(job.device)), "growth_bytes": watched.peak.growth}


def run_loop(job: BenchJob, given_rollouts: bool) -> tuple[LoopRecord, list[dict[str, Any]]]:
    """Run the job's recipe to its last step; returns what was recorded and the rows of metrics."""
    watched = LoopRecord()
    with open_session(job) as running, watch_loop(job, watched, given_rollouts):
        with contextlib.suppress(LoopEnded):
            running.run()
        metrics = running.folder.root / "metrics.jsonl"
        rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    if len(rows) != job.steps:
        raise SystemExit(f"the run ended after {len(rows)} of {job.steps} steps")
    for row in rows:
        if row["rollout/tokens"] != job.workload.tokens:
            raise SystemExit(f"{row['rollout/tokens']} tokens were sampled instead of the planned {job.workload.tokens}")
    return watched, rows


STAGES: dict[str, Callable[[BenchJob], dict[str, Any]]] = {
    "rollout": measure_rollout,
    "hf_generate": measure_hf_generate,
    "train": measure_train,
    "step": measure_step,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
