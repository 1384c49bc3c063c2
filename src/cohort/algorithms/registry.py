"""What a named choice of the objective is: a function, and the facts about it that rules, words, docs and tests ask for.

    @advantage(never_negative=True)
    def binary(success_PG, scored_PG): ...

    @region(words=[Word("soft_up", 1.0, "...", gt=0)])
    def soft(tokens, *, soft_up): ...

What a function *reads* are its positional parameters: an advantage is handed what it names (READABLE below), a region one
record of tokens, an aggregation the lengths. What it is *told* are its keyword-only parameters: words of [algorithm] in the
recipe. A word that is there already (clip_low, gamma) is read by naming it; a new one is declared with `words=`. Whether a
word acts beside some choices is then no opinion: it acts if one of them names it.

A decorator only attaches the facts; algorithms/named.py lists the built-in choices, recipe/user_functions.py resolves a user's.
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
"""Data sources that sample: completions in groups, judged by the reward functions."""

READABLE: dict[Kind, dict[str, str]] = {
    "advantage": {
        "rewards_PG": "reward of every completion, by group; 0 where it has none",
        "scored_PG": "whether it counts: scored, and in a group that is not left out",
        "success_PG": "whether the outcome part called it a success",
        "parts_PG": "value of every reward part before weighting, by name of the part; NaN where it abstained",
        "weights": "weight of every reward part, by name",
        "token_rewards_N": "rewards of the trained tokens of every trained completion, the KL included where it is in the reward",
        "values_N": "the critic's values of the same tokens",
        "steps_N": "(token that ends a step, reward of the step) of every completion that is trained on",
        "lengths_N": "its tokens",
        "groups_N": "its group",
    },
    "region": {"tokens": "log-probs, advantages and rows of the trained tokens of a micro-batch (regions.Tokens)"},
    "aggregation": {
        "lengths_N": "trained tokens of every completion of the optimizer batch",
        "groups_N": "its group",
        "max_completion_tokens": "where completions are cut",
    },
    "kl": {
        "policy_logprobs_M": "log-probs of the trained tokens under the policy",
        "ref_logprobs_M": "the same under the reference",
    },
}
"""What a function may name as a positional parameter, by kind."""


@dataclass(frozen=True)
class AdvantageTraits:
    compares_group: bool = True
    """It compares a completion with others of its group: a group of one, or of equals, teaches nothing."""
    per_token: bool = False
    """It credits single tokens."""
    never_negative: bool = False
    """It pushes nothing down."""
    needs_teacher: bool = False
    """It credits nothing: without a teacher nothing is learned."""
    fits: frozenset[str] = SAMPLED
    """Data sources it makes sense on."""


@dataclass(frozen=True)
class RegionTraits:
    needs_ratio: bool = True
    """It compares the policy with the one that sampled, and needs log-probs of that."""
    corrects_mismatch: bool = False
    """Its ratio is to the engine's own log-probs: a gap to the trainer is inside it, and no forward for old ones is spent."""
    idle_at_zero: bool = False
    """A token of advantage 0 is not pushed, so its forward can be left out."""
    zero_on_policy: bool = False
    """On-policy its loss is -A for every token: 0 over a group whose advantages sum to 0."""
    one_value: bool = False
    """It gives a completion one value, the same at each of its tokens."""
    preference: bool = False
    """It compares two completions of a group: groups stay together, and hold the best and the worst alone."""


@dataclass(frozen=True)
class AggregationTraits:
    pass


@dataclass(frozen=True)
class KLTraits:
    gradient: Literal["kl", "reverse", "none"] = "reverse"
    """What its expected gradient in the loss is: that of the KL, of the KL the other way round, or 0."""
    fits_reward: bool = False
    """In the reward it has the gradient of the KL."""


Traits = AdvantageTraits | RegionTraits | AggregationTraits | KLTraits
TRAITS: dict[Kind, type[Any]] = {
    "advantage": AdvantageTraits,
    "region": RegionTraits,
    "aggregation": AggregationTraits,
    "kl": KLTraits,
}


@dataclass(frozen=True)
class Word:
    """A parameter of a choice, as the recipe shows it: its default says its type, and the bounds what is refused."""

    name: str
    default: float | int | bool | str
    sentence: str
    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    down_only: bool = False
    """It acts on tokens that are pushed down alone."""

    @property
    def bounds(self) -> dict[str, float]:
        found = {name: getattr(self, name) for name in ("gt", "ge", "lt", "le")}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class Choice:
    """One named choice. Without its function where another process resolved it and only the facts are needed."""

    kind: Kind
    name: str
    sentence: str
    traits: Any
    reads: tuple[str, ...]
    parameters: tuple[str, ...]
    """Words it is told, in the order of its signature."""
    words: tuple[Word, ...] = ()
    """Those of them that it declares itself."""
    function: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    known: bool = True
    """False: a user's function that nobody has resolved yet. Nothing is said or refused for its sake."""
    digest: str = ""
    """Of a user's source; "": it is built in, or nobody has resolved it yet."""
    defaults: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Of a user's parameters, where they have one."""

    @property
    def reads_reward(self) -> bool:
        """Whether the summed reward of a completion enters: a KL or a learned score put into it then acts."""
        return not self.known or bool({"rewards_PG", "token_rewards_N"} & {*self.reads})

    @property
    def reads_values(self) -> bool:
        """Whether it needs a critic."""
        return "values_N" in self.reads

    @property
    def reads_success(self) -> bool:
        return "success_PG" in self.reads

    def select_words(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """The words to name with it: not the KL's, which stands elsewhere, nor a switch of its own that is off."""
        switches = {word.name for word in self.words if not word.default}
        named = {name: told[name] for name in self.parameters if name != "kl_coef"}
        return {name: value for name, value in named.items() if value or name not in switches}

    def call(self, told: Mapping[str, Any], **inputs: Any) -> Any:
        """What the function says, given the words it names and, of the inputs, what it reads."""
        assert self.function is not None, f"{self.kind} {self.name!r} was not resolved"
        try:
            return self.function(*(inputs[name] for name in self.reads), **told)
        except (Exception, SystemExit) as problem:
            if not self.digest:
                raise
            raise RecipeError(f"algorithm.{self.kind}: {self.name} failed ({reason(problem)}).") from problem


class BadChoice(ValueError):
    """Why a function cannot be a choice, in words."""


def make_choice(
    kind: Kind, function: Callable[..., Any], name: str, words: Sequence[Word], traits: Mapping[str, Any]
) -> Choice:
    """The facts of a function, from its signature, its docstring and its decorator."""
    unknown = sorted(set(traits) - {known.name for known in fields(TRAITS[kind])})
    if unknown:
        raise BadChoice(
            f"{kind} {name!r}: no such trait: {', '.join(unknown)}; there are {', '.join(list_traits(kind)) or 'none'}"
        )
    reads, parameters = read_signature(kind, function, name)
    undeclared = sorted({word.name for word in words} - set(parameters))
    if undeclared:
        raise BadChoice(f"{kind} {name!r} declares {', '.join(undeclared)}, which its signature does not name after a *")
    sentence = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
    return Choice(kind, name, sentence, TRAITS[kind](**traits), reads, tuple(parameters), tuple(words), function)


def read_signature(kind: Kind, function: Callable[..., Any], name: str) -> tuple[tuple[str, ...], dict[str, Any]]:
    """(what it reads, keyword-only parameter -> its default, or MISSING)."""
    reads: list[str] = []
    told: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            told[parameter.name] = MISSING if parameter.default is parameter.empty else parameter.default
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise BadChoice(f"{kind} {name!r} takes {parameter}: name what it reads, so that only that is computed.")
        elif kind == "region" and not reads:
            reads.append("tokens")  # its one record may have any name
        else:
            reads.append(parameter.name)
    unknown = [read for read in reads if read not in READABLE[kind]]
    if unknown or not reads:
        wrong = f"reads {', '.join(map(repr, unknown))}" if unknown else "reads nothing"
        raise BadChoice(
            f"{kind} {name!r} {wrong}; there is {', '.join(READABLE[kind])}. Parameters of its own stand after a * in its signature."
        )
    return tuple(reads), told


def list_traits(kind: Kind) -> list[str]:
    return [known.name for known in fields(TRAITS[kind])]


def assume_choice(kind: Kind, name: str) -> Choice:
    """A user's function before anybody has imported it: nothing is known but its name."""
    return Choice(kind, name, "", TRAITS[kind](), (), (), known=False)


def _make_choice_decorator(
    kind: Kind, name: str, words: Sequence[Word], traits: Mapping[str, Any]
) -> Callable[[Function], Function]:
    def attach(function: Function) -> Function:
        made = make_choice(kind, function, name or function.__name__, words, traits)
        function.choice = made  # type: ignore[attr-defined]
        return function

    return attach


def advantage(name: str = "", *, words: Sequence[Word] = (), **traits: Any) -> Callable[[Function], Function]:
    """What a completion, or a token, is credited with. Traits: AdvantageTraits."""
    return _make_choice_decorator("advantage", name, words, traits)


def region(name: str = "", *, words: Sequence[Word] = (), **traits: Any) -> Callable[[Function], Function]:
    """How far an update may move the policy: tokens in, a loss for each of them out. Traits: RegionTraits."""
    return _make_choice_decorator("region", name, words, traits)


def aggregation(name: str = "", *, words: Sequence[Word] = (), **traits: Any) -> Callable[[Function], Function]:
    """How tokens become one number: the weight of a token of each completion."""
    return _make_choice_decorator("aggregation", name, words, traits)


def kl(name: str = "", *, words: Sequence[Word] = (), **traits: Any) -> Callable[[Function], Function]:
    """An estimator of the KL to the reference, from the sampled tokens. Traits: KLTraits."""
    return _make_choice_decorator("kl", name, words, traits)


def find_choice(function: Callable[..., Any]) -> Choice | None:
    """The facts that a decorator attached."""
    found = getattr(function, "choice", None)
    return found if isinstance(found, Choice) else None
