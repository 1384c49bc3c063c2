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
            help="tiny, 0.5b, 1.5b, 7b, a recipe, or `curves`; then words of the recipe that is measured.",
        ),
    ] = None,
    shape: Annotated[str, typer.Option(help="The same as naming the shape; by the machine unless named.")] = "",
    prompts: Annotated[
        int | None, typer.Option(help="Prompts of a step; a recipe's own, else 16 on a CPU (curves: 8), 32 on a GPU.")
    ] = None,
    group: Annotated[int | None, typer.Option(help="Completions per prompt; a recipe's own, else 8.")] = None,
    prompt_tokens: Annotated[int | None, typer.Option(help="Tokens of a prompt; 16 on a CPU, 128 on a GPU.")] = None,
    new: Annotated[
        int | None,
        typer.Option(
            help="Tokens of a completion, at most; a recipe's own, else 64 on a CPU (curves: 32), 512 on a GPU (curves: 256)."
        ),
    ] = None,
    lengths: Annotated[
        str, typer.Option(help="fixed: all of them that long. ragged: log-normal, the same for every engine.")
    ] = "fixed",
    mean_share: Annotated[
        float | None, typer.Option(help="ragged: mean length as a share of --new; 0.5 on a CPU, 0.4 on a GPU.")
    ] = None,
    silent_every: Annotated[
        int, typer.Option(help="Every N-th group gets one reward for all, so no signal; 0: none does.")
    ] = 0,
    stages: Annotated[str, typer.Option(help="Some of rollout,train,step; all unless named.")] = "",
    peers: Annotated[str, typer.Option(help="auto, none, or some of hf_generate,vllm,trl,trl_vllm.")] = "auto",
    vllm_python: Annotated[str, typer.Option(help="Interpreter of another environment that has vLLM.")] = "",
    repeats: Annotated[int, typer.Option(help="Turns that count; one before them warms up.")] = 3,
    rounds: Annotated[int, typer.Option(help="Measure all engines so often, in turn; more on a noisy machine.")] = 1,
    slots: Annotated[
        int,
        typer.Option(
            help="Completions that ours decodes side by side; 0: the engine chooses (curves: 64 on a CPU, 256 on a GPU)."
        ),
    ] = 0,
    micro_rows: Annotated[
        int | None, typer.Option(help="Rows of one forward-backward, ours and TRL's; 128 on a CPU, 16 on a GPU.")
    ] = None,
    peer_batch: Annotated[int, typer.Option(help="Completions that HF generate is given at once; 0: all.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda; by the machine unless named.")] = "",
    axes: Annotated[str, typer.Option(help="curves: some of group,length,prompts,model,head.")] = "",
    points: Annotated[str, typer.Option(help="curves: other points on one axis, with commas.")] = "",
    out: Annotated[Path | None, typer.Option(help="Write the result as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it as SVG.")] = None,
) -> None:
    """Measure rollouts, training and a whole step on this machine, beside HF generate, TRL and vLLM where installed.

    \b
    cohort bench                                      by the machine: 4.4 M parameters on a CPU, 0.5 B on a GPU
    cohort bench 1.5b --stages rollout --new 512      one stage, Qwen2.5's shape, random weights
    cohort bench --lengths ragged --silent-every 3    completions of many lengths, a third of the groups without signal
    cohort bench 7b model.lora.rank=16                words of the recipe
    cohort bench curves --plot curves.svg             cost against group size, length, prompts, model

    How to read the figures, and what the JSON holds: docs/speed.md.
    """
    from cohort.errors import RecipeError
    from cohort.tools.bench.command import Options, run_bench

    options = Options(
        shape, prompts, group, prompt_tokens, new, lengths, mean_share, silent_every, stages, peers, vllm_python,
        repeats, rounds, slots, micro_rows, peer_batch, device, out, plot,
    )  # fmt: skip
    given = words or []
    if given[:1] == ["curves"]:
        from cohort.tools.bench.curves import run_curves

        run_curves(given[1:], options, axes, points, typer.echo)
    else:
        if axes or points:
            raise RecipeError("--axes and --points are for curves: cohort bench curves --axes length --points 256,1024")
        run_bench(given, options, typer.echo)
