"""From a recipe to the components of a run: data, policy, reference, engine, prompts."""

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
from cohort.errors import EngineError, ModelError, PromptError, RankError
from cohort.model import lora
from cohort.model.architecture import count_positions
from cohort.model.chat import ChatCodec, read_template, refuse_blank_template
from cohort.model.loading import load_adapted, load_model, load_pretrained, pick_device, pick_dtype
from cohort.model.optim import Adding, MasterWeights
from cohort.model.policy import Policy
from cohort.observe.run_folder import RunFolder
from cohort.ops.products import ONEDNN, choose_products, use_products
from cohort.recipe.rules import count_longest_rollout, gold_column
from cohort.recipe.schema import EvaluationSetConfig, PromptsConfig, Recipe
from cohort.recipe.values import PYTHON_ROWS, Materials
from cohort.types import Prompt, Sampling

HELD_OUT = "held_out"


@dataclass(frozen=True)
class Data:
    """Rows before tokenisation: enough to build a tokenizer, not yet prompts."""

    train: list[Row]
    sets: Mapping[str, tuple[PromptsConfig, list[Row]]]
    demonstrations: tuple[PromptsConfig, list[Row]] | None
    notes: tuple[str, ...] = ()
    """What the first lines of a run say of the data."""


def load_data(recipe: Recipe, materials: Materials) -> Data:
    """Training rows, evaluation sets and demonstrations. Without named sets a share of the training rows is held out."""
    evaluation = recipe.evaluation
    seed = recipe.seed if evaluation.problems_seed < 0 else evaluation.problems_seed

    def load(config: PromptsConfig, handed_in: Any, section: str, seed: int) -> list[Row]:
        # Rows kept from Python were loaded, limited and checked when they were handed in.
        if config.source == PYTHON_ROWS and isinstance(handed_in, list):
            return list(handed_in)
        return load_rows(config, seed, handed_in, section)

    rows = load(recipe.prompts, materials.rows, "prompts", recipe.seed)
    sets: dict[str, tuple[PromptsConfig, list[Row]]] = {
        name: (config, load(config, materials.sets.get(name), f"evaluation.sets.{name}", seed))
        for name, config in evaluation.sets.items()
    }
    notes: tuple[str, ...] = ()
    if not sets and evaluation.samples and evaluation.held_out:
        place = seed, recipe.prompts.prompt_column, recipe.prompts.template
        rows, held_out = split_held_out(rows, evaluation.held_out, *place, least=evaluation.held_out_least)
        notes = (f"{HELD_OUT}: {describe_split(rows, held_out, evaluation.held_out, *place)}",)
        sets = {HELD_OUT: (recipe.prompts, held_out)}
    source = recipe.cold_start.source
    demonstrations = None
    if recipe.cold_start.num_steps or recipe.algorithm.data == "demonstrations":
        demonstrations = (
            (recipe.prompts, rows) if source == "" else (source, load_rows(source, recipe.seed, section="cold_start.source"))
        )
    return Data(rows, sets if evaluation.samples else {}, demonstrations, notes)


def collect_alphabet(data: Data, recipe: Recipe) -> list[str]:
    """Every text a character tokenizer must be able to write: prompts, answers and demonstrations, evaluation included."""
    golds = {find_gold_column(recipe, config) for config in (recipe.prompts, *(config for config, _ in data.sets.values()))}
    columns = {*golds, recipe.prompts.prompt_column, recipe.cold_start.completion_column, CHOSEN, REJECTED}
    groups = [data.train, *(rows for _, rows in data.sets.values()), data.demonstrations[1] if data.demonstrations else []]
    return [str(row[column]) for rows in groups for row in rows for column in columns if column in row]


def find_gold_column(recipe: Recipe, config: PromptsConfig) -> str:
    """The column of the right answer, by the rewards that judge these rows."""
    return gold_column((config.rewards if isinstance(config, EvaluationSetConfig) else []) or recipe.rewards)


def load_policy(recipe: Recipe, data: Data, source: str | Path | None = None) -> Policy:
    """The starting policy, or the one of another `source`, model or adapter folder. The caller casts to the compute dtype."""
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
            "model.lora.base_dtype: a model from scratch is made here and small; 4 bits are for a pretrained one that does not fit. "
            'Set it to "auto".'
        )
    if given and not settings.rank:
        raise ModelError(
            f"model.lora.{given[0]} is set, but model.lora.rank is 0, which trains all weights without adapters. Set model.lora.rank"
            + (" to the rank of the adapter (`r` in its adapter_config.json)." if settings.adapter else ", for example to 16.")
        )


def describe_adapter(recipe: Recipe, policy: Policy) -> Iterator[str]:
    """How much of the policy is trained, where that is not all of it."""
    if policy.adapter is None:
        return
    trained = sum(value.numel() for value in policy.list_own_parameters().values())
    share = trained / policy.num_parameters
    yield f"LoRA: {trained / 1e6:.2f} M of them ({share:.2%}), in adapters of rank {policy.adapter.config.r}, are trained"
    made_for = policy.adapter.made_for
    if made_for and Path(made_for).name != Path(recipe.model.source).name:
        yield (
            f"warning: the adapter in model.lora.adapter was made for {made_for}, and model.source is {recipe.model.source}; its shapes "
            "fit, but on another base it is noise"
        )


def restore_first_adapter(recipe: Recipe, policy: Policy, start: Path | None) -> Policy:
    """The starting policy again, frozen, over the base that the policy holds already: nothing large is loaded."""
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
    """What was written and not sampled is learned at temperature 1, whatever temperature it is sampled with later."""
    return recipe.sampling.temperature if recipe.algorithm.data in SAMPLED else 1.0


def adds_exactly(recipe: Recipe, begun: str | None = None) -> bool:
    """Whether gradients are added in float64. begun: how a run that goes on was begun, which it keeps."""
    sums = recipe.parallel.sums
    if sums == "auto" and begun:
        sums = "exact" if begun == "exact" else "fast"
    if sums == "auto":
        return recipe.train.deterministic or pick_device(recipe.model).type == "cpu"
    return sums == "exact"


def make_weights(recipe: Recipe, policy: Policy, adding: Adding) -> MasterWeights:
    """The masters of the policy, from which on it computes in its dtype; with parallel.shard = "full" each rank has its slices."""
    if recipe.parallel.shard == "none":
        return MasterWeights(policy.model, compute_dtype(recipe), adding)
    if not adding.world.launched:
        raise RankError(
            'parallel.shard: "full" shares the model out over the processes that torchrun starts, and this one is alone. Start it with '
            '`torchrun --nproc-per-node 8 -m cohort train ...`, or use shard = "none".'
        )
    if recipe.parallel.offload and policy.device.type == "cpu":
        raise ModelError("parallel.offload: the model is in the memory of the host already. Leave it out.")
    from torch.distributed.device_mesh import init_device_mesh

    from cohort.model.sharding import PolicyShards, ShardedWeights, Sharding

    adding.world.in_step = True
    mesh = init_device_mesh(policy.device.type, (adding.world.size,))
    sharding = Sharding(mesh, compute_dtype(recipe), exact=adding.exact, offload=recipe.parallel.offload, world=adding.world)
    weights = ShardedWeights(PolicyShards(policy, sharding), replace(adding, sharding=sharding))
    policy.gather_weights()  # of a frozen base the digest is taken
    return weights


def share_out(policy: Policy, like: Policy) -> None:
    """A model that is read beside another, in slices where the other is."""
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
    """Chosen and rejected completions, where algorithm.data is "pairs"."""
    reports: dict[str, PromptReport]
    """What became of the rows, for "prompts", for each evaluation set, and for "demonstrations"."""

    def evaluation_digests(self) -> dict[str, str]:
        """Of the problems of each set: before and after must be measured on the very same ones."""
        return {name: digest_prompts(prompts).hexdigest() for name, prompts in self.sets.items()}

    def digest(self) -> str:
        """Changes with any training prompt, column or demonstration: a resumed run must go on with the very same data."""
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
    """Tokenised prompts. Evaluation prompts that also occur in training, or in the demonstrations, are an error."""
    reports: dict[str, PromptReport] = {}
    codecs: dict[str, ChatCodec] = {}

    def encode(name: str, rows: list[Row], config: PromptsConfig) -> list[Prompt]:
        own = "cold_start.source" if name == "demonstrations" else f"evaluation.sets.{name}"
        section = "prompts" if not config.template_args or config == recipe.prompts else own
        told = config.template_args or recipe.prompts.template_args
        codec = codecs[name] = policy.codec.use_template_args(told, f"{section}.template_args")
        prompts, reports[name] = make_prompts(
            rows, config, codec.encode, policy.tokenizer.unk_token_id, find_gold_column(recipe, config)
        )
        idle = [word for word in ("template_args", "chat_template") if getattr(config, word)]
        if idle and not any(prompt.is_chat for prompt in prompts):
            raise PromptError(
                f"{section}.{idle[0]}: the prompts are texts, which no chat template renders, so it would change nothing. Give chat "
                f"messages, or make chats of them with {section}.system; or leave it out."
            )
        if "<think>" not in (policy.tokenizer.chat_template or ""):
            return prompts
        # A template that opens <think> itself is invisible in the messages; format rewards are told through a column.
        return [
            replace(prompt, columns={**prompt.columns, "prefilled": codec.prefills_think(prompt.content)})
            if prompt.is_chat and "prefilled" not in prompt.columns
            else prompt
            for prompt in prompts
        ]

    train = encode("prompts", data.train, recipe.prompts) if data.train else []  # evaluation alone trains on nothing
    sets = {name: encode(name, rows, config)[: recipe.evaluation.max_problems] for name, (config, rows) in data.sets.items()}
    demonstrations: list[WrittenRow] = []
    if data.demonstrations:
        config, rows = data.demonstrations
        prompts, column = encode("demonstrations", rows, config), recipe.cold_start.completion_column
        demonstrations = make_demonstrations(prompts, codecs["demonstrations"], column, find_end_id(policy, sampling))
    pairs: list[WrittenRow] = []
    if recipe.algorithm.data == "pairs":
        pairs = make_pairs(train, codecs["prompts"], find_end_id(policy, sampling))
    check_lengths(policy, demonstrations, "demonstrations")
    check_lengths(policy, pairs, "pairs")
    for name, prompts in sets.items():
        assert_disjoint(train, prompts, name)
        assert_disjoint([demonstration.prompt for demonstration in demonstrations], prompts, name)
    return EncodedData(train, sets, demonstrations, pairs, reports)


def check_lengths(policy: Policy, rows: Sequence[WrittenRow], what: str) -> None:
    """Completions that stand in the rows must fit into the positions the model has; sampled ones are cut in time."""
    most = count_positions(policy.model.config.get_text_config())
    for row in rows:
        if most is not None and row.longest > most:
            raise PromptError(
                f"{what}, row {row.prompt.index}: prompt and completion have {row.longest} tokens together, and the model has {most} "
                "positions. Shorten or remove the row, or use a model with more positions."
            )


def find_end_id(policy: Policy, sampling: Sampling) -> int:
    """The end a person would write: the tokenizer's own, not just any of the stops that sampling honours."""
    stop = policy.tokenizer.eos_token_id
    if stop is None and not sampling.stop_ids:
        raise ModelError("the tokenizer has no end token, so a completion written in the rows cannot be ended.")
    return int(sampling.stop_ids[0] if stop is None else stop)


def make_stream(recipe: Recipe, encoded: EncodedData) -> PromptStream:
    """The prompts of the steps: every prompt once per epoch, or the informative ones more often."""
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
    )


def find_longest_sequence(recipe: Recipe, encoded: EncodedData, sampling: Sampling) -> int:
    """Tokens of prompt and completion that the run can meet, in training and in evaluation."""
    evaluated = recipe.evaluation.max_completion_tokens or sampling.max_completion_tokens
    lengths = [len(prompt.token_ids) + sampling.max_completion_tokens for prompt in encoded.train]
    lengths += [len(prompt.token_ids) + evaluated for prompts in encoded.sets.values() for prompt in prompts]
    lengths += [row.longest for row in (*encoded.demonstrations, *encoded.pairs)]
    return max(lengths, default=0)


def settle_products(recipe: Recipe, policy: Policy, begun: str, folder: RunFolder) -> str:
    """Choose the library of float32 products on the main rank, use it on all and write it down. begun: the choice a resumed run started with."""
    chosen = policy.world.on_main(lambda: begun or choose_products(policy.model, compute_dtype(recipe)))
    use_products(chosen, policy.model, f"the run {folder.root}")
    if chosen:
        folder.write_json(folder.summary_file, folder.read_summary() | {"products": chosen})
    if chosen == ONEDNN:
        policy.notes.append("float32 products by oneDNN: within rounding of MKL on this CPU, and faster")
    return chosen


def make_engine(
    recipe: Recipe,
    policy: Policy,
    folder: Path | None = None,
    say: Callable[[str], None] = lambda sentence: None,
    concurrent: bool = False,
) -> tuple[Engine, str]:
    """The engine of the recipe, and a sentence for the console. folder: of the run; say: tells people what happens later."""
    policy.gather_weights()
    remote = None
    if recipe.sampling.servers:
        shared = Path(recipe.vllm.folder) if recipe.vllm.folder else folder and folder / "weights"
        keep = recipe.ahead.lag > 0 or recipe.ahead.in_flight
        remote = RemoteSetup(policy, recipe.sampling.servers, recipe.vllm, shared, say, keep, count_longest_rollout(recipe))
    setup = EngineSetup(
        policy.model,
        policy.codec.decode,
        recipe.sampling.slots,
        recipe.model.kernels,
        recipe.sampling.cuda_graphs,
        policy.codec.decode_all,
        remote,
        concurrent,
    )
    engine, sentence = build_engine(recipe.sampling.chosen_engine, setup)
    if recipe.model.kernels == "fused" and policy.device.type == "cpu" and not engine.capabilities.own_kernels:
        raise ModelError(
            f'model.kernels = "fused" is not possible: on a CPU own kernels only sample, and this run has {sentence.rstrip(".")}. '
            'Use kernels = "auto" or "modules".'
        )
    return engine, sentence


def refuse_ahead(recipe: Recipe, engine: Engine, alone: bool) -> None:
    """Sampling ahead is one process's, which an engine of this process can only do for a policy that it holds whole and trains alone.

    alone: whether this process does.
    """
    if recipe.ahead.in_flight and not engine.capabilities.swaps_in_flight:
        raise EngineError(
            f'ahead.in_flight: weights are swapped under completions that are on their way, and engine "{engine.name}" cannot. Use '
            'sampling.engine = "vllm" with sampling.servers, or ahead.lag.'
        )
    if recipe.ahead.lag and engine.capabilities.shares_weights and not alone:
        raise EngineError(
            f'ahead.lag: on several ranks, or with the model cut into slices, what is sampled ahead comes from servers, and engine "{engine.name}" samples with the weights of '
            'this process. Use sampling.engine = "vllm" with sampling.servers, or ahead.lag = 0.'
        )


def choose_slots(recipe: Recipe, engine: Engine, prompts: Sequence[Prompt], sampling: Sampling) -> int:
    """How many completions are decoded side by side: by the recipe, or by the memory that is free at the start of the run."""
    longest = max(len(prompt.token_ids) for prompt in prompts) + sampling.max_completion_tokens
    return recipe.sampling.slots or engine.choose_slots(longest)
