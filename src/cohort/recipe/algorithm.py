"""[algorithm]: the settings of the objective. The registry of choices checks names and adds the settings of built-in choices. No torch."""

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
    is_setting,
    list_declared_settings,
    list_own,
)
from cohort.algorithms.registry import Choice, Kind
from cohort.recipe.sections import Section, suggest_nearest


def list_choices(kind: Kind) -> str:
    """The names of a kind, for the description of its setting."""
    own = ', or your own "package.module:function"' if kind in OWN_KINDS else ""
    return f"{', '.join(NAMED[kind])}{own}."


class AlgorithmBase(Section):
    """The objective: a named preset, with any setting overridden. data -> reward -> coefficient -> update."""

    name: str = Field("grpo", description="Preset for the settings below: " + ", ".join(sorted(PRESETS)) + ".")
    # -- data source ---------------------------------------------------------------------------------------------------
    data: Literal["policy", "start", "demonstrations", "pairs"] = Field(
        "policy",
        description="Where completions come from. policy: sampled from the current policy. start: sampled from the policy "
        "that the run started from. demonstrations: from the rows. pairs: `chosen` and `rejected` from the rows.",
    )
    # -- advantage -----------------------------------------------------------------------------------------------------
    advantage: str = Field(
        "group_normalized",
        description="How completions or tokens are credited (gae uses the critic of [critic]): " + list_choices("advantage"),
    )
    std_ddof: Literal[0, 1] = Field(0, description="Delta degrees of freedom of standard deviations (TRL: 1).")
    std_epsilon: float = Field(1e-6, ge=0, description="Added to standard deviations (TRL: 1e-4).")
    gamma: float = Field(1.0, gt=0, le=1, description="Discount of gae and global_normalized.")
    gae_lambda: float = Field(1.0, ge=0, le=1, description="Lambda of gae: 1 uses the returns, 0 the critic.")
    # -- trust region --------------------------------------------------------------------------------------------------
    region: str = Field(
        "clip",
        description="Ratio and trust region, which keep an update close to the policy that sampled: " + list_choices("region"),
    )
    clip_low: float = Field(0.2, ge=0, lt=1, description="The ratio is clipped below 1 - clip_low.")
    clip_high: float = Field(0.2, ge=0, description="The ratio is clipped above 1 + clip_high.")
    dual_clip: float = Field(3.0, gt=1, description="dual_clip: for A < 0 the loss of a token is at most this times |A|.")
    ratio_cap: float = Field(5.0, gt=0, description="cispo: upper limit of the ratio that weighs a token.")
    mismatch_weight: Literal["auto", "off", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = Field(
        "auto",
        description="Importance weight pi_old / pi_engine that corrects for different log-probs in engine and trainer, per token or completion: "
        "capped at mismatch_cap (truncate), or 0 outside 1/mismatch_cap to mismatch_cap (mask). auto: token_truncate with the engine vllm if "
        "it fits the other settings and nothing is sampled ahead; else off.",
    )
    mismatch_cap: float = Field(2.0, gt=1, description="Largest value of mismatch_weight.")
    # -- KL to the reference -------------------------------------------------------------------------------------------
    kl_coef: float = Field(
        0.04, ge=0, description="Weight of the KL to the reference; 0: no reference (but see monitors.kl). With dpo: its beta."
    )
    kl_estimator: str = Field("k3", description="Estimator of the KL from sampled tokens: " + list_choices("kl"))
    kl_in: Literal["loss", "token_reward", "completion_reward"] = Field(
        "loss",
        description="Where the KL is applied: in the loss, or subtracted from the reward of each token or of each completion.",
    )
    kl_corrected: bool = Field(
        False, description="In the loss: multiply k1 or k3 by the ratio, so that its gradient is that of the KL."
    )
    kl_target: float = Field(
        0.0, ge=0, description="Adapt kl_coef to keep the KL at this many nats per completion; 0: kl_coef is constant."
    )
    reference_every: int = Field(0, ge=0, description="Replace the reference with the policy every N steps; 0: never.")
    reference_decay: float = Field(
        0.0, ge=0, lt=1, description="The reference is a moving average of the policy with this decay; 0: it is fixed."
    )
    entropy_coef: float = Field(0.0, ge=0, description="Weight of an entropy bonus.")
    # -- aggregation ---------------------------------------------------------------------------------------------------
    aggregation: str = Field("sequence_mean", description="How token losses are averaged: " + list_choices("aggregation"))
    # -- selection -----------------------------------------------------------------------------------------------------
    zero_variance: Literal["keep", "drop"] = Field(
        "keep", description="Groups with equal rewards: keep counts them in every denominator, drop excludes them."
    )
    refill_rounds: int = Field(
        0, ge=0, description="Dynamic sampling: up to N more rounds to replace groups that all succeed or all fail; 0: off."
    )
    prompt_choice: Literal["stream", "informative"] = Field(
        "stream",
        description="stream: every prompt once per epoch. informative: prefers prompts whose recent success rate is near 1/2.",
    )
    choice_floor: float = Field(
        0.05, gt=0, le=1, description="informative: weight of a prompt always or never solved; the best prompt has weight 1."
    )
    mask_truncated: bool = Field(False, description="Exclude completions truncated at max_completion_tokens from the loss.")
    overlong_share: float = Field(
        0.0, ge=0, le=1, description="Soft overlong penalty: grows from 0 to 1 over this last share of the limit; 0: off."
    )

    args: dict[str, Any] = Field(
        default_factory=dict,
        description="Parameters of your own functions; checked against their signatures when a run starts.",
    )
    _own: Own = PrivateAttr(default_factory=dict)

    @property
    def own(self) -> Own:
        """The user's functions by kind, once they are resolved. Reading a recipe imports none."""
        return self._own

    @property
    def chosen(self) -> Chosen:
        """The chosen functions with their traits."""
        return Chosen.of(self.model_dump(), self._own)

    @property
    def weighs_mismatch(self) -> bool:
        """Whether mismatch weights are on. auto means off until recipe/user_functions.py resolves it for a run."""
        return self.mismatch_weight not in UNWEIGHED

    def read_parameters(self, choice: Choice) -> dict[str, Any]:
        """The values of a choice's parameters: settings of this section; for a user's function also args, or its defaults."""
        own, fields = {**choice.defaults, **self.args}, type(self).model_fields
        return {name: getattr(self, name) if is_setting(name, fields) else own[name] for name in choice.parameters}

    def resolved(self, own: Own) -> AlgorithmConfig:
        """A copy of the section with the resolved functions of the user."""
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
    def refuse_contradictions(self) -> AlgorithmBase:
        if self.args and not list_own(self.model_dump()):
            raise ValueError(
                f"args ({', '.join(self.args)}) are parameters of your own functions, and this recipe names none. Built-in choices "
                "are set by the keys of [algorithm]."
            )
        if reason := find_contradiction(self.model_dump()):
            raise ValueError(reason)
        return self


if TYPE_CHECKING:

    class AlgorithmConfig(AlgorithmBase):
        """[algorithm] with the settings that its choices declare."""

else:
    AlgorithmConfig = create_model(
        "AlgorithmConfig",
        __base__=AlgorithmBase,
        __doc__=AlgorithmBase.__doc__,
        __module__=__name__,
        **{
            setting.name: (type(setting.default), Field(setting.default, description=setting.sentence, **setting.bounds))
            for setting in list_declared_settings()
        },
    )
