"""The recipe: everything a run depends on, typed, frozen and strict. Imports no torch.

A recipe is a TOML file. Unknown keys are refused with the nearest known name, overrides are `section.key=value` (the
common words also undotted), and the resolved recipe with every default is written into the run folder. There are no
optional-by-None fields: TOML has no null, so "off" is always a value (0, "" or false) that the description names.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, create_model, field_validator, model_validator

from cohort.algorithms.contradictions import contradiction
from cohort.algorithms.effects import LOWERED
from cohort.algorithms.named import FIELDS, NAMED, Chosen, Own, declared_words
from cohort.algorithms.own import OWN_FUNCTION, OWN_KINDS, is_word, named_own
from cohort.algorithms.presets import PRESETS
from cohort.algorithms.registry import SAMPLED, Choice, Kind
from cohort.recipe.engines import ABOUT_ENGINES, AUTO, ENGINES
from cohort.recipe.versions import VERSION, why_unreadable


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


class ScratchConfig(Section):
    """A small Llama built here, for runs that download nothing. Used when model.source is "scratch"."""

    hidden_size: int = Field(128, ge=8, description="Width of the residual stream.")
    intermediate_size: int = Field(384, ge=8, description="Width of the MLP.")
    num_layers: int = Field(4, ge=1, description="Decoder layers.")
    num_heads: int = Field(4, ge=1, description="Query heads; must divide hidden_size.")
    num_kv_heads: int = Field(2, ge=1, description="Key/value heads; must divide num_heads.")
    max_positions: int = Field(256, ge=8, description="Longest sequence, prompt and completion together.")
    characters: str = Field(
        "", description='Alphabet of the character tokenizer; "" collects it from prompts and demonstrations.'
    )


class LoraConfig(Section):
    """Low-rank adapters through PEFT: the base stays frozen, and only the adapter is trained and saved."""

    rank: int = Field(0, ge=0, description="Rank of the adapters; 0 trains all weights.")
    alpha: float = Field(0.0, ge=0, description="The adapter is scaled by alpha / rank; 0 is twice the rank.")
    targets: list[str] = Field(
        default_factory=list, description="Names of the modules that get adapters; empty: every linear layer but the head."
    )
    adapter: str = Field(
        "", description='Folder of a PEFT adapter that the run starts from, and its reference for the KL; "" begins with none.'
    )
    merge: bool = Field(True, description="The exported model holds merged weights; false exports the adapter alone.")


class ModelConfig(Section):
    """Where the policy comes from."""

    source: str = Field("scratch", description='A local folder, a hub id, or "scratch" for the model of [model.scratch].')
    revision: str = Field("", description='Hub revision; "" is the default branch.')
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Dtype of the parameters while computing. auto: bfloat16 on CUDA, float32 on CPU. "
        "The optimizer always keeps float32 masters.",
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
    kernels: Literal["auto", "fused", "modules"] = Field(
        "auto",
        description="fused: own kernels for the Llama and Qwen families, to sample and to train (on a CPU where a compiler is found). "
        "modules: the modules of transformers. auto: fused where it is proven to give the same numbers, else modules, and says so.",
    )
    scratch: ScratchConfig = ScratchConfig()
    lora: LoraConfig = LoraConfig()


class PromptsConfig(Section):
    """Where prompts come from: rows with a `prompt` column (text or chat messages); other columns go to the rewards."""

    source: str = Field(
        "task:column_addition",
        description='A .jsonl, .parquet or .csv file, a saved datasets folder, a hub dataset id, "task:NAME" (built in), '
        '"gym:NAME" (reasoning-gym), or "package.module:function" yielding rows.',
    )
    split: str = Field("train", description="Split of a hub dataset or of a built-in task.")
    shape: Literal["", "gsm8k", "math", "humaneval", "mbpp"] = Field(
        "",
        description="Whose columns the rows have; the prompt and what the rewards need are made from them. "
        '"": they have their own.',
    )
    prompt_column: str = Field("prompt", description="Column that holds the prompt.")
    template: str = Field("", description='Text with {column} fields that makes the prompt; "" takes the column as it is.')
    system: str = Field("", description="System message put before chat prompts; turns a text prompt into a chat.")
    args: dict[str, Any] = Field(
        default_factory=dict, description="Arguments of a task, a gym task or a function; for a hub dataset, of load_dataset."
    )
    limit: int = Field(0, ge=0, description="Use the first N rows only; 0 is all of them.")
    shuffle: bool = Field(True, description="A new seeded order every epoch; false keeps the file's order.")
    max_prompt_tokens: int = Field(512, ge=1, description="Longer prompts are left out, counted and reported at start.")


class RewardConfig(Section):
    """One part of the reward. The first part, or the one with outcome = true, decides success."""

    function: str = Field(description='A name from cohort.rewards ("math_answer") or "package.module:function".')
    name: str = Field("", description='Name in the metrics; "" is the name of the function.')
    weight: float = Field(1.0, description="Factor in the summed reward.")
    outcome: bool = Field(False, description="This part decides success (pass@k, difficulty, filtering).")
    threshold: float = Field(0.5, description="The outcome part is a success at or above this value.")
    timeout_s: float = Field(
        10.0,
        gt=0,
        description="Wall-clock limit of one call, in seconds; for rewards that limit themselves (math_answer, code_tests, judge, "
        "gym_verifier), of one completion.",
    )
    args: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments bound to the function.")


def list_choices(kind: Kind) -> str:
    """The names of a kind, for the description of the word that holds one."""
    return (
        ", ".join(NAMED[kind]) + (', or a function of your own as "package.module:function"' if kind in OWN_KINDS else "") + "."
    )


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
    mismatch_weight: Literal["off", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = Field(
        "off",
        description="Importance weight pi_old / pi_engine for a gap between engine and trainer, per token or completion; "
        "cut at mismatch_cap (truncate), or 0 outside 1/mismatch_cap to mismatch_cap (mask).",
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
        raise ValueError(f"no such {kind}{nearest(name, NAMED[kind])} Known: {list_choices(kind)}")

    @model_validator(mode="before")
    @classmethod
    def fill_from_preset(cls, given: Any) -> Any:
        name = given.get("name", "grpo") if isinstance(given, Mapping) else "grpo"
        if not isinstance(given, Mapping) or not isinstance(name, str):
            return given
        if name not in PRESETS:
            raise ValueError(f"unknown algorithm {name!r} (known: {', '.join(sorted(PRESETS))}){nearest(name, PRESETS)}")
        return {**PRESETS[name], **given, "name": name}

    @model_validator(mode="after")
    def refuse_contradictions(self) -> AlgorithmWords:
        if self.args and not named_own(self.model_dump()):
            raise ValueError(
                f"args ({', '.join(self.args)}) are parameters of functions of your own, and no choice names one. Built-in choices "
                "are told by words of [algorithm]."
            )
        reason = contradiction(self.model_dump())
        if reason:
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
            for word in declared_words()
        },
    )


class CriticConfig(Section):
    """PPO's value function: a network of its own, the size of the policy. Used when algorithm.advantage is "gae"."""

    learning_rate: float = Field(1e-5, gt=0, description="Peak learning rate; schedule and the rest as in [optimizer].")
    clip: float = Field(0.2, ge=0, description="A value moves at most this far from its old one in a step; 0: no clipping.")


class TeacherConfig(Section):
    """On-policy distillation: a frozen model credits every sampled token with coef (log pi_teacher - log pi_sampled)."""

    source: str = Field("", description='A local folder or a hub id, with the tokenizer of the policy; "": no teacher.')
    revision: str = Field("", description='Hub revision of the teacher; "" is the default branch.')
    coef: float = Field(
        1.0,
        gt=0,
        description="Weight of its credit, which is added to the advantage of each token; 1 is the reverse KL itself.",
    )


class RewardModelConfig(Section):
    """Iterative training against a learned reward model. The functions of [[rewards]] label its data and judge success."""

    iterations: int = Field(
        0, ge=0, description="Rounds of (fit the reward model, refresh the reference, train); 0: no reward model."
    )
    source: str = Field(
        "", description='A folder or hub id of a sequence-classification model to begin with; "" makes one from the policy.'
    )
    loss: Literal["pairwise", "pointwise"] = Field(
        "pairwise", description="pairwise: right above wrong in the same group. pointwise: right or wrong, each by itself."
    )
    prompts: int = Field(256, ge=1, description="Training prompts whose fresh completions are labelled before each iteration.")
    epochs: int = Field(2, ge=1, description="Passes over the labelled data.")
    batch_size: int = Field(64, ge=1, description="Completions per update of the reward model.")
    learning_rate: float = Field(1e-5, gt=0, description="Learning rate of the reward model.")
    replay_share: float = Field(0.1, ge=0, le=1, description="Older labelled completions mixed in, as a share of the new ones.")
    held_back: float = Field(0.1, gt=0, lt=1, description="Share of the prompts kept from the fit, to measure its accuracy.")


class SamplingConfig(Section):
    """How training rollouts are drawn."""

    engine: str = Field(AUTO, description=ABOUT_ENGINES, json_schema_extra={"choices": [AUTO, *ENGINES]})
    temperature: float = Field(1.0, ge=0, description="Sampling temperature; also divides the logits wherever they are scored.")
    max_completion_tokens: int = Field(512, ge=1, description="Completions are cut here.")
    stop: list[str] = Field(default_factory=list, description="Extra single-token stops, beside the model's own.")
    slots: int = Field(0, ge=0, description="Completions decoded side by side; 0 picks from the memory that is free.")
    cuda_graphs: bool = Field(
        True, description="Capture decode steps in CUDA graphs: a few seconds at the start, several times the speed after."
    )
    top_p: float = Field(1.0, gt=0, le=1, description="Must stay 1 in training; see [evaluation] for evaluation.")
    top_k: int = Field(0, ge=0, description="Must stay 0 in training; see [evaluation] for evaluation.")

    @field_validator("engine")
    @classmethod
    def refuse_unknown_engine(cls, name: str) -> str:
        known = [AUTO, *ENGINES]
        if name not in known:
            raise ValueError(f"{name!r} is not an engine (known: {', '.join(known)}){nearest(name, known)}")
        return name


class TrainConfig(Section):
    """The size of a step. State prompts and group size; everything else is derived."""

    num_steps: int = Field(200, ge=0, description="Steps to train; 0 trains the cold start alone.")
    prompts_per_step: int = Field(32, ge=1, description="Prompts drawn in each step.")
    group_size: int = Field(8, ge=1, description="Completions sampled per prompt.")
    minibatches_per_step: int = Field(1, ge=1, description="Optimizer steps that one pass over a batch is cut into.")
    passes_per_step: int = Field(1, ge=1, description="Passes over each batch.")
    micro_batch_tokens: int = Field(16384, ge=1, description="Tokens of one forward-backward; never changes the gradient.")
    activation_checkpointing: bool = Field(
        False,
        description="Keep one hidden state per layer and compute the rest again in the backward: less memory, a third more time.",
    )
    deterministic: bool = Field(
        False,
        description="On a GPU: the same bits in every run of a recipe, resumed or not. Slower: attention adds its gradients in order.",
    )
    max_fault_share: float = Field(0.1, ge=0, le=1, description="Reward faults above this share of a step stop the run.")


class OptimizerConfig(Section):
    """AdamW on float32 master weights."""

    learning_rate: float = Field(1e-6, gt=0, description="Peak learning rate.")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="Decay after warm-up.")
    warmup_steps: int = Field(0, ge=0, description="Optimizer steps of linear warm-up.")
    final_share: float = Field(0.0, ge=0, le=1, description="Share of the peak that linear and cosine decay to.")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW beta1.")
    beta2: float = Field(0.999, ge=0, lt=1, description="AdamW beta2.")
    epsilon: float = Field(1e-8, gt=0, description="AdamW epsilon.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay.")
    state_bits: Literal[32, 8] = Field(
        32,
        description="Bits of each of AdamW's two moments; 8 quantises them block by block, for models that do not fit otherwise.",
    )
    max_grad_norm: float = Field(1.0, ge=0, description="Gradients are clipped to this norm; 0 is no clipping.")


class ColdStartConfig(Section):
    """Supervised training on demonstrations before GRPO: a stage of its own (alone with train.num_steps = 0)."""

    num_steps: int = Field(0, ge=0, description="Supervised batches at most; 0 skips the stage.")
    source: PromptsConfig | Literal[""] = Field("", description='Rows with demonstrations; "" takes the training rows.')
    completion_column: str = Field("demonstration", description="Column that holds the text to imitate.")
    batch_size: int = Field(64, ge=1, description="Demonstrations per batch.")
    learning_rate: float = Field(3e-3, gt=0, description="Peak learning rate of the stage.")
    warmup_steps: int = Field(20, ge=0, description="Steps of linear warm-up.")
    until_success: float = Field(
        1.0, gt=0, le=1, description="Stop once sampled success on training prompts reaches this; 1 runs all steps."
    )
    check_every: int = Field(25, ge=1, description="Steps between two looks at the success rate.")
    check_prompts: int = Field(64, ge=1, description="Training prompts sampled at each look.")


class EvaluationConfig(Section):
    """Held-out evaluation, before and after every run, with sampling of its own."""

    samples: int = Field(8, ge=0, description="Completions per problem; 0 switches evaluation off.")
    every_steps: int = Field(0, ge=0, description="Also evaluate every N steps; 0 is before and after only.")
    every_problems: int = Field(128, ge=1, description="Problems of the first set used while training.")
    max_problems: int = Field(512, ge=1, description="Problems per set at most.")
    held_out: float = Field(0.1, ge=0, lt=1, description="Share of the training rows set aside when no set is named.")
    temperature: float = Field(1.0, ge=0, description="Sampling temperature of evaluation.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus cut of evaluation.")
    top_k: int = Field(0, ge=0, description="Top-k cut of evaluation.")
    max_completion_tokens: int = Field(0, ge=0, description="0: as in [sampling].")
    greedy: bool = Field(True, description="Also report greedy accuracy.")
    resamples: int = Field(1000, ge=100, description="Bootstrap resamples for the intervals.")
    sets: dict[str, PromptsConfig] = Field(
        default_factory=dict, description="Named sets; empty: a held-out share of the training rows."
    )


class CheckpointsConfig(Section):
    """When the run is saved."""

    every_steps: int = Field(25, ge=0, description="Save every N steps; 0 saves only at the end and when interrupted.")
    keep: int = Field(2, ge=1, description="How many recent checkpoints stay on disk.")
    best: bool = Field(True, description="Also keep the checkpoint with the best held-out reward.")


class MonitorsConfig(Section):
    """Who watches. metrics.jsonl is always written and is the source of truth."""

    console: bool = Field(True, description="Live lines on the terminal.")
    tensorboard: bool = Field(False, description="Write TensorBoard events into the run folder.")
    wandb: bool = Field(False, description="Send metrics to Weights & Biases.")
    wandb_project: str = Field("cohort", description="Project for Weights & Biases.")
    also: list[str] = Field(
        default_factory=list,
        description='More monitors: names from cohort.observe.monitors, or "package.module:Class" of your own, which is imported when '
        "a run starts and never when a recipe is read.",
    )
    rollouts_every: int = Field(1, ge=0, description="Keep every completion of every N-th step as parquet; 0 keeps none.")
    kl: bool = Field(
        False,
        description="Measure the KL to the reference also where algorithm.kl_coef is 0, on the completions that are trained on. It "
        "costs what a reference costs (its memory, a forward per step), and changes no bit of the training.",
    )


class Recipe(Section):
    """Everything a run depends on."""

    version: int = Field(
        VERSION, description="In which words the recipe is written; a file without one is of version 0. See Versions, below."
    )
    name: str = Field("", description='Name of the run folder; "" makes one from the recipe and the time.')
    runs_folder: str = Field("runs", description="Folder in which run folders are made.")
    seed: int = Field(0, ge=0, lt=2**63, description="All randomness is keyed by it.")
    model: ModelConfig = ModelConfig()
    prompts: PromptsConfig = PromptsConfig()
    rewards: list[RewardConfig] = Field(default_factory=lambda: [RewardConfig(function="math_answer")], min_length=1)
    algorithm: AlgorithmConfig = AlgorithmConfig()
    sampling: SamplingConfig = SamplingConfig()
    train: TrainConfig = TrainConfig()
    critic: CriticConfig = CriticConfig()
    teacher: TeacherConfig = TeacherConfig()
    reward_model: RewardModelConfig = RewardModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    cold_start: ColdStartConfig = ColdStartConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoints: CheckpointsConfig = CheckpointsConfig()
    monitors: MonitorsConfig = MonitorsConfig()

    @field_validator("version")
    @classmethod
    def refuse_other_version(cls, version: int) -> int:
        if version != VERSION:
            old = f"it is {VERSION} once a recipe is read; an older one is stated in the file it belongs to, which is brought up to date"
            raise ValueError(why_unreadable(version) or old)
        return version

    @model_validator(mode="after")
    def refuse_what_cannot_learn(self) -> Recipe:
        training = self.train.num_steps > 0
        sampled = training and self.algorithm.data in SAMPLED
        if not training and not self.cold_start.num_steps:
            raise ValueError(
                "train.num_steps: 0 trains the cold start alone, but cold_start.num_steps is 0 too: nothing to do."
            )
        if sampled and self.sampling.temperature <= 0:
            raise ValueError(
                "sampling.temperature: 0 makes every completion of a group the same, so every advantage is 0 and nothing "
                "is learned. Use 0.6 to 1.0."
            )
        if self.sampling.top_p < 1.0 or self.sampling.top_k > 0:
            raise ValueError(
                "sampling.top_p / sampling.top_k: cutting the distribution in training biases the ratio by the mass that is "
                "kept. Set them under [evaluation], where they are honoured."
            )
        if sum(reward.outcome for reward in self.rewards) > 1:
            raise ValueError("rewards: outcome = true on more than one part; exactly one part decides success.")
        names = [reward_name(reward) for reward in self.rewards]
        if len(set(names)) < len(names):
            raise ValueError(f"rewards: two parts share a name ({', '.join(names)}); give each its own `name`.")
        reason = why_choices_are_refused(self)
        if reason:
            raise ValueError(reason)
        return self


def why_choices_are_refused(recipe: Recipe) -> str:
    """What the facts of the choices forbid beside the rest of the recipe; asked again when a user's functions are resolved."""
    algorithm = recipe.algorithm
    if recipe.monitors.kl and (algorithm.data != "policy" or algorithm.chosen.region.traits.preference):
        return (
            "monitors.kl: the KL is measured on what the policy samples, and here it is not trained on that (algorithm.data "
            f"{algorithm.data!r}, region {algorithm.region!r}). Leave it out."
        )
    return why_nothing_is_learned(recipe) or why_no_reward_model(recipe) or why_no_teacher(recipe)


def why_nothing_is_learned(recipe: Recipe) -> str:
    """Why a group of one teaches nothing here; "" when it does, and while a user's advantage is not resolved."""
    algorithm, advantage = recipe.algorithm, recipe.algorithm.chosen.advantage
    alone = recipe.train.num_steps > 0 and algorithm.data in SAMPLED and recipe.train.group_size == 1
    if not (alone and advantage.known and advantage.traits.compares_group):
        return ""
    return (
        f"train.group_size: with advantage {advantage.name!r} the group is its own baseline, and a group of one always has "
        "advantage 0. Use a group_size of at least 2 (8 is usual)."
    )


def measures_kl(recipe: Recipe) -> bool:
    """Whether batches are scored by a reference: for the loss or the reward, or to watch the KL alone."""
    return recipe.algorithm.kl_coef > 0 or recipe.monitors.kl


def needs_reference(recipe: Recipe) -> bool:
    return measures_kl(recipe) or recipe.algorithm.data == "start"


def why_no_reward_model(recipe: Recipe) -> str:
    """Why these choices would never read a learned reward, or read it wrongly; "" when they do."""
    algorithm, iterations = recipe.algorithm, recipe.reward_model.iterations
    if not iterations:
        return ""
    if algorithm.data != "policy":
        return (
            f"reward_model.iterations: algorithm.data {algorithm.data!r} is not sampled anew, so a reward model that is fitted "
            "on the policy's completions has nothing to judge. Use data = 'policy', or iterations = 0."
        )
    if not algorithm.chosen.advantage.reads_reward:
        return (
            f"reward_model.iterations: advantage {algorithm.advantage!r} reads step rewards, parts or success, never the learned "
            "reward of a completion. Use a group advantage such as 'group_normalized', or iterations = 0."
        )
    if algorithm.overlong_share:
        return (
            "reward_model.iterations: a learned score has no scale, so the overlong penalty of 0 to 1 may drown it or drown "
            "in it. Set algorithm.overlong_share = 0."
        )
    if iterations > recipe.train.num_steps:
        return (
            f"reward_model.iterations: {iterations} fits for train.num_steps = {recipe.train.num_steps} steps; some would train "
            "nothing. Use at most one per step."
        )
    return ""


def why_no_teacher(recipe: Recipe) -> str:
    """Why a teacher would have nothing to say here, or why nobody would; "" when it makes sense."""
    algorithm, teacher = recipe.algorithm, recipe.teacher
    region = algorithm.chosen.region
    if not teacher.source:
        idle = [name for name in ("revision", "coef") if getattr(teacher, name) != getattr(TeacherConfig(), name)]
        if idle:
            return f"teacher.{idle[0]}: there is no teacher. Set teacher.source to a folder or hub id, or leave {idle[0]} out."
        if algorithm.chosen.advantage.traits.needs_teacher and recipe.train.num_steps:
            return (
                f"algorithm.advantage: {algorithm.advantage!r} credits no completion, so without a teacher nothing is learned. Set "
                "teacher.source to the folder or hub id of a model with the same tokenizer, or use an advantage that reads rewards."
            )
        return ""
    if algorithm.data != "policy":
        return (
            f"teacher.source: a teacher judges what the policy samples, and data {algorithm.data!r} is not sampled from it. Use data = "
            "'policy', or no teacher; its written completions are learned by data = 'demonstrations'."
        )
    if region.traits.preference:
        return (
            f"teacher.source: region {region.name!r} compares whole completions, and a teacher credits single tokens. Use region = "
            "'clip' with an advantage that compares rewards, or no teacher."
        )
    if region.traits.one_value:
        return (
            f"teacher.source: region {region.name!r} gives a completion one value, which fits one advantage per completion, and a "
            "teacher credits single tokens. Use region = 'clip'."
        )
    return ""


def leaves_stale(algorithm: AlgorithmConfig) -> bool:
    """Whether nothing corrects for completions of a policy some updates ago."""
    region = algorithm.chosen.region
    return region.known and not region.traits.needs_ratio and not region.traits.preference


def unread_rewards(recipe: Recipe) -> list[str]:
    """Rewards with weight that the advantage does not see: all but the one that decides success, where it reads that alone."""
    advantage = recipe.algorithm.chosen.advantage
    if recipe.algorithm.data not in SAMPLED or not advantage.reads_success or LOWERED & {*advantage.reads}:
        return []
    outcome = next((reward for reward in recipe.rewards if reward.outcome), recipe.rewards[0])
    return [reward_name(reward) for reward in recipe.rewards if reward is not outcome and reward.weight]


def reward_name(reward: RewardConfig) -> str:
    return reward.name or reward.function.rsplit(":", 1)[-1].rsplit(".", 1)[-1]


def nearest(word: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    close.sort(key=lambda other: sorted(other) != sorted(word))  # letters that changed places come first
    close = close or [other for other in known if len(word) > 2 and other.startswith(word)]
    return f"; did you mean {close[0]!r}?" if close else ""


def recipe_warnings(recipe: Recipe) -> list[str]:
    """Values outside the ranges that are known to work. Ranges are for pretrained models; from scratch none apply."""
    warnings = []
    stale = recipe.train.minibatches_per_step * recipe.train.passes_per_step > 1
    if recipe.train.num_steps and stale and recipe.algorithm.data == "policy" and leaves_stale(recipe.algorithm):
        warnings.append(
            f"algorithm.region = {recipe.algorithm.region} corrects nothing on stale data, and with several minibatches or passes all but the first "
            "are stale: set train.minibatches_per_step = train.passes_per_step = 1, or use region = clip"
        )
    unread = unread_rewards(recipe)
    if recipe.train.num_steps and unread:
        warnings.append(
            f"algorithm.advantage = {recipe.algorithm.advantage} reads success alone, so these rewards are measured and without effect: "
            f"{', '.join(unread)}. Give them weight = 0 to say so, or use an advantage that reads rewards, such as group_normalized"
        )
    if recipe.model.source == "scratch" or recipe.train.num_steps == 0:
        return warnings

    def check(path: str, value: float, low: float, high: float, why: str) -> None:
        if not low <= value <= high:
            warnings.append(f"{path} = {value:g} is outside {low:g} to {high:g}: {why}")

    if recipe.algorithm.chosen.advantage.traits.compares_group:
        why = "small groups are often without signal, large ones cost rollouts"
        check("train.group_size", recipe.train.group_size, 4, 64, why)
    check(
        "sampling.temperature",
        recipe.sampling.temperature,
        0.6,
        1.0,
        "too low and a group holds copies, too high and it holds noise",
    )
    region = recipe.algorithm.chosen.region
    if "clip_low" in region.parameters and not region.traits.one_value:  # a whole completion's ratio moves by far less
        check("algorithm.clip_low", recipe.algorithm.clip_low, 0.1, 0.3, "the trust region of PPO and GRPO is about 0.2")
        check("algorithm.clip_high", recipe.algorithm.clip_high, 0.1, 0.3, "DAPO's clip-higher is 0.28")
    check(
        "algorithm.kl_coef", recipe.algorithm.kl_coef, 0.0, 0.04, "more KL than DeepSeekMath used holds the policy at its start"
    )
    if recipe.model.lora.rank:
        why = (
            "a rule of thumb: LoRA needs about ten times the rate of full training, 1e-5 to 1e-4 where that takes 1e-6 to 1e-5"
        )
        check("optimizer.learning_rate", recipe.optimizer.learning_rate, 1e-5, 1e-3, why)
    else:
        why = "full fine-tuning with RL works around 1e-6"
        check("optimizer.learning_rate", recipe.optimizer.learning_rate, 1e-7, 1e-5, why)
    return warnings
