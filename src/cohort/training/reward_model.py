"""A learned reward: a model of the policy's architecture with a head of one number, fitted on labels of the verifier.

It differs from the usual reward model in three ways. Scores are read at the true last token of a completion and never at
"the last token that is not padding", which with pad = end is another token. The weights of a fit are fixed over the whole
optimizer batch before anything runs, so the micro-batch size cannot change the gradient. And a share of the *prompts*
never trains, so that every fit says how well it ranks completions it has not seen.

Scores are used as they are: GRPO normalises rewards within their group, so their scale and offset mean nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.base.keyed import keyed_hash, keyed_permutation
from cohort.engine.requests import stop_ids
from cohort.errors import InvariantError, ModelError, RunError
from cohort.model import loading
from cohort.model.critic import ScalarModel
from cohort.model.optim import Adding, Optimizer, cast_parameters
from cohort.model.packing import cut_by_tokens
from cohort.model.policy import Policy
from cohort.ops.layout import Selection, lay_out
from cohort.recipe.schema import OptimizerConfig
from cohort.recipe.sections import RewardModelConfig
from cohort.training.reward_data import Labelled, is_held_back, list_groups, list_pairs

PART = "reward_model"
"""Name of its part in an outcome, and of its area among the metrics."""
HEAD_STD = 0.1
"""About that of the first scores. Small, so that the first pairs have a loss near log 2; at zero the head would pass no gradient on."""
WARMUP_SHARE = 0.1

Sequences = Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
"""(prompt ids, completion ids) of each completion."""


class RewardModel(ScalarModel):
    """A sequence-classification model with one label."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        settings: RewardModelConfig,
        compute_dtype: torch.dtype,
        own_attention: bool = False,
        checkpointing: bool = False,
        state_bits: Literal[32, 8] = 32,
        adding: Adding | None = None,
    ):
        """`checkpointing`, `state_bits` and `adding`: as in the policy's training, for the reward model is as large."""
        super().__init__(model, model.base_model, find_head(model), own_attention, checkpointing)
        self.tokenizer, self.settings, self.state_bits, self.world = tokenizer, settings, state_bits, (adding or Adding()).world
        check_value_head(self)
        self.weights = self.make_weights(compute_dtype, adding)

    @classmethod
    def from_policy(
        cls,
        policy: Policy,
        settings: RewardModelConfig,
        compute_dtype: torch.dtype,
        seed: int,
        state_bits: Literal[32, 8] = 32,
        adding: Adding | None = None,
    ) -> RewardModel:
        """The policy's backbone and a small new head, which the seed alone decides; torch's generators are left alone."""
        from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, AutoModelForSequenceClassification

        config = copy.deepcopy(policy.model.config)
        config.num_labels = 1
        pad_id = find_padding_id(policy)
        config.get_text_config().pad_token_id = pad_id
        if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
            raise ModelError(
                f"reward_model: transformers has no sequence-classification class for {type(policy.model).__name__} (model type "
                f"{config.model_type!r}), so no reward model can be made from this policy. Set reward_model.iterations to 0, or "
                "take a policy of an architecture that has one (Llama, Qwen, Gemma, Mistral, Phi, GPT-2, ...)."
            )
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            model: Any = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
        # float64 serves tests; any lower precision is that of computing, and MasterWeights casts to it.
        cast_parameters(model, torch.promote_types(compute_dtype, torch.float32))
        copy_backbone(policy.merge_model(), model)
        with torch.no_grad():
            for parameter in find_head(model).parameters():
                generator = torch.Generator().manual_seed(keyed_hash("reward model, head", seed) % 2**63)
                values = torch.randn(parameter.shape, generator=generator) * HEAD_STD * parameter.shape[-1] ** -0.5
                parameter.copy_(values if parameter.dim() >= 2 else torch.zeros_like(values))
        tokenizer = copy.deepcopy(policy.tokenizer)
        if pad_id is not None:
            tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad_id)
        return cls(
            model.to(policy.device),
            tokenizer,
            settings,
            compute_dtype,
            own_attention=bool(policy.attention_configs),
            checkpointing=policy.checkpointing,
            state_bits=state_bits,
            adding=adding,
        )

    @classmethod
    def from_pretrained(
        cls,
        source: str,
        policy: Policy,
        settings: RewardModelConfig,
        compute_dtype: torch.dtype,
        state_bits: Literal[32, 8] = 32,
        adding: Adding | None = None,
    ) -> RewardModel:
        """A ready reward model from a folder or the hub. It reads the policy's token ids, so it must share its vocabulary."""
        model, tokenizer = loading.load_pretrained(
            source,
            dtype=torch.promote_types(compute_dtype, torch.float32),
            device=policy.device,
            field="reward_model.source",
            trusted=settings.trust_remote_code,
            kind=loading.SCORING,
        )
        if model.config.num_labels != 1:
            raise ModelError(f"reward model: {source!r} has {model.config.num_labels} labels; a reward model has exactly one.")
        if tokenizer.get_vocab() != policy.tokenizer.get_vocab():
            raise ModelError(
                f"reward model: {source!r} has another vocabulary than the policy, whose token ids it would have to read. "
                "Give a reward model of the policy's own family."
            )
        return cls(model, tokenizer, settings, compute_dtype, False, policy.checkpointing, state_bits, adding)

    # -----------------------------------------------------------------------------------------------------------------
    # Scoring
    # -----------------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def score(self, prompt_and_completion_ids: Sequences, micro_batch_tokens: int) -> list[float]:
        """The head's value at the last token of each completion. Not finite where the model is broken; see LearnedScorer."""
        scores = [0.0] * len(prompt_and_completion_ids)
        lengths = [len(prompt) + len(completion) for prompt, completion in prompt_and_completion_ids]
        cut = cut_by_tokens(range(len(scores)), lengths, micro_batch_tokens)

        def score_own() -> list[tuple[int, float]]:
            own = [cut[place] for place, _ in self.world.list_turns([sum(lengths[row] for row in rows) for rows in cut])]
            values = [self.values([prompt_and_completion_ids[row] for row in rows]).tolist() for rows in own]
            return list(zip(chain(*own), chain(*values), strict=True))

        for row, value in self.world.compute(score_own):
            scores[row] = value
        return scores

    def rewards(self, scores: Sequence[float]) -> list[float]:
        """What a score is worth: fitted pointwise it is a logit, and the reward the probability of being right, which does not
        pay for being ever more sure; fitted on pairs only differences mean something, and the score is taken as it is."""
        if self.settings.loss == "pairwise":
            return list(scores)
        logits = torch.tensor(scores, dtype=torch.float64)
        return torch.where(logits.isfinite(), torch.sigmoid(logits), logits).tolist()

    def values(self, sequences: Sequences) -> Tensor:
        """values_B of one micro-batch, in float32 at least."""
        layout = lay_out(sequences).to(self.device)
        last_B = layout.rows.own_start_B + layout.rows.own_length_B - 1
        return self.read_values(layout, Selection.from_index(last_B, layout.num_tokens).to(self.device))

    # -----------------------------------------------------------------------------------------------------------------
    # Fitting
    # -----------------------------------------------------------------------------------------------------------------

    def fit(self, data: Sequence[Labelled], *, iteration: int, seed: int, micro_batch_tokens: int) -> dict[str, float]:
        """Go on from the present weights with a fresh AdamW, and measure on the prompts held back, before and after.

        All or nothing: interrupted, it leaves the weights of before, so that a checkpoint never holds half a fit.
        """
        settings = self.settings
        back = [item for item in data if is_held_back(item, settings.held_back, seed)]
        train = [item for item in data if not is_held_back(item, settings.held_back, seed)]
        units = list_fit_units(train, settings.loss)
        plan = [
            fill(units, keyed_permutation(len(units), "reward model, batches", seed, iteration, epoch), settings.batch_size)
            for epoch in range(settings.epochs)
        ]
        total = sum(map(len, plan))
        weights_before = self.weights.copy_masters()
        known = {
            "pairs": float(len(list_pairs([item.right for item in train], list_groups(train)))),
            "completions": float(sum(map(len, units))),
            "replayed": float(sum(item.iteration < iteration for item in data)),
        }
        before = self.measure(back, micro_batch_tokens)
        if "accuracy" in before:
            known["accuracy_before"] = before["accuracy"]
        try:
            optimizer = Optimizer(
                self.weights, make_warmed_up_adamw_settings(settings.learning_rate, total, self.state_bits), total
            )
            for batches in plan:
                losses = []
                for batch in batches:
                    losses.append(self.accumulate([train[place] for place in batch], micro_batch_tokens))
                    optimizer.clip_and_step()
                    optimizer.check_finite("reward_model")
            measured = known | {"loss": sum(losses) / len(losses)} | self.measure(back, micro_batch_tokens)
            return {f"{PART}/{name}": value for name, value in measured.items()}
        except BaseException:
            self.weights.drop_gradients()
            self.weights.restore_masters(weights_before)
            raise

    def accumulate(self, batch: Sequence[Labelled], micro_batch_tokens: int) -> float:
        """Add the gradient of one optimizer batch and give its loss: the mean over its pairs, or over its completions.

        The denominator is that of the whole batch. Groups stay whole when pairs are compared: one always fits.
        """
        pairwise = self.settings.loss == "pairwise"
        groups = list_groups(batch)
        group_of = {place: number for number, members in enumerate(groups) for place in members}
        terms = len(list_pairs([item.right for item in batch], groups)) if pairwise else len(batch)
        lengths = [len(item.prompt_ids) + len(item.completion_ids) for item in batch]
        losses = []
        cut = cut_by_tokens(range(len(batch)), lengths, micro_batch_tokens, group_of.__getitem__ if pairwise else None)
        for place, weight in self.world.list_turns([sum(lengths[row] for row in rows) for rows in cut]):
            items = [batch[row] for row in cut[place]]
            values_B = self.values([(item.prompt_ids, item.completion_ids) for item in items])
            loss = compute_fit_losses(values_B, items, self.settings.loss).sum() / terms
            (loss * weight).backward()
            losses.append((place, weight * float(loss.detach())))
        return sum(loss for _, loss in sorted(self.world.gather(losses)))

    def measure(self, data: Sequence[Labelled], micro_batch_tokens: int) -> dict[str, float]:
        """How well it ranks labelled completions. What cannot be measured, for want of one label, is absent."""
        scores = self.score([(item.prompt_ids, item.completion_ids) for item in data], micro_batch_tokens)
        if not all(map(math.isfinite, scores)):
            raise InvariantError("the reward model's scores are not finite numbers. Lower reward_model.learning_rate.")
        rights = [item.right for item in data]
        pairs = list_pairs(rights, list_groups(data))
        measured = {"held_back_pairs": float(len(pairs))}
        if pairs:
            measured["accuracy"] = measure_ranking(scores, pairs)
        area = compute_auc(scores, rights)
        if area is not None:
            measured["auc"] = area
        losses = compute_fit_losses(torch.tensor(scores, dtype=torch.float64), data, self.settings.loss)
        if losses.numel():
            measured["held_back_loss"] = float(losses.mean())
        return measured

    # -----------------------------------------------------------------------------------------------------------------
    # Saving
    # -----------------------------------------------------------------------------------------------------------------

    def save(self, folder: Path, whole: Mapping[str, Tensor] | None = None) -> None:
        """Hugging Face format; loads with AutoModelForSequenceClassification and AutoTokenizer. whole: of a model that is shared out."""
        loading.hide_progress_bars()
        self.model.save_pretrained(folder, state_dict=dict(whole) if whole else None)
        self.tokenizer.save_pretrained(folder)


# ---------------------------------------------------------------------------------------------------------------------
# Building
# ---------------------------------------------------------------------------------------------------------------------


def find_padding_id(policy: Policy) -> int | None:
    """A token that never ends a completion.

    transformers pools at the last token that is not padding. Were that the end token, a saved reward model would be read
    one token early by others. None, where there is no such token: transformers then takes unpadded rows and refuses others.
    """
    tokenizer = policy.tokenizer
    ends = set(stop_ids(policy.model, tokenizer, ()))
    candidates = (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id)
    return next((token for token in candidates if token is not None and token not in ends), None)


def copy_backbone(policy_model: Any, model: Any) -> None:
    try:
        model.base_model.load_state_dict(policy_model.base_model.state_dict(), strict=True)
    except RuntimeError as problem:
        raise ModelError(
            f"reward_model: the weights of {type(policy_model).__name__} do not fit {type(model).__name__} "
            f"({str(problem).strip().splitlines()[-1].strip()}); no reward model can be made from this policy."
        ) from problem


def find_head(model: Any) -> torch.nn.Linear:
    head = getattr(model, "score", None)
    if not isinstance(head, torch.nn.Linear) or head.out_features != 1 or model.base_model is model:
        raise ModelError(
            f"{type(model).__name__}: no backbone with a linear head `score` of one number; it cannot be a reward model."
        )
    return head


@torch.no_grad()
def check_value_head(reward_model: RewardModel) -> None:
    """Prove on a few tokens that our scores are those of the model's own forward, and that nothing after the end is seen."""
    model = reward_model.model
    config = model.config.get_text_config()
    few = tuple(token for token in range(min(8, config.vocab_size)) if token != config.pad_token_id)
    long, short = (few[:1], few[1:]), (few[:1], few[1:3])
    expected = [
        float(model(input_ids=torch.tensor([prompt + rest], device=model.device)).logits) for prompt, rest in (long, short)
    ]
    values = reward_model.values([long, short]).tolist()
    largest = max(map(abs, expected))
    if not max(abs(ours - own) for ours, own in zip(values, expected, strict=True)) <= 1e-4 * max(1.0, largest):
        raise ModelError(
            f"{type(model).__name__}: the values of its head at the last token are not its scores ({values} against {expected}); "
            "only causal models whose head reads the last token can be reward models."
        )


# ---------------------------------------------------------------------------------------------------------------------
# Pure parts of the fit
# ---------------------------------------------------------------------------------------------------------------------


def compute_fit_losses(values_B: Tensor, items: Sequence[Labelled], kind: str) -> Tensor:
    """One term for each pair, -log sigmoid(value_right - value_wrong); or for each completion, cross-entropy of its label."""
    rights = [item.right for item in items]
    if kind == "pointwise":
        labels_B = torch.tensor(rights, dtype=values_B.dtype, device=values_B.device)
        return F.binary_cross_entropy_with_logits(values_B, labels_B, reduction="none")
    pairs = torch.tensor(list_pairs(rights, list_groups(items)), dtype=torch.long, device=values_B.device).view(-1, 2)
    return F.softplus(values_B[pairs[:, 1]] - values_B[pairs[:, 0]])


def list_fit_units(train: Sequence[Labelled], kind: str) -> list[list[int]]:
    """What a batch is filled with: groups that hold both labels, or single completions. RunError where nothing can be learned."""
    groups = list_groups(train)
    all_right = sum(all(train[place].right for place in members) for members in groups)
    all_wrong = sum(not any(train[place].right for place in members) for members in groups)
    num_right = sum(item.right for item in train)
    if kind == "pairwise" and all_right + all_wrong == len(groups):
        raise RunError(
            f"reward_model: no group to fit on holds both right and wrong completions ({len(groups)} groups: {all_right} all "
            f"right, {all_wrong} all wrong), so there is no pair to compare. Raise train.group_size or reward_model.prompts, "
            'take prompts the policy solves sometimes, or set reward_model.loss = "pointwise".'
        )
    if kind == "pointwise" and num_right in (0, len(train)):
        raise RunError(
            f"reward_model: all completions to fit on have the same label ({num_right} right, {len(train) - num_right} wrong). "
            "Raise reward_model.prompts, or take prompts the policy solves sometimes."
        )
    if kind == "pointwise":
        return [[place] for place in range(len(train))]
    return [members for members in groups if len({train[place].right for place in members}) == 2]


def fill(units: Sequence[Sequence[int]], order: Sequence[int], batch_size: int) -> list[list[int]]:
    """Batches of whole units in the given order, of at most `batch_size` completions; one unit always fits."""
    batches: list[list[int]] = []
    for number in order:
        if not batches or len(batches[-1]) + len(units[number]) > batch_size:
            batches.append([])
        batches[-1] += units[number]
    return batches


def make_warmed_up_adamw_settings(learning_rate: float, total_updates: int, state_bits: Literal[32, 8] = 32) -> OptimizerConfig:
    """A short warm-up, for the moments are fresh, then a linear decay to 0: the fit ends where it ends, and settles."""
    warmup_steps = math.ceil(WARMUP_SHARE * total_updates)
    return OptimizerConfig(learning_rate=learning_rate, schedule="linear", warmup_steps=warmup_steps, state_bits=state_bits)


def measure_ranking(scores: Sequence[float], pairs: Sequence[tuple[int, int]]) -> float:
    """Share of (right, wrong) pairs whose right one scores higher; a tie counts half."""
    points = (
        1.0 if scores[right] > scores[wrong] else 0.5 if scores[right] == scores[wrong] else 0.0 for right, wrong in pairs
    )
    return sum(points) / len(pairs)


def compute_auc(scores: Sequence[float], rights: Sequence[bool]) -> float | None:
    """Probability that a right one scores above a wrong one, over all of them, ties half. None: only one label is there.

    Mann and Whitney's count by ranks: n log n where all pairs would be n^2.
    """
    num_right = sum(rights)
    num_wrong = len(rights) - num_right
    if not num_right or not num_wrong:
        return None
    values, counts = torch.tensor(scores, dtype=torch.float64).unique(return_counts=True)
    # Equal scores share the mean of their ranks, which run from 1.
    ranks = counts.cumsum(0).double() - (counts.double() - 1) / 2
    rank_of = dict(zip(values.tolist(), ranks.tolist(), strict=True))
    rank_sum = sum(rank_of[score] for score, right in zip(scores, rights, strict=True) if right)
    return (rank_sum - num_right * (num_right + 1) / 2) / (num_right * num_wrong)
