"""Station 8: one group of a run under every named algorithm, by the training functions.

    step's rollouts -> choose_examples -> Credit.advantages -> pack -> token_loss -> gradient coefficient of each token

Rewards come from the rollouts of the whole step, log-probs from the token record of this group. The step's other groups are replaced by
stand-ins with one token per completion, because only their rewards and lengths matter. Missing inputs are reported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cohort.algorithms.compatibility import has_kl_in_loss, has_kl_in_reward
from cohort.algorithms.named import PRESETS
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.describe import describe_algorithm
from cohort.recipe.rules import OVERLONG_PART
from cohort.types import Completion, Outcome, Prompt, Rollout

if TYPE_CHECKING:
    from cohort.model.examples import Example

OWN = "this run"
"""The name of the run's own algorithm."""
MOST_WHITENED = 300_000
"""Largest number of tokens in a step for advantages that whiten over all of them."""
NO_KL_BATCH = "Without its KL: it penalises every token of the batch, but only this group's tokens are recorded."
NO_REFERENCE = "Without its KL: the run recorded no reference log-probs."
UNREAD = "Some completions of this group were not part of the update; they are assumed to be as sampled, with ratio 1."
WRITTEN = "Values as recorded by the run; its files are not enough to compute them again."
FROM_START = "It trains on completions of the initial policy, but these are later ones."


@dataclass(frozen=True)
class Settings:
    """The recipe's settings for training on a step."""

    longest: int
    """max_completion_tokens."""
    weights: Mapping[str, float]
    """Weights of the reward parts, by name."""
    minibatches: int = 1
    passes: int = 1
    seed: int = 0
    algorithm: AlgorithmConfig | None = None
    """The run's own; None if it cannot be read or names user functions, which are never imported here."""


@dataclass(frozen=True)
class GroupRecord:
    """The data of a group and its step."""

    step: int
    group: int
    rows: Sequence[Mapping[str, Any]]
    """The step's completions without tokens, in the order of the file (observe/rollouts.py)."""
    tokens: Mapping[int, Mapping[str, Any]]
    """Row -> token record, for completions of this group."""
    ids: Mapping[int, tuple[Sequence[int], Sequence[float], Sequence[int]]]
    """Row -> (completion ids, sampling log-probs, prompt ids), for completions of this group."""
    settings: Settings

    @property
    def members(self) -> list[int]:
        return [row for row, entry in enumerate(self.rows) if int(entry["group"]) == self.group]


@dataclass(frozen=True)
class Applied:
    """A group under one algorithm."""

    name: str
    describes: str
    """The algorithm in a sentence."""
    missing: str = ""
    """Why there are no values; "" if there are."""
    notes: tuple[str, ...] = ()
    coefficients: Mapping[int, Sequence[float | None]] = field(default_factory=dict)
    """Row -> gradient coefficient of each token; None for tokens that are not trained on."""
    weights: Mapping[int, float] = field(default_factory=dict)
    """Row -> aggregation weight of its tokens."""
    cut: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Row -> positions of tokens that the region clips (for cispo: whose weight it caps)."""


def apply_algorithms(record: GroupRecord) -> list[Applied]:
    """The group under the run's own algorithm and under every preset."""
    own = apply_own(record)
    first = [] if own is None else [own]
    return [*first, *(apply_algorithm(name, AlgorithmConfig(name=name), record) for name in PRESETS)]


def apply_own(record: GroupRecord) -> Applied | None:
    """The run's own algorithm, computed if possible, else as recorded; None if neither is available."""
    algorithm = record.settings.algorithm
    found = None if algorithm is None else apply_algorithm(OWN, algorithm, record)
    if found is not None and not found.missing and NO_KL_BATCH not in found.notes:
        return found
    written = {row: entry for row, entry in record.tokens.items() if has_numbers(entry, "coefficient")}
    if not written:
        return found
    return Applied(
        OWN,
        "with user functions" if found is None else found.describes,
        notes=(WRITTEN,),
        coefficients={row: list(entry["coefficient"]) for row, entry in written.items()},
        weights={row: next(filter(None, entry.get("weight") or ()), 0.0) for row, entry in written.items()},
        cut={row: [place for place, side in enumerate(entry.get("clipped") or ()) if side] for row, entry in written.items()},
    )


def apply_algorithm(name: str, algorithm: AlgorithmConfig, record: GroupRecord) -> Applied:
    if algorithm.data == "pairs":  # from rollouts, the pair is the best and the worst completion of a group
        algorithm = AlgorithmConfig(**(algorithm.model_dump() | {"data": "policy"}))
    describes, missing = describe_algorithm(algorithm), explain_missing(algorithm, record)
    if missing:
        return Applied(name, describes, missing)
    notes: list[str] = [FROM_START] if algorithm.data == "start" else []
    algorithm = algorithm.model_copy(update={"data": "policy"})
    return replace(weigh_group(algorithm, record, notes), name=name, describes=describes)


def explain_missing(algorithm: AlgorithmConfig, record: GroupRecord) -> str:
    """Why an algorithm cannot be computed from the record; "" if it can."""
    advantage = algorithm.chosen.advantage
    if advantage.reads_values:
        return "Needs a critic's values, which runs do not record."
    if advantage.traits.needs_teacher:
        return "Needs a teacher's log-probs, which runs do not record."
    if algorithm.data == "demonstrations":
        return "Trains on demonstrations; these completions were sampled."
    if algorithm.chosen.region.traits.preference and not has_reference(record):
        return "Needs reference log-probs, which this run did not record."
    if advantage.reads_success and all(record.rows[row].get("success") is None for row in record.members):
        return "Needs success verdicts, which no reward of this run gives."
    tokens = sum(int(row.get("length") or 0) for row in record.rows)
    if "token_rewards_N" in advantage.reads and tokens > MOST_WHITENED:
        return f"Whitens over all tokens of the step, but {tokens:,} tokens exceed the limit of {MOST_WHITENED:,}."
    return ""


def has_reference(record: GroupRecord) -> bool:
    return any(has_numbers(entry, "ref_logprob") for entry in record.tokens.values())


def has_numbers(entry: Mapping[str, Any], name: str) -> bool:
    values = entry.get(name)
    return values is not None and any(value is not None for value in values)


# -- from the record to the objects of training --------------------------------------------------------------------------


def make_rollouts(record: GroupRecord, algorithm: AlgorithmConfig) -> list[Rollout]:
    """The step's rollouts: this group's with their tokens, the others with one token each."""
    from cohort.training.ahead import Scored
    from cohort.training.rollouts import penalize_overlong

    outcomes = [read_outcome(row) for row in record.rows]
    if algorithm.overlong_share:
        lengths = [int(row.get("length") or 0) for row in record.rows]
        zeros = {length: (0,) * length for length in lengths}
        whole = [
            Completion(zeros[length], (), "length" if row["end"] == "length" else "stop", "")
            for length, row in zip(lengths, record.rows, strict=True)
        ]
        scored = penalize_overlong(Scored(outcomes, {}), whole, record.settings.longest, algorithm.overlong_share)
        outcomes = list(scored.outcomes)
    groups = {group: place for place, group in enumerate(dict.fromkeys(int(row["group"]) for row in record.rows))}
    found = []
    for place, (row, outcome) in enumerate(zip(record.rows, outcomes, strict=True)):
        ids, sampling, prompt_ids = record.ids.get(place, ((0,), (0.0,), (0,)))
        end = "length" if row["end"] == "length" else "stop"
        mask = record.tokens[place].get("mask") if place in record.tokens else None
        sampled = tuple(map(bool, mask)) if mask is not None and len(mask) == len(ids) else None
        completion = Completion(tuple(ids), tuple(sampling), end, str(row["completion"]), sampled)  # type: ignore[arg-type]
        prompt = Prompt(int(row["prompt_index"]), "", {}, tuple(prompt_ids) or (0,))
        found.append(Rollout(prompt, groups[int(row["group"])], int(row["sample"]), completion, outcome, 0))
    return found


def read_outcome(row: Mapping[str, Any]) -> Outcome:
    """The outcome by the reward functions, without the overlong penalty of the run's own algorithm."""
    parts = {name.removeprefix("reward/"): value for name, value in row.items() if name.startswith("reward/")}
    penalty = parts.pop(OVERLONG_PART, None) or 0.0
    reward = None if row["reward"] is None else float(row["reward"]) - penalty
    try:
        steps = tuple((int(place), float(value)) for place, value in json.loads(row.get("steps") or "[]"))
    except (ValueError, TypeError):
        steps = ()
    if steps and penalty:  # the last step includes it
        steps = (*steps[:-1], (steps[-1][0], steps[-1][1] - penalty))
    return Outcome(parts, reward, row.get("success"), steps=steps)


def make_decoder(record: GroupRecord) -> Callable[[Sequence[int]], str]:
    """A function from ids to text, by the recorded pieces."""
    pieces = {
        token: piece
        for entry in record.tokens.values()
        for token, piece in zip(entry["token_ids"], entry["pieces"], strict=True)
    }
    return lambda ids: "".join(pieces.get(token, "") for token in ids)


def add_record(example: Example, entry: Mapping[str, Any], with_reference: bool) -> tuple[Example, Any, bool]:
    """(the example with old and reference log-probs, the policy log-probs of its tokens, whether they are recorded)."""
    import torch

    def read(name: str) -> Any:
        values = entry.get(name)
        if values is None or len(values) != len(example.completion_ids) or not has_numbers(entry, name):
            return None
        return torch.tensor([0.0 if value is None else value for value in values], dtype=torch.float32)

    policy_T, old_T, ref_T = (read(name) for name in ("policy_logprob", "old_logprob", "ref_logprob"))
    recorded = policy_T is not None
    if policy_T is None:
        policy_T = old_T = example.sampling_logprobs_T
    changes: dict[str, Any] = {"old_logprobs_T": policy_T if old_T is None else old_T}
    if with_reference:
        changes["ref_logprobs_T"] = policy_T if ref_T is None else ref_T
    return replace(example, **changes), policy_T, recorded


# -- one algorithm -------------------------------------------------------------------------------------------------------


def weigh_group(algorithm: AlgorithmConfig, record: GroupRecord, notes: list[str]) -> Applied:
    """The advantages over the step, and the gradient coefficients of this group's tokens."""
    import torch

    from cohort.model.packing import pack, plan_minibatches
    from cohort.model.policy import TokenScores
    from cohort.training.credit import Credit
    from cohort.training.experience import choose_examples, select_whole_pairs
    from cohort.training.objective import compares_pairs, token_loss, weigh_tokens
    from cohort.training.rollouts import Collected

    settings, chosen = record.settings, algorithm.chosen
    whitens = "token_rewards_N" in chosen.advantage.reads
    rollouts = make_rollouts(record, algorithm)
    lengths_N = [int(row.get("length") or 0) for row in record.rows]
    selected = choose_examples(Collected(rollouts, {}, 0, 0), algorithm, settings.weights, step=0)
    known = has_reference(record)
    in_reward, kl_coef = has_kl_in_reward(chosen), algorithm.kl_coef
    if (in_reward or has_kl_in_loss(chosen)) and not known:
        notes.append(NO_REFERENCE)
        kl_coef = 0.0
    elif in_reward and whitens:
        notes.append(NO_KL_BATCH)
        kl_coef = 0.0
    members = set(record.members)
    examples, policy = [], {}
    for example in selected.examples:
        row = example.rollout
        if row in members:
            example, policy[row], recorded = add_record(example, record.tokens.get(row, {}), known)
            if not recorded and record.tokens and UNREAD not in notes:
                notes.append(UNREAD)
        else:
            example = stand_in(example, lengths_N[row] if whitens else 1, known)
        examples.append(example)
    # Step rewards are placed on tokens, which only this group has, and compared within a group.
    credited_examples = examples
    if "steps_N" in chosen.advantage.reads:
        credited_examples = [example for example in examples if example.rollout in members]
        if not any(rollout.outcome.steps for rollout in rollouts):
            notes.append("No reward of this run gives steps, so each completion counts as one step.")
    credit = Credit(rollouts, selected.counted_PG, algorithm, kl_coef, make_decoder(record), settings.weights)
    credited = {example.rollout: example for example in credit.advantages(credited_examples)}
    batch: Sequence[Example] = [credited.get(example.rollout, example) for example in examples]
    if compares_pairs(algorithm):
        batch = select_whole_pairs(batch)
    own = [example for example in batch if example.rollout in members]
    empty = Applied(algorithm.name, "", notes=tuple(notes), coefficients={row: [0.0] * lengths_N[row] for row in members})
    if not own:
        return empty
    groups_N = [example.group for example in batch]
    plan = plan_minibatches(groups_N, settings.minibatches, settings.passes, settings.seed, record.step)
    together = next(places for places in reversed(plan) if any(batch[place].rollout in members for place in places))
    trained_N = [
        batch[place].trained_tokens if batch[place].rollout in members else lengths_N[batch[place].rollout]
        for place in together
    ]
    found_N = weigh_tokens(algorithm)(trained_N, [groups_N[place] for place in together], settings.longest)
    weight_of = {batch[place].rollout: weight for place, weight in zip(together, found_N, strict=True)}
    minibatch = pack(
        own,
        aggregation=lambda lengths, groups, most: [weight_of[example.rollout] for example in own],
        max_completion_tokens=settings.longest,
        micro_batch_tokens=sum(example.num_tokens for example in own) + 1,
        skip_zero_advantage=False,
        keep_groups=True,
    )
    coefficients: dict[int, Sequence[float | None]] = {
        row: [0.0] * len(record.ids[row][0]) for row in members if row in record.ids
    }
    cut: dict[int, Sequence[int]] = {}
    for micro in minibatch.micro_batches:
        flat = torch.cat([policy[own[place].rollout][own[place].loss_mask_T] for place in micro.examples])
        scores = TokenScores(flat.clone().requires_grad_(), torch.zeros_like(flat))
        loss = token_loss(scores, micro, algorithm if kl_coef else algorithm.model_copy(update={"kl_coef": 0.0}), kl_coef)
        clipped_M = loss.surrogate.below_M | loss.surrogate.above_M
        for row, place in enumerate(micro.examples):
            example, here_M = own[place], micro.row_M == row
            values = iter(loss.coefficient_M[here_M].tolist())
            coefficients[example.rollout] = [next(values) if trained else None for trained in example.loss_mask_T.tolist()]
            cut[example.rollout] = example.loss_mask_T.nonzero().flatten()[clipped_M[here_M]].tolist()
    return replace(empty, coefficients=coefficients, weights=weight_of, cut=cut)


def stand_in(example: Example, length: int, with_reference: bool) -> Example:
    """An example of another group with `length` tokens on which policy and reference agree."""
    import torch

    zeros_T = torch.zeros(length)
    return replace(
        example,
        completion_ids=(0,) * length,
        loss_mask_T=torch.ones(length, dtype=torch.bool),
        advantages_T=zeros_T,
        sampling_logprobs_T=zeros_T,
        old_logprobs_T=zeros_T,
        ref_logprobs_T=zeros_T if with_reference else None,
    )


def count_agreeing(found: Sequence[Applied], leader: str = "grpo") -> tuple[int, int]:
    """(algorithms that push every token in the leader's direction, algorithms with values), without the leader and the run's own."""
    others = [one for one in found if not one.missing and one.name not in (leader, OWN)]
    lead = next((one for one in found if one.name == leader), None)
    if lead is None or lead.missing:
        return 0, len(others)
    signs = read_signs(lead)
    return sum(read_signs(one) == signs for one in others), len(others)


def read_signs(one: Applied) -> list[int]:
    values = [value for row in sorted(one.coefficients) for value in one.coefficients[row] if value is not None]
    return [(value > 1e-12) - (value < -1e-12) for value in values]
