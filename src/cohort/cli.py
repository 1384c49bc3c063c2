"""The command line. Each command imports what it needs when it runs: `--help` never loads torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="cohort",
    help="GRPO for language models with verifiable rewards. Start with: cohort train",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

EXIT_INTERRUPTED = 130


@contextmanager
def plain_errors() -> Iterator[None]:
    """Errors made for people are printed as they are; a traceback is for bugs."""
    from cohort.base.text import printable
    from cohort.errors import CohortError

    try:
        yield
    except CohortError as problem:
        message = str(problem)
    except OSError as problem:  # a full disk, a folder that cannot be written: nobody's bug
        message = f"{problem.strerror or problem}{f': {problem.filename}' if problem.filename else ''}"
    else:
        return
    typer.echo(f"error: {printable(message)}", err=True)  # it may quote what a model wrote, and a terminal would obey
    raise typer.Exit(1)


@app.command()
def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="RECIPE KEY=VALUE", help="A recipe file or built-in name, then overrides."),
    ] = None,
) -> None:
    """Train. Without a recipe: the built-in demo, on a CPU, with nothing downloaded.

    \b
    cohort train                                    the demo
    cohort train group_size=4 num_steps=50          the demo with other words
    cohort train gsm8k_qwen model=path/to/a/model   a built-in recipe (see: cohort recipes)
    cohort train my.toml seed=1 name=second         a recipe of your own (all words: docs/recipe.md)
    """
    with plain_errors():
        from cohort.recipe.built_in import find_recipe, split_words
        from cohort.session import start

        recipe, overrides = split_words(words or [])
        finish(start(find_recipe(recipe, overrides)).status)


@app.command()
def resume(run: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Go on with an interrupted run, exactly where it was."""
    with plain_errors():
        from cohort.observe.run_folder import RunFolder
        from cohort.session import resume as resume_run

        result = resume_run(run)
        if result.status == "finished":
            typer.echo(f"{run} is finished: {result.folder / 'report.html'}")
            if advice := RunFolder.open(run).ignored_edit(result.summary):
                typer.echo(advice)
        finish(result.status)


@app.command()
def evaluate(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="RUN_OR_MODEL...", help="Run folders, model folders or hub ids; several are compared in pairs."),
    ],
    recipe: Annotated[str, typer.Option(help="Recipe that names prompts and rewards; a run brings its own.")] = "",
    checkpoint: Annotated[str, typer.Option(help="For runs: final, start, best, or a checkpoint such as step-100.")] = "final",
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override of the recipe, key=value; may be repeated.")] = None,
    output: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON.")] = None,
) -> None:
    """Held-out pass@k, maj@k and greedy, with intervals.

    Several targets are compared in pairs, problem by problem, on the problems of the first.
    """
    with plain_errors():
        from cohort.tools.evaluate import run_evaluation

        run_evaluation(targets, recipe, checkpoint, set_ or [], output)


@app.command()
def compare(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[LABEL=]CONTENDER... KEY=VALUE",
            help="Algorithms (grpo, dpo:data=start), recipe files or built-in recipes; then overrides for all of them.",
        ),
    ],
    recipe: Annotated[str, typer.Option(help="The recipe that algorithms are put into; without it: the demo.")] = "",
    seeds: Annotated[str, typer.Option(help="Seeds, with commas; every contender is run with each.")] = "0",
    jobs: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the comparison; runs/compare-TIME unless named. Named again, it goes on.")
    ] = None,
) -> None:
    """Run several algorithms or recipes with the same budget, seeds and start, and compare them.

    \b
    cohort compare grpo dr_grpo dapo                                the demo with each algorithm
    cohort compare grpo ppo --recipe my.toml --seeds 0,1,2 --jobs 2 num_steps=60
    cohort compare grpo loose=grpo:kl_coef=0 dpo:data=start         choices of one contender after a colon
    cohort compare first=a.toml second=b.toml                       recipes of your own
    """
    with plain_errors():
        from cohort.tools.compare import run_compare

        status = run_compare(words, recipe, seeds, jobs, output)
        if status == "failed":
            raise typer.Exit(1)
        finish(status)


@app.command()
def algorithms(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="One: all its choices. Several: what differs.")
    ] = None,
) -> None:
    """List the algorithms and the choices they are made of."""
    with plain_errors():
        from cohort.recipe.choices import print_algorithms

        print_algorithms(names or [])


@app.command()
def doctor(
    words: Annotated[list[str] | None, typer.Argument(metavar="RECIPE KEY=VALUE", help="As for train.")] = None,
) -> None:
    """Look a recipe over before a night is spent on it.

    Golds and shuffled golds, sampling, lengths, truncation, success rate, memory, and the invariants of step 1.
    """
    with plain_errors():
        from cohort.recipe.built_in import find_recipe, split_words
        from cohort.tools.doctor import run_doctor

        recipe, overrides = split_words(words or [])
        if not run_doctor(find_recipe(recipe, overrides)):
            raise typer.Exit(1)


@app.command()
def audit(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="REWARD KEY=VALUE", help="A built-in reward, package.module:function or a recipe; then arguments."
        ),
    ],
    rows: Annotated[str, typer.Option(help="Rows to audit with: a file, or anything that prompts.source takes.")] = "",
    gold: Annotated[str, typer.Option(help="Column with the gold answer; `answer` unless named.")] = "",
    prompt: Annotated[str, typer.Option(help="Column with the prompt; `prompt` unless named.")] = "",
    column: Annotated[
        list[str] | None, typer.Option(help="PARAMETER=COLUMN: feed a parameter from another column; may be repeated.")
    ] = None,
    template: Annotated[str, typer.Option(help="A form of completion that the reward reads, with {answer} in it.")] = "",
    kind: Annotated[str, typer.Option(help="math, exact, code or shape; without it: by the reward and its rows.")] = "",
    shape: Annotated[bool, typer.Option("--shape", help="It judges the shape alone and reads no gold.")] = False,
    threshold: Annotated[float | None, typer.Option(help="A score from here on is a success; 0.5 unless known.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds that one completion may take; 10 unless named.")] = None,
    limit: Annotated[int | None, typer.Option(help="Rows that are used; 8 of your own unless named.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write what was found as JSON.")] = None,
) -> None:
    """Attack a reward function before a policy does.

    \b
    cohort audit math_answer                                        a built-in reward, with rows that ship with it
    cohort audit my_rewards:correct --rows data.jsonl --gold answer your own, with your rows
    cohort audit my.toml                                            every reward of a recipe

    Exit code 0: nothing found, 1: flaws found, 2: could not audit.
    """
    from cohort.tools.audit.command import run_audit

    code = run_audit(
        words,
        rows=rows,
        gold=gold,
        prompt=prompt,
        columns=column or [],
        template=template,
        kind=kind,
        shape=shape,
        threshold=threshold,
        timeout_s=timeout,
        limit=limit,
        json_file=json_file,
    )
    if code:
        raise typer.Exit(code)


@app.command()
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
    with plain_errors():
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


@app.command()
def report(run: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Write a run's report.html, finished or not."""
    with plain_errors():
        from cohort.observe.report import write_report
        from cohort.observe.run_folder import RunFolder

        typer.echo(str(write_report(RunFolder.open(run).root)))


@app.command()
def recipes() -> None:
    """List the built-in recipes."""
    from cohort.recipe.built_in import built_in

    for name, first_line in built_in().items():
        typer.echo(f"{name:24} {first_line}")


def finish(status: str) -> None:
    if status == "interrupted":
        raise typer.Exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    app()
