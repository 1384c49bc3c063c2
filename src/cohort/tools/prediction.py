"""The table of `cohort doctor --ranks`: memory of a rank, seconds and tokens of a step, for several numbers of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cohort.base.text import write_rate
from cohort.observe.perf import Costs, Row
from cohort.observe.scaling import (
    CPU_STEP_ROWS,
    LOOPBACK,
    NVLINK,
    RANKS_PER_HOST,
    Link,
    Work,
    choose_link,
    count_step_rows,
    estimate_seconds,
    predict_step,
    read_sharing,
    read_work,
)

if TYPE_CHECKING:
    from cohort.training.build import EncodedData
    from cohort.training.run import Run

HEADS = ("ranks", "most goes into", "s a step", "tokens/s", "a rank", "GiB a rank")
GIB = 2.0**30


@dataclass(frozen=True)
class Table:
    rows: Sequence[tuple[str, ...]]
    sources: list[str]
    """Sentences on where the figures come from."""


def list_ranks(most: int) -> list[int]:
    """1, 2, 4 and so on, and the number that was asked for."""
    return sorted({2**power for power in range(most.bit_length())} | {most})


def predict_ranks(
    parts: Run, encoded: EncodedData, rows: Sequence[Row], ranks: int, network_gbit: float, measured: Link | None = None
) -> Table:
    """For up to `ranks` of them. rows: those of a run on one rank; without them seconds are of the cost model.

    measured: the link between the ranks that are asking, where several are.
    """
    on_gpu = parts.policy.device.type == "cuda"
    inside = measured or (NVLINK if on_gpu else LOOPBACK)
    memory = estimate_memories(parts, encoded, list_ranks(ranks))
    work, source = make_work(parts, encoded, rows)
    if work is None:
        return Table([(str(count), "", "", "", "", f"{size / GIB:.1f}") for count, size in memory.items()], [source])
    table = []
    for count, size in memory.items():
        link = measured or choose_link(count, inside, network_gbit)
        step = predict_step(work, count, link)
        rates = (write_rate(step.tokens_per_second), write_rate(step.tokens_per_second / count))
        table.append((str(count), step.bound, f"{step.step:.3g}", *rates, f"{size / GIB:.1f}"))
    return Table(table, [source, describe_link(inside, measured is not None, on_gpu, ranks, network_gbit)])


def describe_link(inside: Link, is_measured: bool, on_gpu: bool, ranks: int, network_gbit: float) -> str:
    if is_measured:
        return f"Between ranks {inside.bandwidth / 1e9:.3g} GB/s and {inside.latency * 1e3:.2g} ms, as measured just now."
    what = "NVLink by its data sheet" if on_gpu else "processes of one host"
    text = f"Between ranks {inside.bandwidth / 1e9:.3g} GB/s ({what}; not measured)"
    if ranks > RANKS_PER_HOST:
        text += f", between hosts of {RANKS_PER_HOST} {network_gbit:g} Gbit/s (--gbit)"
    return f"{text}. `torchrun ... -m cohort doctor RECIPE` measures it."


def estimate_memories(parts: Run, encoded: EncodedData, numbers: Iterable[int]) -> dict[int, float]:
    """Ranks -> bytes of each at its peak."""
    from cohort.training.preflight import check_teacher, estimate_rank

    _, teacher = check_teacher(parts, encoded)
    return {ranks: estimate_rank(parts, encoded, teacher, ranks).peak for ranks in numbers}


def make_work(parts: Run, encoded: EncodedData, rows: Sequence[Row]) -> tuple[Work | None, str]:
    """(a step on one rank, where its seconds come from); None where nobody can tell."""
    import torch

    from cohort.training.memory_estimate import read_run_numbers

    recipe, policy = parts.recipe, parts.policy
    run = read_run_numbers(parts, encoded)
    device = policy.device
    trained = sum(value.numel() for value in policy.model.parameters() if value.requires_grad)
    frozen = 2 * trained < policy.num_parameters
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    config = policy.model.config.get_text_config()
    costs = Costs.of(config, name, frozen)
    longest_prompt = run.longest - parts.sampling.max_completion_tokens
    known: dict[str, Any] = {
        **read_sharing(recipe),
        "trained": trained,
        "parameters": policy.num_parameters,
        "element": run.element,
        "exact": run.exact,
        "overlaps": device.type == "cuda",
        "units": config.num_hidden_layers + 2,
        "step_rows": CPU_STEP_ROWS,
    }
    if costs:
        known["step_rows"] = count_step_rows(costs.dimensions, costs.accelerator, run.longest / 2, run.element)
    length = parts.sampling.max_completion_tokens
    completions = recipe.train.prompts_per_step * recipe.train.group_size
    known["micro_batches"] = recipe.train.passes_per_step * -(
        -completions // max(1, recipe.train.micro_batch_tokens // run.longest)
    )
    work = read_work(rows, **known)
    if work:
        return work, f"Seconds of one rank: the median step of {len(rows)} that the run has measured."
    if not costs:
        return None, (
            "Seconds are not predicted: nothing was measured, and the rates of this device are not known. A few steps tell: "
            "`cohort train RECIPE num_steps=5`, then `cohort doctor RUN_FOLDER --ranks N`."
        )
    seconds = estimate_seconds(
        costs.dimensions,
        costs.accelerator,
        prompt_tokens=longest_prompt,
        length=length,
        prompts=recipe.train.prompts_per_step,
        group=recipe.train.group_size,
        slots=run.slots,
        micro_batches=known["micro_batches"],
        trained=trained,
        passes=recipe.train.passes_per_step,
        scoring=list_scoring(run, known),
        frozen_base=frozen,
        modules=not run.own_kernels,
    )
    steps = float(length * -(-completions // max(1, run.slots)))
    known |= {"tokens": float(completions * length), "longest": float(length), "decode_steps": steps}
    return Work(seconds=seconds, **known), (
        "Seconds of one rank: by the cost model, for prompts and completions of the largest length and without rewards. A few steps tell "
        "more: `cohort train RECIPE num_steps=5`, then `cohort doctor RUN_FOLDER --ranks N`."
    )


def list_scoring(run: Any, known: Mapping[str, Any]) -> list[str]:
    """The stages of a step that run the policy, or a model of its size, forwards alone."""
    asked = {"old": known["updates"] > 1, "reference": run.reference, "critic": run.critic}
    return [stage for stage, runs in asked.items() if runs]
