"""Rules across the sections of a recipe: refusals, warnings, and what a run needs. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from cohort.algorithms.compatibility import LOWERED
from cohort.algorithms.registry import SAMPLED

if TYPE_CHECKING:
    from cohort.recipe.algorithm import AlgorithmConfig
    from cohort.recipe.schema import Recipe, RewardConfig

OVERLONG_PART = "overlong"
"""The part of the reward that algorithm.overlong_share adds."""
ENVIRONMENT_REWARD = "environment"
"""The reward function that returns what `get_reward` of the environment returned."""
SIZES: tuple[tuple[tuple[str, ...], int, str, int], ...] = (
    (("train.prompts_per_step", "train.group_size"), 2**20, "completions in a step", 2000),
    (("reward_model.prompts", "train.group_size"), 2**20, "completions to fit the reward model on", 2000),
    (("evaluation.samples",), 2**20, "completions of each problem", 2000),
    (("train.minibatches_per_step", "train.passes_per_step"), 2**20, "updates on each batch", 2000),
    (("cold_start.batch_size",), 2**20, "demonstrations in a batch", 2000),
    (("reward_model.batch_size",), 2**20, "completions in a batch", 2000),
    (("evaluation.resamples",), 2**20, "resamples of each estimate", 800),
    (("sampling.slots",), 2**20, "completions in parallel", 8000),
    (("sampling.max_completion_tokens",), 2**24, "tokens of each completion", 64),
    (("evaluation.max_completion_tokens",), 2**24, "tokens of each completion", 64),
    (("model.scratch.hidden_size", "model.scratch.hidden_size", "model.scratch.num_layers"), 2**33, "weights of attention", 16),
    (("model.scratch.hidden_size", "model.scratch.intermediate_size", "model.scratch.num_layers"), 2**33, "weights", 16),
    (("model.scratch.num_layers",), 2**12, "layers of a dozen modules each", 2**16),
    (("model.lora.rank",), 2**16, "columns of every adapter", 2**14),
)
"""Keys whose product counts objects that are in memory at once, the largest accepted count, what is counted, and the least bytes of one
object (of a completion: ids, log-probs, outcome, and its entry in the batch)."""


LEAST_TEMPERATURE = 1e-3
"""Below it, sampling is greedy except for ties, and the logits of a wide model overflow."""


def name_reward(reward: RewardConfig) -> str:
    return reward.name or reward.function.rsplit(":", 1)[-1].rsplit(".", 1)[-1]


def list_trust(recipe: Recipe) -> dict[str, tuple[bool, str]]:
    """Section -> (whether code that ships with its model may run, the model; "" for none)."""
    model = "" if recipe.model.source == "scratch" else recipe.model.source
    return {
        "model": (recipe.model.trust_remote_code, model),
        "teacher": (recipe.teacher.trust_remote_code, recipe.teacher.source),
        "reward_model": (recipe.reward_model.trust_remote_code, recipe.reward_model.source),
    }


def list_trusted_sources(recipe: Recipe) -> list[str]:
    """Models whose code runs in this process, each with its recipe key."""
    return [f"{section}.source {source}" for section, (trusted, source) in list_trust(recipe).items() if trusted]


def has_group_of_one(r: Recipe) -> bool:
    """Whether the advantage compares completions but a group has only one; False while a user's function is not resolved."""
    advantage = r.algorithm.chosen.advantage
    alone = r.train.num_steps > 0 and r.algorithm.data in SAMPLED and r.train.group_size == 1
    return alone and advantage.known and advantage.traits.compares_group


def reward_takes_overlong_name(r: Recipe) -> bool:
    """Whether an advantage that reads reward parts would confuse the overlong penalty with a part of the recipe."""
    reads_parts = "parts_PG" in r.algorithm.chosen.advantage.reads
    return bool(r.algorithm.overlong_share) and reads_parts and OVERLONG_PART in map(name_reward, r.rewards)


def find_idle_teacher_key(r: Recipe) -> str:
    """A key of [teacher] that is set without a teacher; "" if none is."""
    fields = type(r.teacher).model_fields
    changed = (key for key in ("revision", "coef") if getattr(r.teacher, key) != fields[key].default)
    return "" if r.teacher.source else next(changed, "")


def find_idle_server_key(r: Recipe) -> str:
    """A key of [vllm] without effect: there are no servers, or push is another way. `cohort serve` always uses push."""
    fields = type(r.vllm).model_fields
    idle = {"group": ("folder",), "files": ("address",), "adapter": ("address",)}[r.vllm.push]
    keys = idle if r.sampling.servers else tuple(key for key in fields if key != "push")
    return next((key for key in keys if getattr(r.vllm, key) != fields[key].default), "")


def find_second_template(r: Recipe) -> str:
    others: dict[str, Any] = {f"evaluation.sets.{name}": config for name, config in r.evaluation.sets.items()}
    others |= {"cold_start.source": r.cold_start.source} if r.cold_start.source else {}
    return next((place for place, config in others.items() if config.chat_template), "")


def find_unclear_rewards(r: Recipe) -> str:
    """The fault in the rewards of training or of an evaluation set: two parts with one name, or two that decide success."""
    for place, rewards in {
        "": r.rewards,
        **{f"evaluation.sets.{name}.": one.rewards for name, one in r.evaluation.sets.items()},
    }.items():
        names = [name_reward(reward) for reward in rewards]
        if sum(reward.outcome for reward in rewards) > 1:
            return f"{place}rewards: outcome = true on more than one part; exactly one part decides success."
        if len(set(names)) < len(names):
            return f"{place}rewards: two parts share a name ({', '.join(names)}); give each its own `name`."
    return ""


def find_ahead(r: Recipe) -> str:
    """The key that makes sampling run ahead of training; "" if none does."""
    return "ahead.lag" if r.ahead.lag else "ahead.in_flight" if r.ahead.in_flight else ""


def find_idle_environment_key(r: Recipe) -> str:
    """A key of [environment] that is set without an environment; "" if none is."""
    fields = type(r.environment).model_fields
    changed = (
        key for key, field in fields.items() if getattr(r.environment, key) != field.get_default(call_default_factory=True)
    )
    return "" if r.environment.in_use else next(changed, "")


def names_environment_reward(r: Recipe) -> bool:
    return any(part.function == ENVIRONMENT_REWARD for part in r.list_rewards().values())


RULES: tuple[tuple[Callable[[Recipe], Any], str], ...] = (
    (
        lambda r: not r.train.num_steps and not r.cold_start.num_steps,
        "train.num_steps: 0 runs only the cold start, but cold_start.num_steps is 0 too: there is nothing to do.",
    ),
    (
        lambda r: r.train.num_steps and r.algorithm.data in SAMPLED and r.sampling.temperature < LEAST_TEMPERATURE,
        "sampling.temperature: {r.sampling.temperature:g} makes all completions of a group equal, so every advantage is 0 and nothing "
        "is learned. Use 0.6 to 1.0.",
    ),
    (
        lambda r: 0 < r.evaluation.temperature < LEAST_TEMPERATURE,
        "evaluation.temperature: {r.evaluation.temperature:g} makes the logits overflow. Use 0 for greedy completions.",
    ),
    (find_second_template, "{found}.chat_template: a run has one chat template. Set prompts.chat_template."),
    (find_unclear_rewards, "{found}"),
    (lambda r: explain_size(r), "{found}"),
    (
        lambda r: r.monitors.kl and (r.algorithm.data != "policy" or r.algorithm.chosen.region.traits.preference),
        "monitors.kl: the KL is measured on completions of the current policy, and this run does not train on them (algorithm.data "
        "{r.algorithm.data!r}, region {r.algorithm.region!r}). Leave it out.",
    ),
    (
        has_group_of_one,
        "train.group_size: with advantage {r.algorithm.advantage!r} the group is its own baseline, and a group of one always has "
        "advantage 0. Use a group_size of at least 2 (8 is usual).",
    ),
    (
        reward_takes_overlong_name,
        f"rewards: {OVERLONG_PART!r} is the part that algorithm.overlong_share adds, and advantage {{r.algorithm.advantage!r}} would "
        "read it instead of yours; give yours another `name`, or set algorithm.overlong_share = 0.",
    ),
    (
        lambda r: r.reward_model.iterations and r.algorithm.data != "policy",
        "reward_model.iterations: algorithm.data {r.algorithm.data!r} is not sampled during training, so a reward model fitted "
        "on the policy's completions has nothing to score. Use data = 'policy', or iterations = 0.",
    ),
    (
        lambda r: r.reward_model.iterations and not r.algorithm.chosen.advantage.reads_reward,
        "reward_model.iterations: advantage {r.algorithm.advantage!r} uses step rewards, parts or success, not the learned "
        "reward of a completion. Use a group advantage such as 'group_normalized', or iterations = 0.",
    ),
    (
        lambda r: r.reward_model.iterations and r.algorithm.overlong_share,
        "reward_model.iterations: a learned score has no fixed scale, so an overlong penalty of 0 to 1 could be far too large or too "
        "small. Set algorithm.overlong_share = 0.",
    ),
    (
        lambda r: r.reward_model.iterations > r.train.num_steps,
        "reward_model.iterations: {r.reward_model.iterations} iterations for train.num_steps = {r.train.num_steps} steps; some would train "
        "nothing. Use at most one iteration per step.",
    ),
    (
        find_idle_teacher_key,
        "teacher.{found}: there is no teacher. Set teacher.source to a folder or hub id, or leave {found} out.",
    ),
    (
        lambda r: not r.teacher.source and r.algorithm.chosen.advantage.traits.needs_teacher and r.train.num_steps,
        "algorithm.advantage: {r.algorithm.advantage!r} is 0 for every completion, so without a teacher nothing is learned. Set "
        "teacher.source to the folder or hub id of a model with the same tokenizer, or use an advantage that uses rewards.",
    ),
    (
        lambda r: r.teacher.source and r.algorithm.data != "policy",
        "teacher.source: a teacher scores tokens sampled from the policy, and data {r.algorithm.data!r} is not sampled from it. Use data = "
        "'policy', or no teacher; to train on completions of the teacher, use data = 'demonstrations'.",
    ),
    (
        lambda r: r.teacher.source and r.algorithm.chosen.region.traits.preference,
        "teacher.source: region {r.algorithm.region!r} compares whole completions, and a teacher credits single tokens. Use region = "
        "'clip' with an advantage that compares rewards, or no teacher.",
    ),
    (
        lambda r: r.teacher.source and r.algorithm.chosen.region.traits.one_value,
        "teacher.source: region {r.algorithm.region!r} has one value per completion, and a "
        "teacher credits single tokens. Use region = 'clip'.",
    ),
    (
        lambda r: r.parallel.offload and r.parallel.shard != "full",
        'parallel.offload: it works only with shard = "full". Set that, or leave offload out.',
    ),
    (
        lambda r: r.parallel.shard == "full" and r.model.kernels == "fused",
        'model.kernels: fused kernels need whole matrices in contiguous memory, and parallel.shard = "full" splits each matrix. Use '
        'kernels = "auto": training then uses the modules of transformers, and the engine still uses fused kernels.',
    ),
    (
        lambda r: r.parallel.shard == "full" and r.optimizer.state_bits == 8,
        'optimizer.state_bits: 8-bit states are scaled in blocks, and with parallel.shard = "full" the blocks would depend on the number of '
        "ranks. Use state_bits = 32, which takes 8 bytes per parameter, split over all ranks.",
    ),
    (
        lambda r: r.parallel.shard == "full" and r.model.lora.base_dtype == "nf4",
        'model.lora.base_dtype: 4-bit weights cannot be split over ranks. Use base_dtype = "auto" with parallel.shard = "full".',
    ),
    (
        lambda r: r.ahead.lag and r.ahead.in_flight,
        "ahead.in_flight: it replaces the fixed lag. Leave out ahead.lag or ahead.in_flight.",
    ),
    (
        lambda r: not r.ahead.in_flight and r.ahead.max_staleness != type(r.ahead).model_fields["max_staleness"].default,
        "ahead.max_staleness: only ahead.in_flight = true uses it; ahead.lag is a fixed lag. Set in_flight, or leave it out.",
    ),
    (
        lambda r: r.ahead.in_flight and r.algorithm.refill_rounds,
        "ahead.in_flight: dynamic sampling (algorithm.refill_rounds) decides after a whole round what to draw next, and continuous sampling "
        "has no rounds. Use ahead.lag, or refill_rounds = 0.",
    ),
    (
        lambda r: find_ahead(r) if r.algorithm.data != "policy" else "",
        "{found}: algorithm.data {r.algorithm.data!r} is not sampled from the policy, so there is nothing to sample ahead. Leave it "
        "out.",
    ),
    (
        lambda r: find_ahead(r) if r.reward_model.iterations else "",
        "{found}: a reward model that is fitted between steps (reward_model.iterations) would score completions sampled before "
        "the fit. Leave it out, or set iterations = 0.",
    ),
    (
        lambda r: r.sampling.servers and r.sampling.chosen_engine != "vllm",
        'sampling.servers: engine {r.sampling.engine!r} samples in this process. Use engine = "vllm" (or "auto"), or leave out the servers.',
    ),
    (
        find_idle_server_key,
        "vllm.{found}: it has no effect with push = {r.vllm.push!r} and sampling.servers = {r.sampling.servers!r}. Leave it out.",
    ),
    (
        lambda r: r.vllm.push == "adapter" and not r.model.lora.rank,
        'vllm.push: "adapter" sends the adapter of a LoRA policy, and model.lora.rank is 0. Use push = "group".',
    ),
    (
        lambda r: r.sampling.servers and not r.sampling.cuda_graphs,
        "sampling.cuda_graphs: it has no effect on servers. Leave it out, and start them with `cohort serve RECIPE -- --enforce-eager`.",
    ),
    (
        lambda r: r.environment.source and r.environment.sources,
        "environment.sources: several environments replace environment.source. Leave one of them out.",
    ),
    (
        find_idle_environment_key,
        "environment.{found}: there is no environment. Set environment.source or environment.tools, or leave {found} out.",
    ),
    (
        lambda r: r.environment.args and not r.environment.source,
        "environment.args: these are arguments of the class that environment.source names. Leave them out.",
    ),
    (
        lambda r: r.prompts.source == "environment" and not r.environment.source,
        'prompts.source: "environment" takes the prompts from environment.source, which is empty. Name a class, or other prompts.',
    ),
    (
        lambda r: not (r.environment.source or r.environment.sources) and names_environment_reward(r),
        'rewards: "environment" is the reward of an environment, and there is none. Set environment.source.',
    ),
    (
        lambda r: r.environment.in_use and r.algorithm.data != "policy",
        "environment: algorithm.data {r.algorithm.data!r} is not sampled from the policy, so no episode is played. Use data = 'policy'.",
    ),
    (
        lambda r: r.environment.in_use and "steps_N" in r.algorithm.chosen.advantage.reads,
        "algorithm.advantage: {r.algorithm.advantage!r} is wrong where the policy decides how many steps there are: it rewards taking more of "
        "them. Use 'turns' for rewards of turns, or an advantage of whole episodes such as 'group_normalized'.",
    ),
    (
        lambda r: "turns_N" in r.algorithm.chosen.advantage.reads and not (r.environment.source or r.environment.sources),
        "algorithm.advantage: {r.algorithm.advantage!r} credits the turns of an environment, and there is none. Set environment.source, or use "
        "'group_normalized'.",
    ),
    (
        lambda r: r.environment.in_use and r.ahead.in_flight,
        "ahead.in_flight: an episode in an environment cannot change its policy half-way. Use ahead.lag.",
    ),
    (
        lambda r: r.environment.in_use and r.reward_model.iterations,
        "reward_model.iterations: a reward model scores single completions, not episodes. Set iterations = 0.",
    ),
    (
        lambda r: next((n for n, one in r.evaluation.sets.items() if r.environment.in_use and one.template_args), ""),
        "evaluation.sets.{found}.template_args: with an environment all chats have the arguments of prompts.template_args. Leave it out.",
    ),
    (
        lambda r: next((section for section, (trusted, source) in list_trust(r).items() if trusted and not source), ""),
        "{found}.trust_remote_code: {found}.source names no model. Leave it out.",
    ),
)
"""(a function that finds the fault in a recipe, the message with the fix); {found} is what the function returned."""


def find_refusal(recipe: Recipe) -> str:
    """Why a recipe makes no sense as a whole; "" if it does. Checked again once a user's functions are resolved."""
    return next((reason.format(r=recipe, found=found) for finds, reason in RULES if (found := finds(recipe))), "")


def explain_size(recipe: Recipe) -> str:
    """The numbers of the recipe that need more memory than any machine has; "" if there are none."""
    for keys, most, what, size in SIZES:
        values: list[int] = [read_value(recipe, key) for key in keys]
        count = math.prod(values)
        if count > most:
            named = dict(zip(keys, values, strict=True))
            shown = " × ".join(f"{key} = {value:,}" for key, value in named.items())
            return (
                f"{keys[0]}: {shown} makes {count:,} {what}, which take at least {math.ceil(count * size / 2**30):,} GiB; at "
                f"most {most:,} are accepted. Lower {' or '.join(named)}."
            )
    return ""


def read_value(recipe: Recipe, key: str) -> Any:
    """The value of a dotted key, such as train.group_size."""
    value: Any = recipe
    for name in key.split("."):
        value = getattr(value, name)
    return value


def find_answer_column(rewards: Sequence[RewardConfig]) -> str:
    """The column with the reference answer: the source of the parameter `answer`, preferably of the part that decides success."""
    parts = sorted(rewards, key=lambda part: not part.outcome)
    return next((part.columns["answer"] for part in parts if "answer" in part.columns), "answer")


def measures_kl(recipe: Recipe) -> bool:
    """Whether batches are scored by a reference: for the loss or the reward, or only to measure the KL."""
    return recipe.algorithm.kl_coef > 0 or recipe.monitors.kl


def scores_prompts(recipe: Recipe) -> bool:
    """Whether the run scores completions of training prompts; demonstrations and pairs are trained on without scores."""
    cold = recipe.cold_start.num_steps > 0 and recipe.cold_start.until_success < 1.0
    return cold or (recipe.train.num_steps > 0 and recipe.algorithm.data in SAMPLED)


def needs_reference(recipe: Recipe) -> bool:
    return measures_kl(recipe) or recipe.algorithm.data == "start"


def leaves_stale(algorithm: AlgorithmConfig) -> bool:
    """Whether nothing corrects for completions that were sampled from an older policy."""
    region = algorithm.chosen.region
    return region.known and not region.traits.needs_ratio and not region.traits.preference


def list_unread_rewards(recipe: Recipe) -> list[str]:
    """Rewards with a weight that have no effect: all but the deciding part, if the advantage uses only success."""
    advantage = recipe.algorithm.chosen.advantage
    if recipe.algorithm.data not in SAMPLED or not advantage.reads_success or LOWERED & {*advantage.reads}:
        return []
    outcome = next((reward for reward in recipe.rewards if reward.outcome), recipe.rewards[0])
    return [name_reward(reward) for reward in recipe.rewards if reward is not outcome and reward.weight]


def count_longest_rollout(recipe: Recipe) -> int:
    """The largest number of tokens of a prompt with its completion, in training and in evaluation."""
    prompts = [recipe.prompts, *recipe.evaluation.sets.values()]
    completion = max(recipe.sampling.max_completion_tokens, recipe.evaluation.max_completion_tokens)
    return max(config.max_prompt_tokens for config in prompts) + completion + recipe.environment.max_reply_tokens


def is_pretrained(recipe: Recipe) -> bool:
    return recipe.model.source != "scratch"


def clips_tokens(recipe: Recipe) -> bool:
    """Whether the ratios of single tokens are clipped; the ratio of a whole completion changes far less."""
    region = recipe.algorithm.chosen.region
    return "clip_low" in region.parameters and not region.traits.one_value


LORA_RATE = (
    "a rule of thumb: LoRA needs about ten times the learning rate of full training: 1e-5 to 1e-4 instead of 1e-6 to 1e-5"
)
FULL_RATE = "full fine-tuning with RL works around 1e-6, and up to 3e-5 for models of about 100M parameters"
RANGES: tuple[tuple[str, float, float, Callable[[Recipe], bool], str], ...] = (
    (
        "train.group_size",
        4,
        64,
        lambda r: r.algorithm.chosen.advantage.traits.compares_group,
        "small groups lack signal, large ones are expensive",
    ),
    ("sampling.temperature", 0.6, 1.0, is_pretrained, "too low gives copies, too high gives noise"),
    ("algorithm.clip_low", 0.1, 0.3, clips_tokens, "the trust region of PPO and GRPO is about 0.2"),
    ("algorithm.clip_high", 0.1, 0.3, clips_tokens, "DAPO's clip-higher is 0.28"),
    ("algorithm.kl_coef", 0.0, 0.04, is_pretrained, "more than in DeepSeekMath keeps the policy close to its start"),
    ("optimizer.learning_rate", 1e-5, 1e-3, lambda r: r.model.lora.rank > 0, LORA_RATE),
    ("optimizer.learning_rate", 1e-7, 3e-5, lambda r: not r.model.lora.rank, FULL_RATE),
)
"""Ranges that work for pretrained models: key, lowest, highest, whether it applies to a recipe, and the reason."""
HIGHEST_RATE = 0.03
"""The highest learning rate without a warning for a model from scratch."""


def list_warnings(recipe: Recipe) -> list[str]:
    """Warnings about settings that are unlikely to work. The ranges apply only to pretrained models."""
    warnings: list[str] = []
    if not recipe.train.num_steps:
        return warnings
    stale = recipe.train.minibatches_per_step * recipe.train.passes_per_step > 1
    if stale and recipe.algorithm.data == "policy" and leaves_stale(recipe.algorithm):
        warnings.append(
            f"algorithm.region = {recipe.algorithm.region} does not correct for stale data, and with several minibatches or passes all but the first "
            "are stale: set train.minibatches_per_step = train.passes_per_step = 1, or use region = clip"
        )
    if find_ahead(recipe) and leaves_stale(recipe.algorithm) and not recipe.algorithm.weighs_mismatch:
        warnings.append(
            f"algorithm.region = {recipe.algorithm.region} does not correct for stale data, and with {find_ahead(recipe)} all data is stale: use "
            "region = clip, or mismatch_weight = token_truncate"
        )
    if unread := list_unread_rewards(recipe):
        warnings.append(
            f"algorithm.advantage = {recipe.algorithm.advantage} uses only success, so these rewards are measured but have no effect: "
            f"{', '.join(unread)}. Set their weight = 0, or use an advantage that uses rewards, such as group_normalized"
        )
    for path, low, high, applies, why in RANGES:
        value = read_value(recipe, path)
        if is_pretrained(recipe) and applies(recipe) and not low <= value <= high:
            warnings.append(f"{path} = {value:g} is outside {low:g} to {high:g}: {why}")
    if not is_pretrained(recipe) and (rate := recipe.optimizer.learning_rate) > HIGHEST_RATE:
        warnings.append(
            f"optimizer.learning_rate = {rate:g}: AdamW changes every weight by up to the rate in each step, so more than {HIGHEST_RATE:g} "
            "destroys most models; 1e-4 to 1e-3 is usual for small models from scratch"
        )
    return warnings
