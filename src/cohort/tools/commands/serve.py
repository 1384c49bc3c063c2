"""`cohort serve`."""

from __future__ import annotations

from typing import Annotated

import typer

from cohort.tools.commands.options import Host, complete_recipe_words


def serve(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE KEY=VALUE [-- FLAGS]",
            help="A recipe as for train, or a run folder; after --, flags for vLLM.",
            autocompletion=complete_recipe_words,
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    public: Annotated[
        bool, typer.Option("--public", help="Allow 0.0.0.0, :: and internet addresses, where strangers may reach the server.")
    ] = False,
    python: Annotated[
        str, typer.Option(metavar="PATH", help="Python that has vLLM (default: this one, else that of `make vllm`).")
    ] = "",
    print_only: Annotated[bool, typer.Option("--print", help="Print the command without running it.")] = False,
) -> None:
    """Serve a recipe's model with vLLM, for runs that sample from it.

    \b
    cohort serve my.toml                         on 127.0.0.1:8000
    cohort serve my.toml --print                 print the command as a script
    cohort serve my.toml --host 10.0.0.5         for trainers on other hosts
    CUDA_VISIBLE_DEVICES=4,5 cohort serve my.toml -- --tensor-parallel-size 2
    cohort train my.toml sampling.servers=http://127.0.0.1:8000

    Prints the vLLM command, then replaces itself with it. The server has no authentication: anyone who reaches it can read and replace the model. Use private networks only.
    """
    from cohort.tools.serve import run_serve

    run_serve(arguments or [], host, port, public, python, print_only)
