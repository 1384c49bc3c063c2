"""The environments of a run: which one a row belongs to, the seeds of their episodes, their prompts, and where they run."""

from __future__ import annotations

import inspect
import itertools
import json
import queue
import types
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cohort.base.importing import NotImportable, load_function
from cohort.base.keyed import keyed_hash
from cohort.environments.contract import HOOK, LIFE_CYCLE, EnvironmentTraits, ToolSignature, check_annotations, read_traits
from cohort.environments.dialogue import Dialogue, find_format
from cohort.environments.hosts import Host, Message, ThreadHost, WorkerHost
from cohort.environments.tool_calls import Format
from cohort.errors import EnvironmentFailed, PromptError, RecipeError
from cohort.recipe.rules import ENVIRONMENT_REWARD
from cohort.rewards.call import is_plain

if TYPE_CHECKING:
    from cohort.model.chat import ChatCodec
    from cohort.recipe.schema import EnvironmentConfig, PromptsConfig, RewardConfig

COLUMN = "environment"
"""The column that chooses the environment of a row, if there are several."""
SEED = "seed"
PYTHON_PREFIX = "python:"


@dataclass
class Environments:
    """What a recipe's [environment] names. Hosts start with the first episode, and again after `close`."""

    config: EnvironmentConfig
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """The objects behind names of the Python API, such as "python:Game"."""
    hosts: dict[str, list[Host]] = field(default_factory=dict)
    dialogues: dict[bool, Dialogue] = field(default_factory=dict)
    numbers: Any = field(default_factory=itertools.count)

    def load(self, spec: str) -> Any:
        """The class or function of a name. RecipeError with the fix if there is none."""
        if spec in self.functions:
            return self.functions[spec]
        if spec.startswith(PYTHON_PREFIX):
            raise RecipeError(
                f"environment: {spec.removeprefix(PYTHON_PREFIX)} was passed from Python and cannot be imported by name; pass it again: "
                "cohort.resume(run, environment=..., tools=[...])."
            )
        try:
            return load_function(spec)
        except NotImportable as problem:
            raise RecipeError(f"environment: {problem}") from problem

    # -- what they offer -------------------------------------------------------------------------------------------------

    @cached_property
    def sources(self) -> dict[str, str]:
        """Name in the column -> class; "" for the only one, or for tools without a class."""
        return dict(self.config.sources) if self.config.sources else {"": self.config.source}

    @cached_property
    def traits(self) -> dict[str, EnvironmentTraits | None]:
        places = {name: f"environment.sources.{name}" if name else "environment.source" for name in self.sources}
        found = {name: read_traits(self.load(spec), places[name]) if spec else None for name, spec in self.sources.items()}
        if any(one and one.has_hook for one in found.values()) and self.config.tools:
            raise RecipeError(
                "environment.tools: a class with step(self, text) reads whole turns, so there are no calls. Leave tools out."
            )
        if len({bool(one and one.has_hook) for one in found.values()}) > 1:
            raise RecipeError(
                "environment.sources: classes with step(self, text) and classes with tools cannot be mixed in one run."
            )
        for spec in self.config.tools:
            check_annotations(self.load(spec), f"environment.tools: {spec}")
        return found

    @property
    def has_hook(self) -> bool:
        return any(one and one.has_hook for one in self.traits.values())

    @property
    def has_reward(self) -> bool:
        return any(one and one.has_reward for one in self.traits.values())

    def check_rewards(self, rewards: Sequence[RewardConfig]) -> None:
        """Raise RecipeError if the environment's own reward is left out, or named without existing."""
        named = any(part.function == ENVIRONMENT_REWARD for part in rewards)
        classes = ", ".join(one.name for one in self.traits.values() if one) or "tools"
        if self.has_reward and not named:
            raise RecipeError(
                f'rewards: {classes} has get_reward, and no part uses it. Add [[rewards]] function = "{ENVIRONMENT_REWARD}" (weight = 0 only '
                "measures it)."
            )
        if named and not self.has_reward:
            raise RecipeError(
                f'rewards: function = "{ENVIRONMENT_REWARD}" is what get_reward returns, and {classes} has no such method. Add it, or name other '
                "[[rewards]]."
            )

    @property
    def is_deterministic(self) -> bool:
        return all(one is None or one.deterministic for one in self.traits.values())

    def find_name(self, row: Mapping[str, Any]) -> str:
        """The environment of a row."""
        if "" in self.sources:
            return ""
        name = row.get(COLUMN)
        if name not in self.sources:
            raise PromptError(
                f"the column {COLUMN!r} of a row is {name!r}; with several environments it names one of {', '.join(self.sources)}."
            )
        return str(name)

    def describe(self, name: str) -> str:
        traits = self.traits[name]
        return traits.name if traits else "tools"

    def list_schemas(self, name: str) -> list[dict[str, Any]]:
        """The JSON schemas of the tools, for the chat template."""
        from transformers.utils import get_json_schema

        traits, own = self.traits[name], object()
        methods = [types.MethodType(method, own) for method in traits.tools.values()] if traits else []
        schemas = []
        for tool in [*(self.load(spec) for spec in self.config.tools), *methods]:
            try:
                schemas.append(get_json_schema(tool))
            except Exception as problem:  # its own errors, and those of type hints
                raise RecipeError(
                    f"environment: the tool {tool.__name__!r} cannot be described to the model ({problem}). Write a docstring with a "
                    "description and an Args section, as for TRL."
                ) from problem
        return schemas

    def use_tools(self, codec: ChatCodec, name: str) -> Any:
        """The codec that encodes the chats of an environment: with its tools, unless the calls are plain text or whole turns are passed on."""
        schemas = self.list_schemas(name) if self.prepare(codec, is_chat=True).role == "tool" else []
        return type(codec)(codec.tokenizer, {**codec.template_args, "tools": schemas}) if schemas else codec

    def prepare(self, codec: ChatCodec, is_chat: bool) -> Dialogue:
        """The dialogue for chats or texts; at its first use the template is proven."""
        if is_chat not in self.dialogues:
            form: Format | None = None
            if not self.has_hook:
                name = next(iter(self.sources))
                wants = is_chat and self.config.format != "plain"
                form = find_format(codec, self.list_schemas(name) if wants else [], self.config.format, is_chat)
            limit = self.config.max_observation_tokens
            self.dialogues[is_chat] = Dialogue(codec, is_chat=is_chat, form=form, max_tokens=limit)
        return self.dialogues[is_chat]

    # -- rows ------------------------------------------------------------------------------------------------------------

    def make_rows(self, config: PromptsConfig, limit: int) -> list[dict[str, Any]]:
        """Rows of an environment that owns its data: one per seed, with what reset returns as the prompt."""
        if self.config.sources or not self.config.source:
            raise PromptError(
                'prompts.source: "environment" takes the prompts from one class; with several, give rows that name one.'
            )
        return self.add_observations([{config.prompt_column: "", SEED: number} for number in range(limit)], config, owns=True)

    def add_seeds(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The rows with the seeds of their episodes: of the content, and the number among equal rows."""
        copies: Counter[str] = Counter()
        seeded = []
        for row in rows:
            self.find_name(row)
            key = json.dumps(row, sort_keys=True, default=str)
            seeded.append({**row, SEED: row.get(SEED, keyed_hash(SEED, key, copies[key]) >> 1)})
            if not isinstance(seeded[-1][SEED], int) or isinstance(seeded[-1][SEED], bool):
                raise PromptError(
                    f"the column {SEED!r} seeds the episodes of a row, so it is an integer; got {seeded[-1][SEED]!r}."
                )
            copies[key] += 1
        return seeded

    def identify(self, row: Mapping[str, Any]) -> str:
        """What an episode of this row depends on besides its prompt: the columns that `reset` reads, and the seed unless it names others only."""
        traits = self.traits[self.find_name(row)]
        if traits is None:
            return ""
        names = [SEED] if traits.reads == () else row if traits.reads is None else traits.reads
        return json.dumps({name: row[name] for name in names if name in row and name != "prompt"}, sort_keys=True, default=str)

    def describe_all(self) -> str:
        """The environments for the console."""
        names = [self.describe(name) for name in self.sources]
        own = {name for one in self.traits.values() if one for name in one.tools} | {
            spec.rpartition(":")[2].rpartition(".")[2] for spec in self.config.tools
        }
        what = "reads whole turns" if self.has_hook else f"with {', '.join(sorted(own))}"
        return f"environment {', '.join(names)} {what}, at most {self.config.max_turns} turns"

    def add_observations(
        self, rows: Sequence[dict[str, Any]], config: PromptsConfig, owns: bool = False
    ) -> list[dict[str, Any]]:
        """The rows with what `reset` returns added to their prompts: to the end of the text, or of the last message of the user."""
        column = config.prompt_column
        traits = {name: one for name, one in self.traits.items() if one and (one.returns_prompt or owns)}
        chosen = [place for place, row in enumerate(rows) if self.find_name(row) in traits]
        replies = self.ask_all([(rows[place], {"drop": True}) for place in chosen])
        found = [dict(row) for row in rows]
        for place, reply in zip(chosen, replies, strict=True):
            if "fault" in reply:
                raise EnvironmentFailed(
                    f"{self.describe(self.find_name(rows[place]))}.reset failed for a row: {reply['detail']}"
                )
            text = reply.get("observation")
            if text:
                if config.template:
                    raise PromptError(
                        f"prompts.template: reset returned {text[:40]!r} for the prompt, which the template would leave out. Use one of them."
                    )
                found[place][column] = append_text(found[place].get(column, ""), text)
            elif owns:
                raise PromptError(
                    f"prompts: {self.config.source} owns the prompts, but its reset returned {text!r} for seed {rows[place][SEED]}. Return the "
                    "prompt as text, or give prompts."
                )
        return found

    # -- episodes --------------------------------------------------------------------------------------------------------

    def begin(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The part of an episode's first message that starts it."""
        spec = self.sources[self.find_name(row)]
        traits = self.traits[self.find_name(row)]
        wanted = () if traits is None else row if traits.reads is None else [name for name in traits.reads if name in row]
        for name in wanted:
            if not is_plain(row[name]):
                raise PromptError(
                    f"the column {name!r} is passed to reset, and JSON cannot carry its {type(row[name]).__name__} to a worker. Use plain data."
                )
        columns = {name: row[name] for name in wanted}
        return {
            "environment": spec,
            "tools": list(self.config.tools),
            "args": dict(self.config.args),
            "row": columns,
            "seed": row[SEED],
        }

    def is_local(self, spec: str) -> bool:
        """Whether workers cannot import it."""
        return spec in self.functions or spec.startswith(PYTHON_PREFIX)

    def list_notes(self) -> tuple[str, ...]:
        """Console messages."""
        names = [spec for spec in (*self.sources.values(), *self.config.tools) if self.is_local(spec)]
        return tuple(
            f"environment: workers cannot import {name.removeprefix(PYTHON_PREFIX)}, so it runs in a thread of the trainer, where a call that "
            "hangs cannot be stopped. At the top level of its own module it would run in worker processes"
            for name in names
        )

    def choose_host(self, row: Mapping[str, Any]) -> Host:
        """The host with the fewest episodes that can run the environment of this row."""
        spec = self.sources[self.find_name(row)]
        here = any(self.is_local(name) for name in (spec, *self.config.tools))
        kind = "thread" if here else "workers"
        if kind not in self.hosts:
            self.hosts[kind] = [ThreadHost(self.load)] if here else [WorkerHost() for _ in range(self.config.workers)]
        return min(self.hosts[kind], key=lambda host: len(host.episodes))

    def is_async(self, row: Mapping[str, Any], members: Sequence[str]) -> bool:
        """Whether all these members of the row's environment are async, so that their calls may interleave with others."""
        traits = self.traits[self.find_name(row)]
        known = dict.fromkeys((*LIFE_CYCLE, HOOK, *traits.tools), False) if traits else {}
        known |= dict.fromkeys(traits.asynchronous if traits else (), True)
        if traits and not traits.has_reward:
            del known["get_reward"]
        for spec in self.config.tools:
            function = self.load(spec)
            known[function.__name__] = inspect.iscoroutinefunction(function)
        return all(known.get(name, True) for name in members)

    def ask_all(self, questions: Sequence[tuple[Mapping[str, Any], dict[str, Any]]]) -> list[Mapping[str, Any]]:
        """The replies to one message about a new episode of each row."""
        replies: queue.SimpleQueue[tuple[int, Mapping[str, Any]]] = queue.SimpleQueue()
        for place, (row, body) in enumerate(questions):
            number = next(self.numbers)
            message = {"id": number, "begin": self.begin(row), **body}
            on_reply = lambda reply, place=place: replies.put((place, reply))  # noqa: E731
            is_async = self.is_async(row, ["reset"])
            self.choose_host(row).submit(Message(message, is_async, self.config.step_timeout_s, on_reply))
        found: dict[int, Mapping[str, Any]] = {}
        while len(found) < len(questions):
            place, reply = replies.get()
            found[place] = reply
        return [found[place] for place in range(len(questions))]

    def check(self) -> None:
        """Raise EnvironmentFailed if the run must end because of hanging threads."""
        for host in self.hosts.get("thread", []):
            assert isinstance(host, ThreadHost)
            host.check()

    def close(self) -> None:
        """End the workers and threads."""
        for hosts in self.hosts.values():
            for host in hosts:
                host.close()
        self.hosts = {}


def append_text(content: Any, text: str) -> Any:
    """The prompt with text at the end of it: as in TRL, of the last message of the user."""
    if isinstance(content, str):
        return content + text
    messages = [dict(message) for message in content]
    for message in reversed(messages):
        if message["role"] == "user":
            message["content"] += text
            return messages
    return [*messages, {"role": "user", "content": text}]


def ends_with(content: Any, text: str) -> bool:
    """Whether `append_text` has added this text."""
    if isinstance(content, str):
        return content.endswith(text)
    users = [message["content"] for message in content if message["role"] == "user"]
    return bool(users) and str(users[-1]).endswith(text)


def check_tool_types(environments: Environments) -> None:
    """Build the argument checks of all tools once, so that an unusable annotation is reported at the start."""
    for name, traits in environments.traits.items():
        for tool, function in traits.tools.items() if traits else ():
            try:
                ToolSignature(function, 1)
            except Exception as problem:
                raise RecipeError(
                    f"environment{f'.sources.{name}' if name else ''}: the types of {tool}: {problem}"
                ) from problem
