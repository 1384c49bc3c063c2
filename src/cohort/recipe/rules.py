"""What the sections of a recipe say about each other: what cannot learn, what is needed, what is worth a warning. No torch."""

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
SIZES: tuple[tuple[tuple[str, ...], int, str, int], ...] = (
    (("train.prompts_per_step", "train.group_size"), 2**20, "completions in a step", 2000),
    (("reward_model.prompts", "train.group_size"), 2**20, "completions to fit on", 2000),
    (("evaluation.samples",), 2**20, "completions of each problem", 2000),
    (("train.minibatches_per_step", "train.passes_per_step"), 2**20, "updates on each batch", 2000),
    (("cold_start.batch_size",), 2**20, "demonstrations in a batch", 2000),
    (("reward_model.batch_size",), 2**20, "completions in a batch", 2000),
    (("evaluation.resamples",), 2**20, "resamples of each figure", 800),
    (("sampling.slots",), 2**20, "completions side by side", 8000),
    (("sampling.max_completion_tokens",), 2**24, "tokens of each completion", 64),
    (("evaluation.max_completion_tokens",), 2**24, "tokens of each completion", 64),
    (("model.scratch.hidden_size", "model.scratch.hidden_size", "model.scratch.num_layers"), 2**33, "weights of attention", 16),
    (("model.scratch.hidden_size", "model.scratch.intermediate_size", "model.scratch.num_layers"), 2**33, "weights", 16),
    (("model.scratch.num_layers",), 2**12, "layers, each of a dozen modules", 2**16),
    (("model.lora.rank",), 2**16, "columns of every adapter", 2**14),
)
"""Words whose product is a number of things that are held at once, how many are far beyond any use, what they are, and the bytes that
one of them takes at the very least (of a completion: ids, log-probs, outcome, and its place in the batch)."""


LEAST_TEMPERATURE = 1e-3
"""Below it sampling is greedy but for ties, and the logits of a wide model leave the range of floats."""


def name_reward(reward: RewardConfig) -> str:
    return reward.name or reward.function.rsplit(":", 1)[-1].rsplit(".", 1)[-1]


def list_trust(recipe: Recipe) -> dict[str, tuple[bool, str]]:
    """Section -> (whether code that ships with its model may run, where that comes from; "" for nowhere)."""
    model = "" if recipe.model.source == "scratch" else recipe.model.source
    return {
        "model": (recipe.model.trust_remote_code, model),
        "teacher": (recipe.teacher.trust_remote_code, recipe.teacher.source),
        "reward_model": (recipe.reward_model.trust_remote_code, recipe.reward_model.source),
    }


def list_trusted_sources(recipe: Recipe) -> list[str]:
    """Models of which code runs in this process, by the word of the recipe and by name."""
    return [f"{word}.source {source}" for word, (trusted, source) in list_trust(recipe).items() if trusted]


def has_group_of_one(r: Recipe) -> bool:
    """Whether a completion has nobody to be compared with by an advantage that compares; not while a user's is unknown."""
    advantage = r.algorithm.chosen.advantage
    alone = r.train.num_steps > 0 and r.algorithm.data in SAMPLED and r.train.group_size == 1
    return alone and advantage.known and advantage.traits.compares_group


def reward_takes_overlong_name(r: Recipe) -> bool:
    """Whether an advantage that reads parts would take the overlong penalty for one of the recipe."""
    reads_parts = "parts_PG" in r.algorithm.chosen.advantage.reads
    return bool(r.algorithm.overlong_share) and reads_parts and OVERLONG_PART in map(name_reward, r.rewards)


def find_idle_teacher_word(r: Recipe) -> str:
    fields = type(r.teacher).model_fields
    changed = (word for word in ("revision", "coef") if getattr(r.teacher, word) != fields[word].default)
    return "" if r.teacher.source else next(changed, "")


def find_idle_server_word(r: Recipe) -> str:
    """A word about servers that nothing would read: there are none, or weights reach them another way. `cohort serve` reads push."""
    fields = type(r.vllm).model_fields
    idle = {"group": ("folder",), "files": ("address",), "adapter": ("address",)}[r.vllm.push]
    words = idle if r.sampling.servers else tuple(word for word in fields if word != "push")
    return next((word for word in words if getattr(r.vllm, word) != fields[word].default), "")


def find_second_template(r: Recipe) -> str:
    others: dict[str, Any] = {f"evaluation.sets.{name}": config for name, config in r.evaluation.sets.items()}
    others |= {"cold_start.source": r.cold_start.source} if r.cold_start.source else {}
    return next((place for place, config in others.items() if config.chat_template), "")


def find_unclear_rewards(r: Recipe) -> str:
    """What is wrong with the rewards of training or of an evaluation set: parts of one name, or two that decide success."""
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
    """The word by which steps are sampled ahead; "" where they are not."""
    return "ahead.lag" if r.ahead.lag else "ahead.in_flight" if r.ahead.in_flight else ""


RULES: tuple[tuple[Callable[[Recipe], Any], str], ...] = (
    (
        lambda r: not r.train.num_steps and not r.cold_start.num_steps,
        "train.num_steps: 0 trains the cold start alone, but cold_start.num_steps is 0 too: nothing to do.",
    ),
    (
        lambda r: r.train.num_steps and r.algorithm.data in SAMPLED and r.sampling.temperature < LEAST_TEMPERATURE,
        "sampling.temperature: {r.sampling.temperature:g} makes every completion of a group the same, so every advantage is 0 and nothing "
        "is learned. Use 0.6 to 1.0.",
    ),
    (
        lambda r: 0 < r.evaluation.temperature < LEAST_TEMPERATURE,
        "evaluation.temperature: {r.evaluation.temperature:g} divides the logits out of range. Use 0 for greedy completions.",
    ),
    (
        find_second_template,
        "{found}.chat_template: a policy is asked in one form. Set prompts.chat_template for the whole run.",
    ),
    (find_unclear_rewards, "{found}"),
    (lambda r: explain_size(r), "{found}"),
    (
        lambda r: r.monitors.kl and (r.algorithm.data != "policy" or r.algorithm.chosen.region.traits.preference),
        "monitors.kl: the KL is measured on what the policy samples, and here it is not trained on that (algorithm.data "
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
        "read it in place of yours; give yours another `name`, or set algorithm.overlong_share = 0.",
    ),
    (
        lambda r: r.reward_model.iterations and r.algorithm.data != "policy",
        "reward_model.iterations: algorithm.data {r.algorithm.data!r} is not sampled anew, so a reward model that is fitted "
        "on the policy's completions has nothing to judge. Use data = 'policy', or iterations = 0.",
    ),
    (
        lambda r: r.reward_model.iterations and not r.algorithm.chosen.advantage.reads_reward,
        "reward_model.iterations: advantage {r.algorithm.advantage!r} reads step rewards, parts or success, never the learned "
        "reward of a completion. Use a group advantage such as 'group_normalized', or iterations = 0.",
    ),
    (
        lambda r: r.reward_model.iterations and r.algorithm.overlong_share,
        "reward_model.iterations: a learned score has no scale, so the overlong penalty of 0 to 1 may drown it or drown "
        "in it. Set algorithm.overlong_share = 0.",
    ),
    (
        lambda r: r.reward_model.iterations > r.train.num_steps,
        "reward_model.iterations: {r.reward_model.iterations} fits for train.num_steps = {r.train.num_steps} steps; some would train "
        "nothing. Use at most one per step.",
    ),
    (
        find_idle_teacher_word,
        "teacher.{found}: there is no teacher. Set teacher.source to a folder or hub id, or leave {found} out.",
    ),
    (
        lambda r: not r.teacher.source and r.algorithm.chosen.advantage.traits.needs_teacher and r.train.num_steps,
        "algorithm.advantage: {r.algorithm.advantage!r} credits no completion, so without a teacher nothing is learned. Set "
        "teacher.source to the folder or hub id of a model with the same tokenizer, or use an advantage that reads rewards.",
    ),
    (
        lambda r: r.teacher.source and r.algorithm.data != "policy",
        "teacher.source: a teacher judges what the policy samples, and data {r.algorithm.data!r} is not sampled from it. Use data = "
        "'policy', or no teacher; its written completions are learned by data = 'demonstrations'.",
    ),
    (
        lambda r: r.teacher.source and r.algorithm.chosen.region.traits.preference,
        "teacher.source: region {r.algorithm.region!r} compares whole completions, and a teacher credits single tokens. Use region = "
        "'clip' with an advantage that compares rewards, or no teacher.",
    ),
    (
        lambda r: r.teacher.source and r.algorithm.chosen.region.traits.one_value,
        "teacher.source: region {r.algorithm.region!r} gives a completion one value, which fits one advantage per completion, and a "
        "teacher credits single tokens. Use region = 'clip'.",
    ),
    (
        lambda r: r.parallel.offload and r.parallel.shard != "full",
        'parallel.offload: what rests in the memory of the host are the slices of shard = "full". Set that, or leave offload out.',
    ),
    (
        lambda r: r.parallel.shard == "full" and r.model.kernels == "fused",
        'model.kernels: own kernels lay matrices side by side in one memory, and parallel.shard = "full" cuts each into slices. Use '
        'kernels = "auto": training runs on the modules of transformers then, and the engine still on own kernels.',
    ),
    (
        lambda r: r.parallel.shard == "full" and r.optimizer.state_bits == 8,
        'optimizer.state_bits: 8-bit states are scaled by blocks of neighbours, and parallel.shard = "full" would cut other blocks for '
        "every number of ranks. Use state_bits = 32, which takes 8 bytes a parameter over all ranks together.",
    ),
    (
        lambda r: r.parallel.shard == "full" and r.model.lora.base_dtype == "nf4",
        'model.lora.base_dtype: codes of 4 bits are not cut into slices. Use base_dtype = "auto" with parallel.shard = "full".',
    ),
    (
        lambda r: r.ahead.lag and r.ahead.in_flight,
        "ahead.in_flight: it keeps ahead.max_staleness in place of a fixed lag. Leave ahead.lag out, or in_flight.",
    ),
    (
        lambda r: not r.ahead.in_flight and r.ahead.max_staleness != type(r.ahead).model_fields["max_staleness"].default,
        "ahead.max_staleness: it is what ahead.in_flight = true keeps to; a fixed lag is ahead.lag. Set in_flight, or leave it out.",
    ),
    (
        lambda r: r.ahead.in_flight and r.algorithm.refill_rounds,
        "ahead.in_flight: dynamic sampling (algorithm.refill_rounds) decides by a whole round what to draw next, and groups that come one by "
        "one have no rounds. Use ahead.lag, or refill_rounds = 0.",
    ),
    (
        lambda r: find_ahead(r) if r.algorithm.data != "policy" else "",
        "{found}: nothing is sampled from the policy with algorithm.data {r.algorithm.data!r}, so there is nothing to sample ahead. Leave it "
        "out.",
    ),
    (
        lambda r: find_ahead(r) if r.reward_model.iterations else "",
        "{found}: a reward model that is fitted between steps (reward_model.iterations) would judge completions that were sampled before "
        "the fit. Leave it out, or set iterations = 0.",
    ),
    (
        lambda r: r.sampling.servers and r.sampling.chosen_engine != "vllm",
        'sampling.servers: engine {r.sampling.engine!r} samples in this process. Use engine = "vllm" (or "auto") with servers, or name none.',
    ),
    (
        find_idle_server_word,
        "vllm.{found}: nothing reads it, with push = {r.vllm.push!r} and {r.sampling.servers!r} as sampling.servers. Leave it out.",
    ),
    (
        lambda r: r.vllm.push == "adapter" and not r.model.lora.rank,
        'vllm.push: "adapter" sends the adapter of a LoRA policy, and model.lora.rank is 0. Use push = "group".',
    ),
    (
        lambda r: r.sampling.servers and not r.sampling.cuda_graphs,
        "sampling.cuda_graphs: servers have their own. Give `cohort serve` the flag --enforce-eager there, and leave this out.",
    ),
    (
        lambda r: next((word for word, (trusted, source) in list_trust(r).items() if trusted and not source), ""),
        "{found}.trust_remote_code: there is no {found}.source whose code could run. Leave it out.",
    ),
)
"""What the sections forbid each other: whether it is found in a recipe (or what is), and the reason with the way out."""


def find_refusal(recipe: Recipe) -> str:
    """Why a recipe makes no sense as a whole; "" when it does. Asked again when a user's functions are resolved."""
    return next((reason.format(r=recipe, found=found) for finds, reason in RULES if (found := finds(recipe))), "")


def explain_size(recipe: Recipe) -> str:
    """Which numbers of the recipe no machine could hold, with what they would take; "" when all are possible."""
    for words, most, what, size in SIZES:
        values: list[int] = [reach_value(recipe, word) for word in words]
        count = math.prod(values)
        if count > most:
            named = dict(zip(words, values, strict=True))
            shown = " × ".join(f"{word} = {value:,}" for word, value in named.items())
            return (
                f"{words[0]}: {shown} makes {count:,} {what}, and those take {math.ceil(count * size / 2**30):,} GiB at the very least; at "
                f"most {most:,} are accepted. Lower {' or '.join(named)}."
            )
    return ""


def reach_value(recipe: Recipe, word: str) -> Any:
    """train.group_size of the recipe."""
    value: Any = recipe
    for name in word.split("."):
        value = getattr(value, name)
    return value


def find_answer_column(rewards: Sequence[RewardConfig]) -> str:
    """The column of the reference answer: the one that fills `answer`, first of the part that decides success."""
    parts = sorted(rewards, key=lambda part: not part.outcome)
    return next((part.columns["answer"] for part in parts if "answer" in part.columns), "answer")


def measures_kl(recipe: Recipe) -> bool:
    """Whether batches are scored by a reference: for the loss or the reward, or to watch the KL alone."""
    return recipe.algorithm.kl_coef > 0 or recipe.monitors.kl


def scores_prompts(recipe: Recipe) -> bool:
    """Whether the run calls the rewards on completions of the training prompts: demonstrations and pairs are trained on unscored."""
    cold = recipe.cold_start.num_steps > 0 and recipe.cold_start.until_success < 1.0
    return cold or (recipe.train.num_steps > 0 and recipe.algorithm.data in SAMPLED)


def needs_reference(recipe: Recipe) -> bool:
    return measures_kl(recipe) or recipe.algorithm.data == "start"


def leaves_stale(algorithm: AlgorithmConfig) -> bool:
    """Whether nothing corrects for completions of a policy some updates ago."""
    region = algorithm.chosen.region
    return region.known and not region.traits.needs_ratio and not region.traits.preference


def list_unread_rewards(recipe: Recipe) -> list[str]:
    """Rewards with weight that the advantage does not see: all but the one that decides success, where it reads that alone."""
    advantage = recipe.algorithm.chosen.advantage
    if recipe.algorithm.data not in SAMPLED or not advantage.reads_success or LOWERED & {*advantage.reads}:
        return []
    outcome = next((reward for reward in recipe.rewards if reward.outcome), recipe.rewards[0])
    return [name_reward(reward) for reward in recipe.rewards if reward is not outcome and reward.weight]


def count_longest_rollout(recipe: Recipe) -> int:
    """Tokens that a prompt and its completion may have, in training and in evaluation."""
    prompts = [recipe.prompts, *recipe.evaluation.sets.values()]
    completion = max(recipe.sampling.max_completion_tokens, recipe.evaluation.max_completion_tokens)
    return max(config.max_prompt_tokens for config in prompts) + completion


def is_pretrained(recipe: Recipe) -> bool:
    return recipe.model.source != "scratch"


def compares_groups(recipe: Recipe) -> bool:
    return recipe.algorithm.chosen.advantage.traits.compares_group


def clips_tokens(recipe: Recipe) -> bool:
    """Whether single tokens are clipped: a whole completion's ratio moves by far less."""
    region = recipe.algorithm.chosen.region
    return "clip_low" in region.parameters and not region.traits.one_value


LORA_RATE = "a rule of thumb: LoRA needs about ten times the rate of full training, 1e-5 to 1e-4 where that takes 1e-6 to 1e-5"
FULL_RATE = "full fine-tuning with RL works around 1e-6, and up to 3e-5 for models of about 100M parameters"
RANGES: tuple[tuple[str, float, float, Callable[[Recipe], bool], str], ...] = (
    ("train.group_size", 4, 64, compares_groups, "small groups are often without signal, large ones cost rollouts"),
    ("sampling.temperature", 0.6, 1.0, is_pretrained, "too low and a group holds copies, too high and it holds noise"),
    ("algorithm.clip_low", 0.1, 0.3, clips_tokens, "the trust region of PPO and GRPO is about 0.2"),
    ("algorithm.clip_high", 0.1, 0.3, clips_tokens, "DAPO's clip-higher is 0.28"),
    ("algorithm.kl_coef", 0.0, 0.04, is_pretrained, "more KL than DeepSeekMath used holds the policy at its start"),
    ("optimizer.learning_rate", 1e-5, 1e-3, lambda r: r.model.lora.rank > 0, LORA_RATE),
    ("optimizer.learning_rate", 1e-7, 3e-5, lambda r: not r.model.lora.rank, FULL_RATE),
)
"""What a value is known to work in, for pretrained models: from, to, where it applies, and why."""


def list_warnings(recipe: Recipe) -> list[str]:
    """Values outside the ranges that are known to work. Ranges are for pretrained models; from scratch none apply."""
    warnings: list[str] = []
    if not recipe.train.num_steps:
        return warnings
    stale = recipe.train.minibatches_per_step * recipe.train.passes_per_step > 1
    if stale and recipe.algorithm.data == "policy" and leaves_stale(recipe.algorithm):
        warnings.append(
            f"algorithm.region = {recipe.algorithm.region} corrects nothing on stale data, and with several minibatches or passes all but the first "
            "are stale: set train.minibatches_per_step = train.passes_per_step = 1, or use region = clip"
        )
    if find_ahead(recipe) and leaves_stale(recipe.algorithm) and not recipe.algorithm.weighs_mismatch:
        warnings.append(
            f"algorithm.region = {recipe.algorithm.region} corrects nothing on stale data, and with {find_ahead(recipe)} all of it is: use "
            "region = clip, or mismatch_weight = token_truncate"
        )
    if unread := list_unread_rewards(recipe):
        warnings.append(
            f"algorithm.advantage = {recipe.algorithm.advantage} reads success alone, so these rewards are measured and without effect: "
            f"{', '.join(unread)}. Give them weight = 0 to say so, or use an advantage that reads rewards, such as group_normalized"
        )
    for path, low, high, applies, why in RANGES:
        value = reach_value(recipe, path)
        if is_pretrained(recipe) and applies(recipe) and not low <= value <= high:
            warnings.append(f"{path} = {value:g} is outside {low:g} to {high:g}: {why}")
    return warnings
