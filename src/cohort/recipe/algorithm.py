"""[algorithm]: the words of the objective. Names of choices are checked against the registry, which also adds words. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PrivateAttr, create_model, field_validator, model_validator

from cohort.algorithms.compatibility import UNWEIGHED, find_contradiction
from cohort.algorithms.named import (
    FIELDS,
    NAMED,
    OWN_FUNCTION,
    OWN_KINDS,
    PRESETS,
    Chosen,
    Own,
    is_word,
    list_declared_words,
    list_own,
)
from cohort.algorithms.registry import Choice, Kind
from cohort.recipe.sections import Section, suggest_nearest


def list_choices(kind: Kind) -> str:
    """The names of a kind, for the description of the word that holds one."""
    own = ', or a function of your own as "package.module:function"' if kind in OWN_KINDS else ""
    return f"{', '.join(NAMED[kind])}{own}."


class AlgorithmWords(Section):
    """The objective: a named preset, any of whose choices can be overridden. data -> reward -> coefficient -> update."""

    name: str = Field("grpo", description="Preset that fills the choices below: " + ", ".join(sorted(PRESETS)) + ".")
    # -- data source ---------------------------------------------------------------------------------------------------
    data: Literal["policy", "start", "demonstrations", "pairs"] = Field(
        "policy",
        description="Where completions come from. policy: sampled from the policy as it is now. start: sampled from the policy "
        "the run started from. demonstrations: written in the rows. pairs: `chosen` and `rejected` in the rows.",
    )
    # -- advantage -----------------------------------------------------------------------------------------------------
    advantage: str = Field(
        "group_normalized", description="What replaces the critic (gae: the critic of [critic]): " + list_choices("advantage")
    )
    std_ddof: Literal[0, 1] = Field(0, description="Degrees of freedom of standard deviations (TRL: 1).")
    std_epsilon: float = Field(1e-6, ge=0, description="Added to standard deviations (TRL: 1e-4).")
    gamma: float = Field(1.0, gt=0, le=1, description="Discount of gae and global_normalized.")
    gae_lambda: float = Field(1.0, ge=0, le=1, description="Lambda of gae: 1 trusts the returns, 0 the critic.")
    # -- trust region --------------------------------------------------------------------------------------------------
    region: str = Field(
        "clip",
        description="Ratio and trust region: what keeps one update close to the policy that sampled: " + list_choices("region"),
    )
    clip_low: float = Field(0.2, ge=0, lt=1, description="The ratio is clipped below 1 - clip_low.")
    clip_high: float = Field(0.2, ge=0, description="The ratio is clipped above 1 + clip_high.")
    dual_clip: float = Field(3.0, gt=1, description="dual_clip: for A < 0 a token's loss is at most this times |A|.")
    ratio_cap: float = Field(5.0, gt=0, description="cispo: the ratio that weighs a token is capped here.")
    mismatch_weight: Literal["auto", "off", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = Field(
        "auto",
        description="Importance weight pi_old / pi_engine for a gap between engine and trainer, per token or completion; "
        "cut at mismatch_cap (truncate), or 0 outside 1/mismatch_cap to mismatch_cap (mask). auto: token_truncate with the engine vllm, "
        "which computes with another program, where it fits the other choices and nothing is sampled ahead; else off.",
    )
    mismatch_cap: float = Field(2.0, gt=1, description="Cap of mismatch_weight.")
    # -- KL to the reference -------------------------------------------------------------------------------------------
    kl_coef: float = Field(
        0.04, ge=0, description="Weight of the KL to the reference; 0 loads none (but see monitors.kl). For dpo its beta."
    )
    kl_estimator: str = Field("k3", description="How the KL is estimated from sampled tokens: " + list_choices("kl"))
    kl_in: Literal["loss", "token_reward", "completion_reward"] = Field(
        "loss",
        description="Where the KL acts: added to the loss, or subtracted from the reward token by token or once per completion.",
    )
    kl_corrected: bool = Field(
        False, description="In the loss: multiply k1 or k3 by the ratio, which makes its gradient that of the KL."
    )
    kl_target: float = Field(
        0.0, ge=0, description="Nats per completion that kl_coef is adapted to hold; 0 keeps kl_coef as it is."
    )
    reference_every: int = Field(0, ge=0, description="The reference becomes the policy every N steps; 0: never.")
    reference_decay: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="The reference follows the policy as a moving average with this decay per step; 0: it does not.",
    )
    entropy_coef: float = Field(0.0, ge=0, description="Weight of an entropy bonus.")
    # -- aggregation ---------------------------------------------------------------------------------------------------
    aggregation: str = Field("sequence_mean", description="How tokens become one number: " + list_choices("aggregation"))
    # -- selection -----------------------------------------------------------------------------------------------------
    zero_variance: Literal["keep", "drop"] = Field(
        "keep", description="Groups of equal rewards: keep counts them in every denominator, drop takes them out."
    )
    refill_rounds: int = Field(
        0,
        ge=0,
        description="Dynamic sampling: draw up to N more rounds of prompts to replace groups that all succeed or all fail; 0: off.",
    )
    prompt_choice: Literal["stream", "informative"] = Field(
        "stream",
        description="stream: every prompt once per epoch. informative: prefer prompts whose recent success rate is near 1/2.",
    )
    choice_floor: float = Field(
        0.05, gt=0, le=1, description="informative: weight of a solved or hopeless prompt; the best prompt weighs 1."
    )
    mask_truncated: bool = Field(False, description="Leave completions cut at max_completion_tokens out of the loss.")
    overlong_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Soft overlong penalty: over this last share of max_completion_tokens the reward falls by 0 to 1; 0: off.",
    )

    args: dict[str, Any] = Field(
        default_factory=dict,
        description="Parameters of functions of your own; checked against their signatures when a run starts.",
    )
    _own: Own = PrivateAttr(default_factory=dict)

    @property
    def own(self) -> Own:
        """The user's functions among the choices, by kind, where they have been resolved. Reading a recipe imports none."""
        return self._own

    @property
    def chosen(self) -> Chosen:
        """The choices with the facts about them."""
        return Chosen.of(self.model_dump(), self._own)

    @property
    def weighs_mismatch(self) -> bool:
        """Whether tokens are weighed for a gap between engine and trainer. auto is off, until a run finds reason (recipe/user_functions.py)."""
        return self.mismatch_weight not in UNWEIGHED

    def tell(self, choice: Choice) -> dict[str, Any]:
        """The words that a choice names, with their values here; a parameter of a user's own comes from args, or is its default."""
        own, words = {**choice.defaults, **self.args}, type(self).model_fields
        return {name: getattr(self, name) if is_word(name, words) else own[name] for name in choice.parameters}

    def resolved(self, own: Own) -> AlgorithmConfig:
        """The same section, with what is known of the user's functions in it."""
        copied = self.model_copy()
        copied._own = own
        return copied  # type: ignore[return-value]

    @field_validator("advantage", "region", "aggregation", "kl_estimator")
    @classmethod
    def refuse_unknown(cls, name: str, info: Any) -> str:
        kind = next(kind for kind, field in FIELDS.items() if field == info.field_name)
        if name in NAMED[kind] or (kind in OWN_KINDS and OWN_FUNCTION.fullmatch(name)):
            return name
        raise ValueError(f"no such {kind}{suggest_nearest(name, NAMED[kind])} Known: {list_choices(kind)}")

    @model_validator(mode="before")
    @classmethod
    def fill_from_preset(cls, given: Any) -> Any:
        name = given.get("name", "grpo") if isinstance(given, Mapping) else "grpo"
        if not isinstance(given, Mapping) or not isinstance(name, str):
            return given
        if name not in PRESETS:
            raise ValueError(
                f"unknown algorithm {name!r} (known: {', '.join(sorted(PRESETS))}){suggest_nearest(name, PRESETS)}"
            )
        return {**PRESETS[name], **given, "name": name}

    @model_validator(mode="after")
    def refuse_contradictions(self) -> AlgorithmWords:
        if self.args and not list_own(self.model_dump()):
            raise ValueError(
                f"args ({', '.join(self.args)}) are parameters of functions of your own, and no choice names one. Built-in choices "
                "are told by words of [algorithm]."
            )
        if reason := find_contradiction(self.model_dump()):
            raise ValueError(reason)
        return self


if TYPE_CHECKING:

    class AlgorithmConfig(AlgorithmWords):
        """[algorithm] with the words that its choices declare."""

else:
    AlgorithmConfig = create_model(
        "AlgorithmConfig",
        __base__=AlgorithmWords,
        __doc__=AlgorithmWords.__doc__,
        __module__=__name__,
        **{
            word.name: (type(word.default), Field(word.default, description=word.sentence, **word.bounds))
            for word in list_declared_words()
        },
    )
