"""`cohort bench`: its words; the work is done in cohort.tools.bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def bench(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SHAPE_OR_RECIPE KEY=VALUE",
            help="tiny, 0.5b, 1.5b, 7b, or a recipe; then words of the recipe that is measured.",
        ),
    ] = None,
    prompts: Annotated[
        int | None, typer.Option(min=1, help="Prompts of a step; a recipe's own, else 16 on a CPU, 32 on a GPU.")
    ] = None,
    group: Annotated[int | None, typer.Option(min=1, help="Completions per prompt; a recipe's own, else 8.")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of a prompt; 16 on a CPU, 128 on a GPU.")] = None,
    new: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a completion, at most; a recipe's own, else 64 on a CPU, 512 on a GPU."),
    ] = None,
    lengths: Annotated[
        str, typer.Option(help="fixed: all of them that long. ragged: log-normal, the same for every engine.")
    ] = "fixed",
    stages: Annotated[str, typer.Option(help="Some of rollout,train,step; all unless named.")] = "",
    peers: Annotated[str, typer.Option(help="auto, none, or some of hf_generate,vllm,trl,trl_vllm.")] = "auto",
    vllm_python: Annotated[str, typer.Option(help="Interpreter of another environment that has vLLM.")] = "",
    repeats: Annotated[int, typer.Option(min=1, help="Turns that count; one before them warms up.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Measure all engines so often, in turn; more on a noisy machine.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda; by the machine unless named.")] = "",
    out: Annotated[Path | None, typer.Option(help="Write the result as JSON.")] = None,
) -> None:
    """Measure this machine: rollouts, training and a whole step.

    \b
    cohort bench                                   what suits the machine
    cohort bench 1.5b --stages rollout --new 512   one stage, Qwen2.5's shape
    cohort bench --lengths ragged                  completions of many lengths
    cohort bench 7b model.lora.rank=16             words of the recipe
    cohort bench my.toml                           the sizes of a recipe

    Weights are random: 4.4 M parameters on a CPU, 0.5 B on a GPU unless named. Beside it stand HF generate, TRL and vLLM where installed. How to read the figures, and what the JSON holds: docs/speed.md.
    """
    from cohort.tools.bench.command import Options, run_bench

    options = Options(
        prompts, group, prompt_tokens, new, lengths, stages, peers, vllm_python, repeats, rounds, device, out,
    )  # fmt: skip
    run_bench(words or [], options, typer.echo)
