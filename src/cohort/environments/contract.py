"""What an environment offers, read from its class: tools, the text hook, the reward. The names are TRL's.

    class Maze:
        def reset(self, size, seed, **row):       # starts an episode; returns None, or text that is added to the prompt
            ...
        def walk(self, direction: str) -> str:    # public typed methods are tools, sync or async
            "Take a step. ..."
        def get_reward(self) -> float:            # scores the episode
            ...

A class whose only public method is `step(self, text)` takes whole turns instead of calls: `step` returns what the policy reads
next, or None to end the episode.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cohort.errors import RecipeError

LIFE_CYCLE = ("reset", "get_reward")
HOOK = "step"


@dataclass(frozen=True)
class EnvironmentTraits:
    """The members of an environment class, or of a set of tool functions."""

    name: str
    tools: Mapping[str, Callable[..., Any]]
    """The methods that are tools, by name; as functions, `self` first."""
    has_hook: bool
    """Whether `step(self, text)` takes whole turns."""
    has_reward: bool
    returns_prompt: bool
    """Whether `reset` may return text."""
    reads: tuple[str, ...] | None
    """Columns that `reset` names; None: all."""
    asynchronous: frozenset[str]
    """Members that are async."""
    deterministic: bool
    """Whether the same seed and the same turns give the same replies."""


def read_traits(kind: Any, place: str) -> EnvironmentTraits:
    """The traits of an environment class. RecipeError if it cannot be one. place: its key in the recipe."""
    if not inspect.isclass(kind):
        raise RecipeError(
            f"{place}: give a class; {getattr(kind, '__name__', kind)!r} is a {type(kind).__name__}. Arguments of its constructor are "
            "environment.args."
        )
    own = {name: member for name, member in vars(kind).items() if inspect.isfunction(member) and not name.startswith("_")}
    reset = getattr(kind, "reset", None)
    if not callable(reset):
        raise RecipeError(f"{place}: {kind.__name__} has no method reset, which starts an episode: def reset(self, **row).")
    tools = {name: member for name, member in own.items() if name not in LIFE_CYCLE}
    has_hook = [*tools] == [HOOK] and len(inspect.signature(tools[HOOK]).parameters) == 2
    if not tools:
        raise RecipeError(
            f"{place}: {kind.__name__} has no public methods besides reset and get_reward, so the policy cannot act. Methods of the class "
            "itself are tools, inherited ones are not; or define step(self, text)."
        )
    for name, member in {} if has_hook else tools.items():
        check_annotations(member, f"{place}: {kind.__name__}.{name}", 1)
    parameters = list(inspect.signature(reset).parameters.values())[1:]
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters)
    returned = inspect.signature(reset).return_annotation
    members = {"reset": reset, "get_reward": getattr(kind, "get_reward", None), **tools}
    return EnvironmentTraits(
        kind.__name__,
        {} if has_hook else tools,
        has_hook,
        callable(members["get_reward"]),
        returned not in (None, "None"),
        None if takes_any else tuple(one.name for one in parameters),
        frozenset(name for name, member in members.items() if inspect.iscoroutinefunction(member)),
        getattr(kind, "deterministic", True) is not False,
    )


def check_annotations(function: Callable[..., Any], what: str, skipped: int = 0) -> None:
    """Raise RecipeError unless every parameter is named and has a type, which the arguments of a call are checked against."""
    for parameter in [*inspect.signature(function).parameters.values()][skipped:]:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise RecipeError(
                f"{what} is a tool, and a call cannot fill *{parameter.name}. Name its parameters, or begin its name with _."
            )
        if parameter.annotation is parameter.empty:
            raise RecipeError(
                f"{what} is a tool, and its parameter {parameter.name!r} has no type. Annotate it, or begin the method's name with _."
            )


class BadArguments(Exception):
    """Why a call's arguments do not fit, as text for the policy."""


class ToolSignature:
    """Checks the arguments of a call against a tool's annotations."""

    def __init__(self, function: Callable[..., Any], skipped: int = 0) -> None:
        """skipped: leading parameters that a call does not fill (`self`)."""
        from pydantic import TypeAdapter

        self.parameters = [*inspect.signature(function).parameters.values()][skipped:]
        hints = typing.get_type_hints(function)
        self.types = {one.name: TypeAdapter(hints.get(one.name, Any)) for one in self.parameters}

    def check(self, arguments: Any) -> dict[str, Any]:
        """The arguments by name, converted to their types. A list fills the parameters in order."""
        from pydantic import ValidationError

        names = [one.name for one in self.parameters]
        if isinstance(arguments, list):
            if len(arguments) > len(names):
                raise BadArguments(f"{len(arguments)} arguments were given; the parameters are {', '.join(names) or 'none'}")
            arguments = dict(zip(names, arguments, strict=False))
        if not isinstance(arguments, Mapping):
            raise BadArguments("the arguments are not an object with named values")
        for name in arguments:
            if name not in names:
                raise BadArguments(f"unknown argument {str(name)[:40]!r}; the parameters are {', '.join(names) or 'none'}")
        checked = {}
        for parameter in self.parameters:
            if parameter.name not in arguments:
                if parameter.default is parameter.empty:
                    raise BadArguments(f"the argument {parameter.name!r} is missing")
                continue
            try:
                checked[parameter.name] = self.types[parameter.name].validate_python(arguments[parameter.name])
            except (ValidationError, RecursionError) as problem:
                reason = problem.errors()[0]["msg"] if isinstance(problem, ValidationError) else "it is nested too deeply"
                raise BadArguments(f"argument {parameter.name!r}: {reason}") from None
        return checked
