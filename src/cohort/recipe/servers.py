"""Addresses of servers, as a recipe lists them: each one like http://host:8000, or @FILE with one a line. No torch.

A file is read when a run begins or goes on, and not with the recipe: the servers may be elsewhere by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cohort.base.http import Endpoint

if TYPE_CHECKING:
    from cohort.recipe.schema import Recipe

EXAMPLE = "http://10.0.0.5:8000"
MOST_SERVERS = 4096
MOST_BYTES = 1 << 20


def check_entries(given: Sequence[str]) -> None:
    """Raises ValueError for what is neither an address nor a file's name."""
    for entry in given:
        if entry in ("", "@"):
            raise ValueError(f"an entry is empty; each is an address like {EXAMPLE}, or @FILE.")
        if not entry.startswith("@"):
            write_address(entry)


def read_servers(given: Sequence[str]) -> list[str]:
    """The addresses, files read, in the form in which they are compared and called. Raises ValueError."""
    listed: list[str] = []
    for entry in given:
        listed += read_list(entry[1:]) if entry.startswith("@") else [entry]
    addresses = [write_address(entry) for entry in listed]
    if twice := next((address for address in addresses if addresses.count(address) > 1), ""):
        raise ValueError(f"{twice} is named twice; a server is one server.")
    if len(addresses) > MOST_SERVERS:
        raise ValueError(f"{len(addresses)} servers are named; at most {MOST_SERVERS} are accepted.")
    return addresses


def count_longest_rollout(recipe: Recipe) -> int:
    """Tokens that a prompt and its completion may have, in training and in evaluation."""
    prompts = [recipe.prompts, *recipe.evaluation.sets.values()]
    completion = max(recipe.sampling.max_completion_tokens, recipe.evaluation.max_completion_tokens)
    return max(config.max_prompt_tokens for config in prompts) + completion


def read_list(file: str) -> list[str]:
    """The lines of a file that are addresses: neither empty nor a comment (#)."""
    try:
        with Path(file).open(encoding="utf-8") as opened:
            text = opened.read(MOST_BYTES)
    except (OSError, UnicodeDecodeError) as problem:
        raise ValueError(
            f"@{file}: it cannot be read ({problem}); name a file with one address a line, like {EXAMPLE}."
        ) from None
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    if not any(lines):
        raise ValueError(f"@{file}: it holds no address; write one a line, like {EXAMPLE}.")
    return [line for line in lines if line]


def write_address(entry: str) -> str:
    """http://host:port, without anything behind it."""
    endpoint = parse_address(entry)
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{'https' if endpoint.tls else 'http'}://{host}:{endpoint.port}"


def parse_address(entry: str) -> Endpoint:
    endpoint = Endpoint.parse(entry, "", key_word="no key, for the routes of weights take none", example=EXAMPLE)
    if endpoint.path:
        raise ValueError(f"{entry!r} goes on after the port; a server is named like {EXAMPLE}.")
    return endpoint
