"""A learned reward: a model of the policy's architecture with a scalar head, fitted on labels of the verifier.

It differs from the usual reward model in three ways. Scores are read at the true last token of a completion, never at "the last token
that is not padding", which with pad = end is another token. The weights of a fit are fixed over the whole optimizer batch, so the
micro-batch size cannot change the gradient. And a share of the *prompts* is never trained on, so every fit measures how well it ranks
unseen completions.

Scores are not normalised: GRPO normalises rewards within their group, so scale and offset do not matter.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.base.keyed import keyed_hash, keyed_permutation
from cohort.engine.requests import stop_ids
from cohort.errors import InvariantError, ModelError, RewardError, RunError
from cohort.model import loading
from cohort.model.critic import ScalarModel
from cohort.model.optim import Adding, Optimizer, cast_parameters
from cohort.model.packing import cut_by_tokens
from cohort.model.policy import Policy
from cohort.ops.layout import Selection, lay_out
from cohort.recipe.schema import OptimizerConfig
from cohort.recipe.sections import RewardModelConfig
from cohort.rewards.contract import Scored, Scorer
from cohort.rewards.outcomes import mean_and_std
from cohort.training.reward_data import Labelled, is_held_back, list_groups, list_pairs
from cohort.types import Completion, Outcome, Prompt

PART = "reward_model"
"""Name of its part in an outcome, and of its metrics area."""
HEAD_STD = 0.1
"""Standard deviation of the first scores. Small, so that the first pairs have a loss near log 2; at zero no gradient would pass the head."""
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
        """`checkpointing`, `state_bits`, `adding`: as for the policy, since the reward model is as large."""
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
        """The policy's backbone with a small new head, which depends only on the seed; torch's global generators are not used."""
        from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, AutoModelForSequenceClassification

        config = copy.deepcopy(policy.model.config)
        config.num_labels = 1
        pad_id = find_padding_id(policy)
        config.get_text_config().pad_token_id = pad_id
        if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
            raise ModelError(
                f"reward_model: transformers has no sequence-classification class for {type(policy.model).__name__} (model type "
                f"{config.model_type!r}), so this policy cannot have a reward model. Set reward_model.iterations to 0, or "
                "use an architecture that has one (Llama, Qwen, Gemma, Mistral, Phi, GPT-2, ...)."
            )
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            model: Any = AutoModelForSequenceClassification.from_config(config, trust_remote_code=False)
        # float64 is for tests; MasterWeights casts to a lower compute dtype.
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
        """An existing reward model from a folder or the Hub. It reads the policy's token ids, so it must have the same vocabulary."""
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
                f"reward model: {source!r} has a different vocabulary than the policy, whose token ids it has to read. Use a reward model of "
                "the policy's family."
            )
        return cls(model, tokenizer, settings, compute_dtype, False, policy.checkpointing, state_bits, adding)

    # -- scoring -------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def score(self, prompt_and_completion_ids: Sequences, micro_batch_tokens: int) -> list[float]:
        """The head's value at the last token of each completion. May not be finite; see LearnedScorer."""
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
        """Rewards from scores: fitted pointwise, a score is a logit and its reward the probability of being right, which is bounded;
        fitted on pairs, only differences matter and the reward is the score."""
        if self.settings.loss == "pairwise":
            return list(scores)
        logits = torch.tensor(scores, dtype=torch.float64)
        return torch.where(logits.isfinite(), torch.sigmoid(logits), logits).tolist()

    def values(self, sequences: Sequences) -> Tensor:
        """values_B of one micro-batch, at least in float32."""
        layout = lay_out(sequences).to(self.device)
        last_B = layout.rows.own_start_B + layout.rows.own_length_B - 1
        return self.read_values(layout, Selection.from_index(last_B, layout.num_tokens).to(self.device))

    # -- fitting -------------------------------------------------------------------------------------------------------

    def fit(self, data: Sequence[Labelled], *, iteration: int, seed: int, micro_batch_tokens: int) -> dict[str, float]:
        """Continue from the current weights with a fresh AdamW; returns metrics on the prompts held back, before and after.

        If it is interrupted, the old weights are restored, so a checkpoint never holds half a fit.
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
            # A short warm-up, since the moments are fresh, then a linear decay to 0.
            adamw = OptimizerConfig(
                learning_rate=settings.learning_rate,
                schedule="linear",
                warmup_steps=math.ceil(WARMUP_SHARE * total),
                state_bits=self.state_bits,
            )
            optimizer = Optimizer(self.weights, adamw, total)
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
        """Accumulate the gradient of one optimizer batch; returns its mean loss over pairs, or over completions.

        The denominator is that of the whole batch. For pairs, groups stay whole; one group always fits.
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
        """How well it ranks labelled completions. Values that need both labels are left out if one is missing."""
        scores = self.score([(item.prompt_ids, item.completion_ids) for item in data], micro_batch_tokens)
        if not all(map(math.isfinite, scores)):
            raise InvariantError("the reward model's scores are not finite numbers. Lower reward_model.learning_rate.")
        rights = [item.right for item in data]
        pairs = list_pairs(rights, list_groups(data))
        measured = {"held_back_pairs": float(len(pairs))}
        if pairs:
            measured["accuracy"] = measure_ranking(scores, pairs)
        if (auc := compute_auc(scores, rights)) is not None:
            measured["auc"] = auc
        losses = compute_fit_losses(torch.tensor(scores, dtype=torch.float64), data, self.settings.loss)
        if losses.numel():
            measured["held_back_loss"] = float(losses.mean())
        return measured

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self, folder: Path, whole: Mapping[str, Tensor] | None = None) -> None:
        """Save in Hugging Face format, for AutoModelForSequenceClassification and AutoTokenizer. whole: the tensors of a sharded model."""
        loading.hide_progress_bars()
        self.model.save_pretrained(folder, state_dict=dict(whole) if whole else None)
        self.tokenizer.save_pretrained(folder)


# -- construction ------------------------------------------------------------------------------------------------------


def find_padding_id(policy: Policy) -> int | None:
    """A padding token that never ends a completion, or None.

    transformers pools at the last token that is not padding. If that were the end token, others would read a saved reward model one
    token too early. With None transformers accepts only unpadded rows.
    """
    tokenizer = policy.tokenizer
    ends = set(stop_ids(policy.model, tokenizer, ()))
    candidates = (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id)
    return next((token for token in candidates if token is not None and token not in ends), None)


def copy_backbone(policy_model: Any, model: Any) -> None:
    try:
        model.base_model.load_state_dict(policy_model.base_model.state_dict(), strict=True)
    except RuntimeError as problem:
        detail = str(problem).strip().splitlines()[-1].strip()
        raise ModelError(
            f"reward_model: the weights of {type(policy_model).__name__} do not fit {type(model).__name__} ({detail}), so this policy "
            "cannot have a reward model."
        ) from problem


def find_head(model: Any) -> torch.nn.Linear:
    head = getattr(model, "score", None)
    if not isinstance(head, torch.nn.Linear) or head.out_features != 1 or model.base_model is model:
        raise ModelError(
            f"{type(model).__name__}: not a backbone with a linear scalar head `score`, so it cannot be a reward model."
        )
    return head


@torch.no_grad()
def check_value_head(reward_model: RewardModel) -> None:
    """Check on a few tokens that our scores equal those of the model's own forward pass and ignore tokens after the end."""
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
            f"{type(model).__name__}: the values of its head at the last token are not its scores ({values} instead of {expected}); "
            "a reward model has to be a causal model whose head reads the last token."
        )


# -- pure functions of the fit -----------------------------------------------------------------------------------------


def compute_fit_losses(values_B: Tensor, items: Sequence[Labelled], kind: str) -> Tensor:
    """Per pair, -log sigmoid(value_right - value_wrong); or per completion, the cross-entropy of its label."""
    rights = [item.right for item in items]
    if kind == "pointwise":
        labels_B = torch.tensor(rights, dtype=values_B.dtype, device=values_B.device)
        return F.binary_cross_entropy_with_logits(values_B, labels_B, reduction="none")
    pairs = torch.tensor(list_pairs(rights, list_groups(items)), dtype=torch.long, device=values_B.device).view(-1, 2)
    return F.softplus(values_B[pairs[:, 1]] - values_B[pairs[:, 0]])


def list_fit_units(train: Sequence[Labelled], kind: str) -> list[list[int]]:
    """Units of a batch: groups with both labels, or single completions. RunError if nothing can be learned."""
    groups = list_groups(train)
    all_right = sum(all(train[place].right for place in members) for members in groups)
    all_wrong = sum(not any(train[place].right for place in members) for members in groups)
    num_right = sum(item.right for item in train)
    if kind == "pairwise" and all_right + all_wrong == len(groups):
        raise RunError(
            f"reward_model: no group has both right and wrong completions ({len(groups)} groups: {all_right} all right, {all_wrong} all "
            "wrong), so there is no pair to compare. Raise train.group_size or reward_model.prompts, use prompts that the policy sometimes "
            'solves, or set reward_model.loss = "pointwise".'
        )
    if kind == "pointwise" and num_right in (0, len(train)):
        raise RunError(
            f"reward_model: all completions have the same label ({num_right} right, {len(train) - num_right} wrong). Raise "
            "reward_model.prompts, or use prompts that the policy sometimes solves."
        )
    if kind == "pointwise":
        return [[place] for place in range(len(train))]
    return [members for members in groups if len({train[place].right for place in members}) == 2]


def fill(units: Sequence[Sequence[int]], order: Sequence[int], batch_size: int) -> list[list[int]]:
    """Batches of whole units in the given order, with at most `batch_size` completions unless a single unit has more."""
    batches: list[list[int]] = []
    for number in order:
        if not batches or len(batches[-1]) + len(units[number]) > batch_size:
            batches.append([])
        batches[-1] += units[number]
    return batches


def measure_ranking(scores: Sequence[float], pairs: Sequence[tuple[int, int]]) -> float:
    """Share of (right, wrong) pairs in which the right completion scores higher; a tie counts half."""
    points = (
        1.0 if scores[right] > scores[wrong] else 0.5 if scores[right] == scores[wrong] else 0.0 for right, wrong in pairs
    )
    return sum(points) / len(pairs)


def compute_auc(scores: Sequence[float], rights: Sequence[bool]) -> float | None:
    """Probability that a right completion scores above a wrong one, ties counting half. None if only one label occurs.

    Computed from ranks (Mann-Whitney): n log n instead of n^2 for all pairs.
    """
    num_right = sum(rights)
    num_wrong = len(rights) - num_right
    if not num_right or not num_wrong:
        return None
    values, counts = torch.tensor(scores, dtype=torch.float64).unique(return_counts=True)
    # Equal scores share their mean rank; ranks begin at 1.
    ranks = counts.cumsum(0).double() - (counts.double() - 1) / 2
    rank_of = dict(zip(values.tolist(), ranks.tolist(), strict=True))
    rank_sum = sum(rank_of[score] for score, right in zip(scores, rights, strict=True) if right)
    return (rank_sum - num_right * (num_right + 1) / 2) / (num_right * num_wrong)


# -- scores as rewards -------------------------------------------------------------------------------------------------

NOT_FINITE = f"{PART}:nan"


@dataclass(frozen=True)
class LearnedScorer:
    """Scores training rollouts: the reward is the reward model's; success and answer stay the verifier's.

    For training only. Evaluation uses the verifier: a reward model's opinion of the policy it has trained is no evidence.
    """

    verifier: Scorer
    reward_model: RewardModel
    micro_batch_tokens: int
    max_fault_share: float = 0.1
    """As train.max_fault_share: a larger share of scores that are not finite stops the run."""

    def score(self, prompts: Sequence[Prompt], completions: Sequence[Completion], *, step: int, num_steps: int) -> Scored:
        verified = self.verifier.score(prompts, completions, step=step, num_steps=num_steps)
        sequences = [(prompt.token_ids, completion.token_ids) for prompt, completion in zip(prompts, completions, strict=True)]
        scores = self.reward_model.rewards(self.reward_model.score(sequences, self.micro_batch_tokens))
        outcomes = [replace_reward(outcome, score) for outcome, score in zip(verified.outcomes, scores, strict=True)]
        broken = sum(not math.isfinite(score) for score in scores)
        if broken > self.max_fault_share * len(scores):
            raise RewardError(
                f"the reward model's score is not finite for {broken} of {len(scores)} completions of step {step}. "
                "Lower reward_model.learning_rate."
            )
        return Scored(outcomes, replace_reward_metrics(verified.metrics, outcomes, broken))


def replace_reward(outcome: Outcome, score: float) -> Outcome:
    """The outcome with this score as its reward. Faults of the verifier stay listed, but the reward does not depend on them."""
    if PART in outcome.parts:
        raise RewardError(f"rewards: a part is named {PART!r}, the name of the learned reward; give it another `name`.")
    reward = score if math.isfinite(score) else None
    faults = outcome.faults if reward is not None else (*outcome.faults, NOT_FINITE)
    return replace(outcome, parts={**outcome.parts, PART: reward}, reward=reward, faults=faults, steps=())


def replace_reward_metrics(verified: Mapping[str, float], outcomes: Sequence[Outcome], broken: int) -> dict[str, float]:
    """The verifier's metrics, with those of the reward replaced."""
    rewards = [outcome.reward for outcome in outcomes if outcome.reward is not None]
    metrics = {name: value for name, value in verified.items() if name not in ("reward/mean", "reward/std")}
    metrics |= mean_and_std("reward", rewards) | mean_and_std(f"reward/{PART}", rewards)
    metrics["reward/unscored"] = float(len(outcomes) - len(rewards))
    metrics["reward/faults"] = verified.get("reward/faults", 0.0) + broken
    judged = [
        (outcome.reward, outcome.success) for outcome in outcomes if outcome.reward is not None and outcome.success is not None
    ]
    if (agreement := compute_auc([reward for reward, _ in judged], [success for _, success in judged])) is not None:
        metrics["reward/verifier_agreement"] = agreement
    return metrics
