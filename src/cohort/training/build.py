"""Builds the data, policy, engine and prompt stream of a run from its recipe."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cohort.algorithms.registry import SAMPLED
from cohort.data.prompt_choice import InformativeChoice
from cohort.data.prompts import (
    CHOSEN,
    REJECTED,
    PromptReport,
    PromptStream,
    WrittenRow,
    assert_disjoint,
    describe_split,
    make_demonstrations,
    make_pairs,
    make_prompts,
    split_held_out,
)
from cohort.data.rows import Row, load_rows
from cohort.engine import EngineSetup, build_engine, stop_ids
from cohort.engine.protocol import Engine, RemoteSetup
from cohort.environments.engine import EpisodeEngine
from cohort.environments.registry import Environments
from cohort.errors import EngineError, ModelError, PromptError, RankError
from cohort.model import lora
from cohort.model.architecture import count_positions
from cohort.model.chat import ChatCodec, read_template, refuse_blank_template
from cohort.model.loading import load_adapted, load_model, load_pretrained, pick_device, pick_dtype
from cohort.model.optim import Adding, MasterWeights
from cohort.model.policy import Policy
from cohort.observe.run_folder import RunFolder
from cohort.ops.products import ONEDNN, choose_products, use_products
from cohort.recipe.rules import count_longest_rollout, find_answer_column
from cohort.recipe.schema import EvaluationSetConfig, PromptsConfig, Recipe
from cohort.recipe.values import PYTHON_ROWS, Materials
from cohort.types import Prompt, Sampling

HELD_OUT = "held_out"
OWN_PROMPTS = "environment"
"""prompts.source of an environment that owns its data."""
OWN_PROMPTS_LIMIT = 1024
"""Its prompts without prompts.limit."""
Report = Callable[[str], None]
"""Prints a message."""


@dataclass(frozen=True)
class Data:
    """Rows before tokenisation."""

    train: list[Row]
    sets: Mapping[str, tuple[PromptsConfig, list[Row]]]
    demonstrations: tuple[PromptsConfig, list[Row]] | None
    notes: tuple[str, ...] = ()
    """Console messages."""
    environments: Environments | None = None


def load_data(recipe: Recipe, materials: Materials) -> Data:
    """Training rows, evaluation sets and demonstrations. Without named sets, a share of the training rows is held out."""
    evaluation = recipe.evaluation
    seed = recipe.seed if evaluation.problems_seed < 0 else evaluation.problems_seed

    environments = Environments(recipe.environment, materials.functions) if recipe.environment.in_use else None
    identify = environments.identify if environments else lambda row: ""
    if environments:
        environments.check_rewards(recipe.rewards)

    def load(config: PromptsConfig, given: Any, section: str, seed: int) -> list[Row]:
        if environments and config.source == OWN_PROMPTS:
            return environments.make_rows(config, config.limit or OWN_PROMPTS_LIMIT)
        if config.source == PYTHON_ROWS and isinstance(given, list):  # already loaded and checked
            rows = list(given)
        else:
            rows = load_rows(config, seed, given, section)
        return environments.add_observations(environments.add_seeds(rows), config) if environments else rows

    rows = load(recipe.prompts, materials.rows, "prompts", recipe.seed)
    sets: dict[str, tuple[PromptsConfig, list[Row]]] = {}
    for name, config in evaluation.sets.items():
        sets[name] = config, load(config, materials.sets.get(name), f"evaluation.sets.{name}", seed)
    notes: tuple[str, ...] = ()
    if not sets and evaluation.samples and evaluation.held_out:
        split = seed, recipe.prompts.prompt_column, recipe.prompts.template
        rows, held_out = split_held_out(rows, evaluation.held_out, *split, least=evaluation.held_out_least, identify=identify)
        notes = (f"{HELD_OUT}: {describe_split(rows, held_out, evaluation.held_out, *split, identify)}",)
        sets = {HELD_OUT: (recipe.prompts, held_out)}
    source = recipe.cold_start.source
    demonstrations: tuple[PromptsConfig, list[Row]] | None = None
    if recipe.cold_start.num_steps or recipe.algorithm.data == "demonstrations":
        demonstrations = (source, load(source, None, "cold_start.source", recipe.seed)) if source else (recipe.prompts, rows)
    notes += environments.list_notes() if environments else ()
    return Data(rows, sets if evaluation.samples else {}, demonstrations, notes, environments)


def collect_alphabet(data: Data, recipe: Recipe) -> list[str]:
    """All texts that a character tokenizer must be able to write: prompts, answers and demonstrations, evaluation included."""
    configs = (recipe.prompts, *(config for config, _ in data.sets.values()))
    answers = {choose_answer_column(recipe, config) for config in configs}
    columns = {*answers, recipe.prompts.prompt_column, recipe.cold_start.completion_column, CHOSEN, REJECTED}
    groups = [data.train, *(rows for _, rows in data.sets.values()), data.demonstrations[1] if data.demonstrations else []]
    return [str(row[column]) for rows in groups for row in rows for column in columns if column in row]


def choose_answer_column(recipe: Recipe, config: PromptsConfig) -> str:
    """The column of the reference answer, from the rewards that score these rows."""
    return find_answer_column((config.rewards if isinstance(config, EvaluationSetConfig) else []) or recipe.rewards)


def load_policy(recipe: Recipe, data: Data, source: str | Path | None = None) -> Policy:
    """The starting policy, or the policy of `source`, a model or adapter folder. The caller casts to the compute dtype."""
    adapter: lora.Adapter | None = None
    if source is None:
        refuse_idle_adapter(recipe)
        model, tokenizer = load_model(recipe.model, recipe.seed, collect_alphabet(data, recipe))
        if recipe.model.lora.rank:
            base = "" if recipe.model.source == "scratch" else recipe.model.source
            adapter = lora.start_adapter(model, recipe.model.lora, recipe.seed, base, recipe.model.revision)
    elif lora.is_adapter(source):
        model, tokenizer, adapter = load_adapted(Path(source), recipe.model)
    else:
        trusted = recipe.model.trust_remote_code
        model, tokenizer = load_pretrained(str(source), device=pick_device(recipe.model), trusted=trusted)
    if recipe.prompts.chat_template:
        tokenizer.chat_template = read_template(recipe.prompts.chat_template)
        refuse_blank_template(tokenizer)
    return Policy(model, tokenizer, find_training_temperature(recipe) or 1.0, adapter)


def refuse_idle_adapter(recipe: Recipe) -> None:
    settings = recipe.model.lora
    given = [name for name in ("adapter", "alpha", "targets") if getattr(settings, name)]
    given += ["base_dtype"] if settings.base_dtype != "auto" else []
    if settings.base_dtype != "auto" and recipe.model.source == "scratch":
        raise ModelError(
            "model.lora.base_dtype: a model from scratch is small; 4 bits are for pretrained models that would not fit. "
            'Set it to "auto".'
        )
    if given and not settings.rank:
        hint = " to the rank of the adapter (`r` in its adapter_config.json)" if settings.adapter else ", for example to 16"
        raise ModelError(
            f"model.lora.{given[0]} is set, but model.lora.rank is 0, which trains all weights without adapters. Set "
            f"model.lora.rank{hint}."
        )


def describe_adapter(recipe: Recipe, policy: Policy) -> Iterator[str]:
    """Console messages about the adapter, if the policy has one."""
    if policy.adapter is None:
        return
    trained = sum(value.numel() for value in policy.list_own_parameters().values())
    share = trained / policy.num_parameters
    yield f"LoRA: {trained / 1e6:.2f} M parameters ({share:.2%}), in adapters of rank {policy.adapter.config.r}, are trained"
    made_for = policy.adapter.made_for
    if made_for and Path(made_for).name != Path(recipe.model.source).name:
        yield (
            f"warning: the adapter in model.lora.adapter was made for {made_for}, but model.source is {recipe.model.source}; the shapes "
            "fit, but on another base an adapter is noise"
        )


def restore_first_adapter(recipe: Recipe, policy: Policy, start: Path | None) -> Policy:
    """A frozen copy of the starting policy, which shares the base with the current one."""
    reference = policy.make_frozen_copy()
    folder = start or (Path(recipe.model.lora.adapter) if recipe.model.lora.adapter else None)
    if folder is None:
        values = lora.draw_first_values(reference.model, recipe.seed)
    else:
        values = lora.read_values(reference.model, folder, "the adapter that the run started from", "")
    lora.write_values(reference.model, values)
    reference.refresh_weights()
    return reference


def find_training_temperature(recipe: Recipe) -> float:
    """The sampling temperature; 1 for completions that are given in the rows."""
    return recipe.sampling.temperature if recipe.algorithm.data in SAMPLED else 1.0


def adds_exactly(recipe: Recipe, begun: str | None = None) -> bool:
    """Whether gradients are summed in float64. begun: what a resumed run began with, and keeps."""
    sums = recipe.parallel.sums
    if sums == "auto" and begun:
        sums = "exact" if begun == "exact" else "fast"
    if sums == "auto":
        return recipe.train.deterministic or pick_device(recipe.model).type == "cpu"
    return sums == "exact"


def make_weights(recipe: Recipe, policy: Policy, adding: Adding) -> MasterWeights:
    """The policy's float32 master weights; with parallel.shard = "full", the shards of this rank. The policy then has its compute dtype."""
    if recipe.parallel.shard == "none":
        return MasterWeights(policy.model, compute_dtype(recipe), adding)
    if not adding.world.launched:
        raise RankError(
            'parallel.shard: "full" shards the model over the processes of torchrun, but this is a single process. Start it with '
            '`torchrun --nproc-per-node 8 -m cohort train ...`, or use shard = "none".'
        )
    if recipe.parallel.offload and policy.device.type == "cpu":
        raise ModelError("parallel.offload: the model is in host memory already. Leave it out.")
    from torch.distributed.device_mesh import init_device_mesh

    from cohort.model.sharding import PolicyShards, ShardedWeights, Sharding

    adding.world.in_step = True
    mesh = init_device_mesh(policy.device.type, (adding.world.size,))
    sharding = Sharding(mesh, compute_dtype(recipe), exact=adding.exact, offload=recipe.parallel.offload, world=adding.world)
    weights = ShardedWeights(PolicyShards(policy, sharding), replace(adding, sharding=sharding))
    policy.gather_weights()  # for the digest of a frozen base
    return weights


def shard_like(policy: Policy, like: Policy) -> None:
    """Shard this policy if the other one is sharded."""
    if like.shards is not None:
        from cohort.model.sharding import PolicyShards

        PolicyShards(policy, like.shards.sharding)


def compute_dtype(recipe: Recipe) -> torch.dtype:
    return pick_dtype(recipe.model, pick_device(recipe.model))


@dataclass(frozen=True)
class EncodedData:
    train: list[Prompt]
    sets: dict[str, list[Prompt]]
    demonstrations: list[WrittenRow]
    pairs: list[WrittenRow]
    """Chosen and rejected completions, if algorithm.data is "pairs"."""
    reports: dict[str, PromptReport]
    """Rows kept and dropped, for "prompts", each evaluation set, and "demonstrations"."""

    def evaluation_digests(self) -> dict[str, str]:
        """A digest of the problems of each set, which must not change within a run."""
        return {name: digest_prompts(prompts).hexdigest() for name, prompts in self.sets.items()}

    def digest(self) -> str:
        """A digest of prompts, columns and demonstrations, which must not change within a run."""
        digest = digest_prompts(self.train)
        for demonstration in self.demonstrations:
            digest.update(repr((demonstration.prompt.token_ids, demonstration.completions[0])).encode())
        digest.update(repr({pair.prompt.index: pair.completions for pair in self.pairs}).encode() if self.pairs else b"")
        return digest.hexdigest()


def digest_prompts(prompts: Sequence[Prompt]) -> Any:
    digest = hashlib.blake2b(digest_size=16)
    for prompt in prompts:
        digest.update(repr((prompt.index, prompt.token_ids, sorted(prompt.columns.items(), key=str))).encode())
    return digest


def encode_data(recipe: Recipe, data: Data, policy: Policy, sampling: Sampling) -> EncodedData:
    """Tokenised prompts. An evaluation prompt that also occurs in training or in the demonstrations is an error."""
    reports: dict[str, PromptReport] = {}
    codecs: dict[str, ChatCodec] = {}
    environments = data.environments

    def encode(name: str, rows: list[Row], config: PromptsConfig) -> list[Prompt]:
        own = "cold_start.source" if name == "demonstrations" else f"evaluation.sets.{name}"
        section = "prompts" if not config.template_args or config == recipe.prompts else own
        template_args = config.template_args or recipe.prompts.template_args
        codec = codecs[name] = policy.codec.use_template_args(template_args, f"{section}.template_args")
        column, unknown = choose_answer_column(recipe, config), policy.tokenizer.unk_token_id
        own_codecs: dict[str, ChatCodec] = {}

        def encode_chat(messages: Any, row: Any) -> tuple[int, ...]:
            assert environments is not None
            name = environments.find_name(row)
            if name not in own_codecs:
                own_codecs[name] = environments.use_tools(codec, name)
            return own_codecs[name].encode(messages)

        if environments is None:
            prompts, reports[name] = make_prompts(rows, config, codec.encode, unknown, column)
        else:
            prompts, reports[name] = make_prompts(
                rows, config, codec.encode, unknown, column, environments.identify, encode_chat
            )
            for is_chat in {prompt.is_chat for prompt in prompts}:
                environments.prepare(codec, is_chat)
        idle = [key for key in ("template_args", "chat_template") if getattr(config, key)]
        if idle and not any(prompt.is_chat for prompt in prompts):
            raise PromptError(
                f"{section}.{idle[0]}: all prompts are plain text, to which no chat template applies, so it would change nothing. Use chat "
                f"messages, or set {section}.system to convert texts to chats; or leave it out."
            )
        if "<think>" not in (policy.tokenizer.chat_template or ""):
            return prompts
        # Messages do not show that a template opens <think> itself; format rewards read this column.
        return [
            replace(prompt, columns={**prompt.columns, "prefilled": codec.prefills_think(prompt.content)})
            if prompt.is_chat and "prefilled" not in prompt.columns
            else prompt
            for prompt in prompts
        ]

    train = encode("prompts", data.train, recipe.prompts) if data.train else []  # none if the run only evaluates
    sets = {name: encode(name, rows, config)[: recipe.evaluation.max_problems] for name, (config, rows) in data.sets.items()}
    demonstrations: list[WrittenRow] = []
    if data.demonstrations:
        config, rows = data.demonstrations
        prompts, column = encode("demonstrations", rows, config), recipe.cold_start.completion_column
        replies = environments.dialogues if environments else {}
        end = find_end_id(policy, sampling)
        demonstrations = make_demonstrations(prompts, codecs["demonstrations"], column, end, replies)
    pairs: list[WrittenRow] = []
    if recipe.algorithm.data == "pairs":
        pairs = make_pairs(train, codecs["prompts"], find_end_id(policy, sampling))
    check_lengths(policy, demonstrations, "demonstrations")
    check_lengths(policy, pairs, "pairs")
    for name, prompts in sets.items():
        assert_disjoint(train, prompts, name)
        assert_disjoint([demonstration.prompt for demonstration in demonstrations], prompts, name)
    return EncodedData(train, sets, demonstrations, pairs, reports)


def check_lengths(policy: Policy, rows: Sequence[WrittenRow], kind: str) -> None:
    """Check that given completions fit into the model's positions; sampled ones are truncated."""
    most = count_positions(policy.model.config.get_text_config())
    for row in rows:
        if most is not None and row.longest > most:
            raise PromptError(
                f"{kind}, row {row.prompt.index}: prompt and completion have {row.longest} tokens, but the model has {most} positions. "
                "Shorten or remove the row, or use a model with more positions."
            )


def find_end_id(policy: Policy, sampling: Sampling) -> int:
    """The stop token at the end of given completions: the tokenizer's own, if it has one."""
    stop = policy.tokenizer.eos_token_id
    if stop is None and not sampling.stop_ids:
        raise ModelError("the tokenizer has no end token, so the completions in the rows cannot be ended.")
    return int(sampling.stop_ids[0] if stop is None else stop)


def make_stream(recipe: Recipe, encoded: EncodedData) -> PromptStream:
    """The stream of training prompts: each once per epoch, or informative ones more often."""
    prompts = encoded.train
    if recipe.algorithm.data == "demonstrations":
        prompts = [demonstration.prompt for demonstration in encoded.demonstrations]
    if recipe.algorithm.prompt_choice == "informative":
        return InformativeChoice(prompts, recipe.seed, recipe.algorithm.choice_floor)
    return PromptStream(prompts, recipe.seed, recipe.prompts.shuffle)


def make_training_sampling(recipe: Recipe, policy: Policy) -> Sampling:
    return Sampling(
        group_size=recipe.train.group_size,
        temperature=find_training_temperature(recipe),
        max_completion_tokens=recipe.sampling.max_completion_tokens,
        stop_ids=stop_ids(policy.model, policy.tokenizer, recipe.sampling.stop),
        max_reply_tokens=recipe.environment.max_reply_tokens,
    )


def find_longest_sequence(recipe: Recipe, encoded: EncodedData, sampling: Sampling) -> int:
    """The largest number of tokens of prompt and completion, in training and evaluation."""
    evaluated = (recipe.evaluation.max_completion_tokens or sampling.max_completion_tokens) + sampling.max_reply_tokens
    lengths = [len(prompt.token_ids) + sampling.longest_completion for prompt in encoded.train]
    lengths += [len(prompt.token_ids) + evaluated for prompts in encoded.sets.values() for prompt in prompts]
    lengths += [row.longest for row in (*encoded.demonstrations, *encoded.pairs)]
    return max(lengths, default=0)


def settle_products(recipe: Recipe, policy: Policy, begun: str, folder: RunFolder) -> str:
    """Choose the library of float32 products on the main rank, use it on all ranks and record it. begun: what a resumed run uses."""
    chosen = policy.world.on_main(lambda: begun or choose_products(policy.model, compute_dtype(recipe)))
    use_products(chosen, policy.model, f"the run {folder.root}")
    if chosen:
        folder.write_json(folder.summary_file, folder.read_summary() | {"products": chosen})
    if chosen == ONEDNN:
        policy.notes.append("float32 products by oneDNN: equal to MKL within rounding on this CPU, and faster")
    return chosen


def make_engine(
    recipe: Recipe,
    policy: Policy,
    folder: Path | None = None,
    report: Report = lambda message: None,
    concurrent: bool = False,
    environments: Environments | None = None,
) -> tuple[Engine, str]:
    """The engine of the recipe, and a console message about it. folder: of the run; report: prints later messages.

    concurrent: whether another thread uses the device while the engine samples. environments: in which the policy acts.
    """
    policy.gather_weights()
    sampling, codec, kernels, remote = recipe.sampling, policy.codec, recipe.model.kernels, None
    if sampling.servers:
        shared = Path(recipe.vllm.folder) if recipe.vllm.folder else folder and folder / "weights"
        keep = recipe.ahead.lag > 0 or recipe.ahead.in_flight
        remote = RemoteSetup(policy, sampling.servers, recipe.vllm, shared, report, keep, count_longest_rollout(recipe))
    setup = EngineSetup(
        policy.model, codec.decode, sampling.slots, kernels, sampling.cuda_graphs, codec.decode_all, remote, concurrent
    )
    engine, description = build_engine(sampling.chosen_engine, setup)
    if kernels == "fused" and policy.device.type == "cpu" and not engine.capabilities.own_kernels:
        raise ModelError(
            f'model.kernels = "fused" is not possible: on a CPU fused kernels only sample, and this run uses {description.rstrip(".")}. '
            'Use kernels = "auto" or "modules".'
        )
    if environments is None:
        return engine, description
    return wrap_engine(recipe, policy, engine, environments), f"{description}; {environments.describe_all()}"


def wrap_engine(recipe: Recipe, policy: Policy, engine: Engine, environments: Environments) -> EpisodeEngine:
    """The engine of the episodes in these environments."""
    return EpisodeEngine(engine, environments, policy.codec, scores_turns="turns_N" in recipe.algorithm.chosen.advantage.reads)


def refuse_ahead(recipe: Recipe, engine: Engine, alone: bool) -> None:
    """Refuse engines that cannot sample ahead. alone: whether this process holds the whole policy and trains it without other ranks."""
    if recipe.ahead.in_flight and not engine.capabilities.swaps_in_flight:
        raise EngineError(
            f'ahead.in_flight: engine "{engine.name}" cannot swap weights during generation. Use sampling.engine = "vllm" with '
            "sampling.servers, or ahead.lag."
        )
    if recipe.ahead.lag and engine.capabilities.shares_weights and not alone:
        raise EngineError(
            f'ahead.lag: with several ranks or a sharded model, sampling ahead needs servers, but engine "{engine.name}" samples with '
            'the weights of this process. Use sampling.engine = "vllm" with sampling.servers, or ahead.lag = 0.'
        )


def choose_slots(recipe: Recipe, engine: Engine, prompts: Sequence[Prompt], sampling: Sampling) -> int:
    """Number of completions decoded in parallel: from the recipe, or from the memory free at the start of the run."""
    longest = max(len(prompt.token_ids) for prompt in prompts) + sampling.longest_completion
    return recipe.sampling.slots or engine.choose_slots(longest)
