"""`cohort serve`: its words; the work is done in cohort.tools.serve."""

from __future__ import annotations

from typing import Annotated

import typer

from cohort.tools.commands.options import complete_recipe_words


def serve(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE KEY=VALUE [-- FLAGS]",
            help="A recipe as for train, or a run folder; after -- flags of vLLM itself.",
            autocompletion=complete_recipe_words,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on; without one this machine alone is heard.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 8000,
    public: Annotated[
        bool, typer.Option("--public", help="Listen where strangers may come by: 0.0.0.0, ::, or an address of the internet.")
    ] = False,
    python: Annotated[
        str,
        typer.Option(metavar="PATH", help="The Python that has vLLM; else this one, or the one that `make vllm` makes here."),
    ] = "",
    print_only: Annotated[bool, typer.Option("--print", help="Print the command, and start nothing.")] = False,
) -> None:
    """Serve a recipe's model with vLLM, for runs that sample there.

    \b
    cohort serve my.toml                         on 127.0.0.1:8000
    cohort serve my.toml --print                 what would be run, as a script
    cohort serve my.toml --host 10.0.0.5         for trainers on other hosts
    CUDA_VISIBLE_DEVICES=4,5 cohort serve my.toml -- --tensor-parallel-size 2
    cohort train my.toml sampling.servers=http://127.0.0.1:8000

    It prints the command, and becomes the server. A server has no authentication: whoever reaches it can read and replace the model. Private networks only.
    """
    from cohort.tools.serve import run_serve

    run_serve(words or [], host, port, public, python, print_only)
