"""A named choice of the objective: a function and its traits, which rules, messages, docs and tests read.

    @advantage(never_negative=True)
    def binary(success_PG, scored_PG): ...

    @region(settings=[Setting("soft_up", 1.0, "...", gt=0)])
    def soft(tokens, *, soft_up): ...

The positional parameters of a function are its inputs: an advantage gets those it names (READABLE below), a region one record of
tokens, an aggregation the lengths. The keyword-only parameters are keys of [algorithm] in the recipe: an existing key (clip_low, gamma)
is used by naming it, a new one is declared with `settings=`. So a key has an effect exactly if one of the chosen functions names it.

A decorator only attaches the traits; algorithms/named.py lists the built-in choices, recipe/user_functions.py resolves a user's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, TypeVar

from cohort.base.importing import reason
from cohort.errors import RecipeError

Kind = Literal["advantage", "region", "aggregation", "kl"]
Function = TypeVar("Function", bound=Callable[..., Any])

SAMPLED = frozenset({"policy", "start"})
"""Data sources that sample: completions in groups, scored by the reward functions."""

READABLE: dict[Kind, dict[str, str]] = {
    "advantage": {
        "rewards_PG": "reward of every completion, by group; 0 if it has none",
        "scored_PG": "True for scored completions in groups that are trained on",
        "success_PG": "True where the outcome part is a success",
        "parts_PG": "value of every reward part before weighting, by its name; NaN where it abstained",
        "weights": "weight of every reward part, by name",
        "token_rewards_N": "rewards of the trained tokens of every trained completion, including a KL in the reward",
        "values_N": "the critic's values of the same tokens",
        "steps_N": "(last token of a step, its reward) of every trained completion",
        "turns_N": "(last token of a turn, its reward) of every trained completion, in an environment",
        "lengths_N": "number of its tokens",
        "groups_N": "its group",
    },
    "region": {"tokens": "log-probs, advantages and rows of the trained tokens of a micro-batch (regions.Tokens)"},
    "aggregation": {
        "lengths_N": "trained tokens of every completion of the optimizer batch",
        "groups_N": "its group",
        "max_completion_tokens": "the length at which completions are truncated",
    },
    "kl": {
        "policy_logprobs_M": "log-probs of the trained tokens under the policy",
        "ref_logprobs_M": "the same under the reference",
    },
}
"""The inputs that a function can name as positional parameters, by kind."""


@dataclass(frozen=True)
class AdvantageTraits:
    compares_group: bool = True
    """It compares the completions of a group, so a group of one, or with equal rewards, gives no signal."""
    per_token: bool = False
    """It credits single tokens."""
    never_negative: bool = False
    """No completion gets a negative advantage."""
    needs_teacher: bool = False
    """All advantages are 0: nothing is learned without a teacher."""
    fits: frozenset[str] = SAMPLED
    """Data sources that it fits."""


@dataclass(frozen=True)
class RegionTraits:
    needs_ratio: bool = True
    """It uses the ratio to the policy that sampled, and needs that policy's log-probs."""
    corrects_mismatch: bool = False
    """Its ratio uses the engine's own log-probs, so it includes the mismatch with the trainer and needs no forward pass for old log-probs."""
    idle_at_zero: bool = False
    """A token with advantage 0 has no gradient, so its forward pass can be skipped."""
    zero_on_policy: bool = False
    """On-policy the loss of every token is -A: 0 over a group whose advantages sum to 0."""
    one_value: bool = False
    """All tokens of a completion have the same loss."""
    preference: bool = False
    """It compares two completions of a group: groups stay together and are reduced to the best and the worst completion."""


@dataclass(frozen=True)
class AggregationTraits:
    """An aggregation has no traits."""


@dataclass(frozen=True)
class KLTraits:
    gradient: Literal["kl", "reverse", "none"] = "reverse"
    """Its expected gradient in the loss: that of KL(policy || reference), of KL(reference || policy), or 0."""
    fits_reward: bool = False
    """As part of the reward it has the gradient of the KL."""


Traits = AdvantageTraits | RegionTraits | AggregationTraits | KLTraits
TRAITS: dict[Kind, type[Any]] = {
    "advantage": AdvantageTraits,
    "region": RegionTraits,
    "aggregation": AggregationTraits,
    "kl": KLTraits,
}


@dataclass(frozen=True)
class Setting:
    """A key that a choice adds to [algorithm]. Its type is the type of the default; values outside the bounds are refused."""

    name: str
    default: float | int | bool | str
    sentence: str
    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    down_only: bool = False
    """It acts only on tokens with a negative advantage."""

    @property
    def bounds(self) -> dict[str, float]:
        found = {name: getattr(self, name) for name in ("gt", "ge", "lt", "le")}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class Choice:
    """One named choice. The function is missing if another process resolved it and only the traits are needed."""

    kind: Kind
    name: str
    sentence: str
    traits: Any
    reads: tuple[str, ...]
    parameters: tuple[str, ...]
    """Its keyword-only parameters, in the order of the signature."""
    settings: tuple[Setting, ...] = ()
    """The parameters that it declares itself."""
    function: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    known: bool = True
    """False for a user's function before it is resolved: no rule applies to it yet."""
    digest: str = ""
    """SHA-256 of a user's source; "" for a built-in choice, or before it is resolved."""
    defaults: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Defaults of a user's parameters."""

    @property
    def reads_reward(self) -> bool:
        """Whether it uses the summed reward of a completion, so that a KL or a learned score in the reward has an effect."""
        return not self.known or bool({"rewards_PG", "token_rewards_N"} & {*self.reads})

    @property
    def reads_values(self) -> bool:
        """Whether it needs a critic."""
        return "values_N" in self.reads

    @property
    def reads_success(self) -> bool:
        return "success_PG" in self.reads

    def select_shown(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values to show with it: not kl_coef, which is shown with the KL, nor its own switches that are off."""
        switches = {setting.name for setting in self.settings if not setting.default}
        named = {name: values[name] for name in self.parameters if name != "kl_coef"}
        return {name: value for name, value in named.items() if value or name not in switches}

    def call(self, parameters: Mapping[str, Any], **inputs: Any) -> Any:
        """The function's result for its parameters and those of the inputs that it reads."""
        assert self.function is not None, f"{self.kind} {self.name!r} was not resolved"
        try:
            return self.function(*(inputs[name] for name in self.reads), **parameters)
        except (Exception, SystemExit) as problem:
            if not self.digest:
                raise
            raise RecipeError(f"algorithm.{self.kind}: {self.name} failed ({reason(problem)}).") from problem


class BadChoice(ValueError):
    """Why a function cannot be a choice."""


def make_choice(
    kind: Kind, function: Callable[..., Any], name: str, settings: Sequence[Setting], traits: Mapping[str, Any]
) -> Choice:
    """The choice of a function: its inputs, parameters and traits, from its signature, docstring and decorator."""
    unknown = sorted(set(traits) - {known.name for known in fields(TRAITS[kind])})
    if unknown:
        raise BadChoice(
            f"{kind} {name!r}: no such trait: {', '.join(unknown)}; known: {', '.join(list_traits(kind)) or 'none'}"
        )
    reads, parameters = read_signature(kind, function, name)
    undeclared = sorted({setting.name for setting in settings} - set(parameters))
    if undeclared:
        raise BadChoice(f"{kind} {name!r} declares {', '.join(undeclared)}, but its signature has no such parameter after a *")
    sentence = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
    return Choice(kind, name, sentence, TRAITS[kind](**traits), reads, tuple(parameters), tuple(settings), function)


def read_signature(kind: Kind, function: Callable[..., Any], name: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """(names of its inputs, keyword-only parameter -> its default, or MISSING)."""
    reads: list[str] = []
    parameters: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            parameters[parameter.name] = MISSING if parameter.default is parameter.empty else parameter.default
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise BadChoice(f"{kind} {name!r} takes {parameter}: name its inputs, so that only those are computed.")
        elif kind == "region" and not reads:
            reads.append("tokens")  # its one record may have any name
        else:
            reads.append(parameter.name)
    unknown = [read for read in reads if read not in READABLE[kind]]
    if unknown or not reads:
        wrong = f"reads {', '.join(map(repr, unknown))}" if unknown else "reads nothing"
        raise BadChoice(
            f"{kind} {name!r} {wrong}; the inputs are {', '.join(READABLE[kind])}. Its parameters follow a * in the signature."
        )
    return tuple(reads), parameters


def list_traits(kind: Kind) -> list[str]:
    return [known.name for known in fields(TRAITS[kind])]


def assume_choice(kind: Kind, name: str) -> Choice:
    """A user's function before it is imported: only its name is known."""
    return Choice(kind, name, "", TRAITS[kind](), (), (), known=False)


def _make_choice_decorator(
    kind: Kind, name: str, settings: Sequence[Setting], traits: Mapping[str, Any]
) -> Callable[[Function], Function]:
    def attach(function: Function) -> Function:
        made = make_choice(kind, function, name or function.__name__, settings, traits)
        function.choice = made  # type: ignore[attr-defined]
        return function

    return attach


def advantage(name: str = "", *, settings: Sequence[Setting] = (), **traits: Any) -> Callable[[Function], Function]:
    """Register an advantage: the credit of a completion or a token. Traits: AdvantageTraits."""
    return _make_choice_decorator("advantage", name, settings, traits)


def region(name: str = "", *, settings: Sequence[Setting] = (), **traits: Any) -> Callable[[Function], Function]:
    """Register a trust region: tokens in, one loss per token out. Traits: RegionTraits."""
    return _make_choice_decorator("region", name, settings, traits)


def aggregation(name: str = "", *, settings: Sequence[Setting] = (), **traits: Any) -> Callable[[Function], Function]:
    """Register an aggregation: the weight of one token of each completion."""
    return _make_choice_decorator("aggregation", name, settings, traits)


def kl(name: str = "", *, settings: Sequence[Setting] = (), **traits: Any) -> Callable[[Function], Function]:
    """Register an estimator of the KL to the reference, from the sampled tokens. Traits: KLTraits."""
    return _make_choice_decorator("kl", name, settings, traits)


def find_choice(function: Callable[..., Any]) -> Choice | None:
    """The choice that a decorator attached to a function."""
    found = getattr(function, "choice", None)
    return found if isinstance(found, Choice) else None
