"""From rollouts to credited examples, through make_batch with real (tiny) models: every number against the formula by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import reference
from cohort.algorithms.named import NAMED
from cohort.algorithms.registry import make_choice
from cohort.errors import RewardError
from cohort.model.critic import Critic, NoCritic
from cohort.model.examples import Example, make_examples
from cohort.model.packing import pack
from cohort.model.policy import Policy
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.file import load_recipe
from cohort.recipe.schema import CriticConfig, OptimizerConfig
from cohort.training.experience import Credit, Models, find_equal_groups, stack_rewards
from cohort.training.rollouts import Collected
from cohort.training.state import Batch
from cohort.types import Rollout
from conftest import collect_batch, rollout, tiny_policy

OPTIONS = {"aggregation": "token_mean", "max_completion_tokens": 8, "skip_zero_advantage": False}


@cache
def policy() -> Policy:
    return tiny_policy(seed=0)


@cache
def other() -> Policy:
    """A reference that really differs."""
    return tiny_policy(seed=1)


def batch_of(
    rollouts: list[Rollout],
    *overrides: str,
    kl_coef: float | None = None,
    critic: Critic | None = None,
    step: int = 1,
    **more: Any,
) -> Batch:
    recipe = load_recipe(overrides=["micro_batch_tokens=20", *overrides])
    collected = Collected(rollouts, {"reward/mean": 0.5}, prompts_taken=7, tokens_sampled=99, verdicts={3: (1, 2)}, **more)
    coefficient = recipe.algorithm.kl_coef if kl_coef is None else kl_coef
    models = Models(policy(), other() if recipe.algorithm.kl_coef else None, critic or NoCritic())
    return collect_batch(collected, models, recipe, step, coefficient)


def grid(rewards: list[list[float | None]], **options: Any) -> list[Rollout]:
    """Groups of rollouts of different lengths and ids, one per reward."""
    generator = torch.Generator().manual_seed(1)
    rollouts = []
    for group, row in enumerate(rewards):
        for sample, reward in enumerate(row):
            ids = torch.randint(3, 17, (1 + (3 * group + sample) % 5,), generator=generator).tolist()
            rollouts.append(rollout(group, sample, reward, token_ids=tuple(ids), **options))
    return rollouts


def sample_of(example: Example) -> reference.Sample:
    mask = example.loss_mask_T.tolist()
    return reference.Sample(example.prompt_ids, example.completion_ids, mask, [0.0] * len(mask))


@torch.no_grad()
def k1_terms(example: Example) -> list[float]:
    """log pi - log ref of the trained tokens, from the models' own forwards."""
    now, ref = (reference.trained_tokens(model.model, sample_of(example), 1.0) for model in (policy(), other()))
    return [float(mine.logprob - theirs.logprob) for mine, theirs in zip(now, ref, strict=True)]


def trained(example: Example, vector: torch.Tensor | None = None) -> list[float]:
    return (example.advantages_T if vector is None else vector)[example.loss_mask_T].tolist()


# -- which rollouts become examples --------------------------------------------------------------------------------------


def test_make_batch_keeps_or_drops_zero_variance_groups_and_always_drops_unusable_ones():
    """Groups: useful, all equal, one score only. keep: 2 + 2 examples count in N; drop: 2. Advantages are +-1 / (1 + 2e-6)."""
    rollouts = [
        rollout(0, 0, 1.0), rollout(0, 1, 0.0),
        rollout(1, 0, 0.3), rollout(1, 1, 0.3),
        rollout(2, 0, 1.0), rollout(2, 1, None),
    ]  # fmt: skip
    counts = {}
    in_float32 = torch.tensor(0.5 / 0.500001, dtype=torch.float32).item()
    for choice in ("keep", "drop"):
        batch = batch_of(rollouts, "group_size=2", f"zero_variance={choice}")
        counts[choice] = pack(batch.examples, micro_batch_tokens=100, **OPTIONS).completions
        assert batch.advantages_N == [in_float32, -in_float32, 0, 0, 0, 0]
        assert batch.metrics["advantage/useful_groups"] == pytest.approx(1 / 3)
        assert batch.metrics["advantage/zero_variance_groups"] == 1
        assert batch.metrics["advantage/dropped_groups"] == {"keep": 1, "drop": 2}[choice]
        assert batch.metrics["advantage/abs_max"] == in_float32
    assert counts == {"keep": 4, "drop": 2}
    rewards_PG, scored_PG = stack_rewards(rollouts)
    assert rewards_PG.tolist() == [[1.0, 0.0], [0.3, 0.3], [1.0, 0.0]]
    assert scored_PG.tolist() == [[True, True], [True, True], [True, False]]


def test_what_was_collected_goes_on_with_the_batch():
    batch = batch_of([rollout(0, 0, 1.0), rollout(0, 1, 0.0, length=5)], "group_size=2")
    assert (batch.prompts_taken, batch.verdicts, batch.metrics["rollout/tokens"]) == (7, {3: (1, 2)}, 99)
    assert batch.metrics["reward/mean"] == 0.5
    assert batch.metrics["rollout/length_mean"] == 4.0
    sampled = batch_of([rollout(0, 0, 1.0), rollout(0, 1, 0.0, length=5)], "group_size=2")
    logprobs = [one for done in sampled.rollouts for one in done.completion.sampling_logprobs]
    assert sampled.metrics["rollout/entropy"] == pytest.approx(-sum(logprobs) / 8)


def test_a_step_in_which_every_group_is_dropped_is_an_empty_plan_not_an_error():
    rollouts = [rollout(0, 0, 1.0), rollout(0, 1, 1.0)]
    for overrides in (["zero_variance=drop"], ["algorithm.name=dpo", "algorithm.data=policy"]):
        batch = batch_of(rollouts, "group_size=2", "minibatches_per_step=3", *overrides)
        assert list(batch.examples) == []
        assert batch.plan == [[]]
        assert batch.advantages_N == [0.0, 0.0]


@pytest.mark.parametrize("algorithm", ["dapo", "maxrl", "reinforce++", "grpo"])
def test_where_dynamic_sampling_found_nothing_no_group_is_useful(algorithm):
    """All wrong, but a shaped reward differs in every group: nothing is trained, so no group counts as useful."""
    rollouts = [rollout(0, 0, 0.1), rollout(0, 1, 0.3), rollout(1, 0, 0.0), rollout(1, 1, 0.2)]
    metrics = batch_of(rollouts, "group_size=2", f"algorithm.name={algorithm}", useful=False).metrics
    assert (metrics["advantage/useful_groups"], metrics["advantage/dropped_groups"], metrics["advantage/std"]) == (0.0, 2, 0.0)
    if algorithm == "grpo":
        assert batch_of(rollouts, "group_size=2").metrics["advantage/useful_groups"] == 1.0
        nobody = [rollout(group, sample, None) for group in range(2) for sample in range(2)]
        for useful in (True, False):
            assert batch_of(nobody, "group_size=2", useful=useful).metrics["advantage/useful_groups"] == 0.0


def test_algorithms_without_a_group_baseline_train_on_lone_scores():
    """One score in a group is unusable for GRPO; REINFORCE++ and RFT compare with no one."""
    rollouts = [rollout(0, 0, 1.0), rollout(0, 1, None), rollout(1, 0, 0.0), rollout(1, 1, 0.0)]
    kept = {
        name: [example.rollout for example in batch_of(rollouts, "group_size=2", f"algorithm.name={name}").examples]
        for name in ("grpo", "reinforce++", "online_rft")
    }
    assert kept == {"grpo": [2, 3], "reinforce++": [0, 2, 3], "online_rft": [0, 2, 3]}


# -- one advantage per completion ----------------------------------------------------------------------------------------

REWARDS: list[list[float | None]] = [
    [1.0, 0.0, 0.25, None],
    [0.5, 0.5, 0.5, 0.5],
    [None, 2.0, None, None],
    [0.0, 1.0, 3.0, 3.0],
]


@pytest.mark.parametrize(
    "name",
    sorted(name for name, one in NAMED["advantage"].items() if "rewards_PG" in one.reads and "pairs" not in one.traits.fits),
)
def test_every_group_advantage_through_the_real_path(name):
    """Without KL: the slow reference on the raw rewards, on every token of every scored completion of a usable group."""
    batch = batch_of(grid(REWARDS), "group_size=4", "kl_coef=0", f"algorithm.advantage={name}")
    # A group with a single score is left out, so it is in no deviation over the batch either.
    counted = [group if sum(reward is not None for reward in group) > 1 else [None] * 4 for group in REWARDS]
    expected = [value for group in reference.advantages(name, counted) for value in group]
    assert [example.rollout for example in batch.examples] == [0, 1, 2, 4, 5, 6, 7, 12, 13, 14, 15]
    for example in batch.examples:
        assert trained(example) == pytest.approx([expected[example.rollout]] * example.trained_tokens, rel=1e-6, abs=1e-7)
    assert batch.advantages_N == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_kl_in_the_loss_leaves_rewards_alone():
    batch = batch_of(grid(REWARDS), "group_size=4", "kl_coef=5.0")
    expected = [value for group in reference.advantages("group_normalized", REWARDS) for value in group]
    assert batch.advantages_N == pytest.approx(expected, rel=1e-6, abs=1e-7)
    assert all(example.ref_logprobs_T is not None for example in batch.examples)


@pytest.mark.parametrize("name", ["leave_one_out", "group_normalized", "batch_whitened"])
def test_kl_in_the_completion_reward(name):
    """r_i - kl_coef * sum of k1 over its tokens, then the group's statistics of that; a group of equal rewards now differs."""
    kl_coef = 0.3
    rollouts = grid([[1.0, 0.0, 0.25], [0.5, 0.5, 0.5]])
    batch = batch_of(
        rollouts, "algorithm.name=rloo", f"algorithm.advantage={name}", "group_size=3", "kl_coef=0.01", kl_coef=kl_coef
    )
    costs = [sum(k1_terms(example)) for example in batch.examples]
    assert max(abs(cost) for cost in costs) > 0.5
    rewards = [rollout.outcome.reward - kl_coef * cost for rollout, cost in zip(rollouts, costs, strict=True)]
    expected = [value for group in reference.advantages(name, [rewards[:3], rewards[3:]]) for value in group]
    for example in batch.examples:
        assert trained(example) == pytest.approx([expected[example.rollout]] * example.trained_tokens, rel=1e-5, abs=1e-6)
    assert all(value != 0.0 for value in batch.advantages_N)
    # The rewards themselves, and what is logged of them, stay what the functions said.
    assert batch.metrics["advantage/zero_variance_groups"] == 1
    assert [rollout.outcome.reward for rollout in batch.rollouts] == [1.0, 0.0, 0.25, 0.5, 0.5, 0.5]


def test_credit_in_float64_is_the_formula_to_the_last_bits():
    """The same without the float32 of stored advantages: RLOO with KL in the completion's reward, to 1e-12."""
    rollouts = grid([[1.0, 0.0, 0.25]])
    generator = torch.Generator().manual_seed(0)
    examples = []
    for example in make_examples(rollouts):
        old, ref = (torch.randn(len(example.completion_ids), generator=generator, dtype=torch.float64) for _ in range(2))
        vectors = {"old_logprobs_T": old, "ref_logprobs_T": ref}
        examples.append(replace(example, advantages_T=example.advantages_T.double(), **vectors))
    credit = Credit(rollouts, torch.ones(1, 3, dtype=torch.bool), AlgorithmConfig(name="rloo"), 0.3, policy().codec.decode)
    rewards = [
        r - 0.3 * (example.old_logprobs_T - example.ref_logprobs_T).sum().item()
        for r, example in zip([1.0, 0.0, 0.25], examples, strict=True)
    ]
    expected = reference.advantages("leave_one_out", [rewards])[0]
    for example, advantage in zip(credit.advantages(examples), expected, strict=True):
        assert trained(example) == pytest.approx([advantage] * example.trained_tokens, abs=1e-12)


def test_binary_reads_success_and_not_the_reward():
    """A wrong answer with a high shaped reward gets 0 (signed: -1); a right one with a low reward gets 1."""
    rollouts = [
        rollout(0, 0, 0.9, success=False), rollout(0, 1, 0.1, success=True),
        rollout(1, 0, None), rollout(1, 1, 0.7, success=True),
    ]  # fmt: skip
    right = batch_of(rollouts, "algorithm.name=online_rft", "group_size=2")
    signed = batch_of(rollouts, "algorithm.name=online_rft", "algorithm.advantage=binary_signed", "group_size=2")
    assert right.advantages_N == [0.0, 1.0, 0.0, 1.0]
    assert signed.advantages_N == [-1.0, 1.0, 0.0, 1.0]
    assert [example.rollout for example in right.examples] == [0, 1, 3]


def test_maxrl_reads_success_and_not_the_reward():
    """One right answer of four, with the lowest reward: +3, and -1 for the others; completions without a verdict are in no mean."""
    rollouts = [rollout(0, sample, 0.9 - sample / 10, success=sample == 3) for sample in range(4)]
    rollouts += [rollout(1, sample, reward, success=True) for sample, reward in enumerate((0.1, 0.9, 0.3, 0.4))]
    rollouts += [rollout(2, 0, 1.0), rollout(2, 1, 0.0), rollout(2, 2, 0.7), rollout(2, 3, None)]
    rollouts[10] = replace(rollouts[10], outcome=replace(rollouts[10].outcome, success=None))
    batch = batch_of(rollouts, "algorithm.name=maxrl", "group_size=4", "zero_variance=drop")
    assert batch.advantages_N == [-1.0, -1.0, -1.0, 3.0] + [0.0] * 4 + [1.0, -1.0, 0.0, 0.0]
    assert [example.rollout for example in batch.examples] == [0, 1, 2, 3, 8, 9]  # all right: silent, whatever its rewards say
    assert batch.metrics["advantage/zero_variance_groups"] == 1


def with_parts(rewards: list[list[dict[str, float | None] | None]]) -> list[Rollout]:
    """Rollouts with these reward parts; None is unscored. The sum is of no interest, and says something else."""
    made = grid([[None if parts is None else 0.5 for parts in row] for row in rewards])
    flat = [parts for row in rewards for parts in row]
    return [
        one if parts is None else replace(one, outcome=replace(one.outcome, parts=parts))
        for one, parts in zip(made, flat, strict=True)
    ]


def parts_recipe(*overrides: str) -> list[str]:
    """Right, a format worth 0.5 and a part of weight 0."""
    rewards = [("right", 1.0), ("shape", 0.5), ("watched", 0.0)]
    tables = ", ".join(f'{{function = "math_answer", name = "{name}", weight = {weight}}}' for name, weight in rewards)
    return ["algorithm.name=gdpo", f"rewards=[{tables}]", *overrides]


def test_gdpo_credits_parts_by_the_weights_of_the_recipe():
    """Groups: opposite parts; only the overlong penalty, with weight 1; one part abstained; one score.

    Sums: 1 - 0.5 and 0.5 - 1; 1 and -1; 0.5 (the format alone), -0.5, with the first part spoken once and so silent.
    """
    rollouts = with_parts(
        [
            [{"right": 1.0, "shape": 0.0, "watched": 3.0}, {"right": 0.0, "shape": 0.2, "watched": 0.0}],
            [{"right": 1.0, "shape": 0.2, "overlong": 0.0}, {"right": 1.0, "shape": 0.2, "overlong": -0.4}],
            [{"right": None, "shape": 1.0}, {"right": 1.0, "shape": 0.0}],
            [{"right": 1.0, "shape": 1.0}, None],
        ]
    )
    batch = batch_of(rollouts, *parts_recipe("group_size=2", "std_epsilon=0"))
    std = ((2 * 0.25 + 2 * 1.0 + 2 * 0.25) / 6) ** 0.5
    expected = [0.5, -0.5, 1.0, -1.0, 0.5, -0.5]
    assert batch.advantages_N == pytest.approx([value / std for value in expected] + [0.0, 0.0], rel=1e-6)
    assert [example.rollout for example in batch.examples] == [0, 1, 2, 3, 4, 5]
    assert batch.metrics["advantage/dropped_groups"] == 1


def test_a_group_is_silent_only_if_every_part_with_weight_is():
    """Groups: equal sums of different parts teach; equal parts do not; nor a part of weight 0, one spoken once, or an unscored member."""
    rollouts = with_parts(
        [
            [{"right": 1.0, "shape": 0.0}, {"right": 0.0, "shape": 2.0}, {"right": 0.5, "shape": 1.0}],
            [{"right": 1.0, "shape": 0.1 + 0.2}] * 3,
            [{"right": 1.0, "watched": 0.0}, {"right": 1.0, "watched": 5.0}, {"right": 1.0, "watched": 1.0}],
            [{"right": 1.0, "shape": None}, {"right": 1.0, "shape": 0.7}, {"right": 1.0, "shape": None}],
            [{"right": 1.0, "shape": 1.0}, {"right": 1.0, "shape": 1.0}, None],
            [{"right": 1.0, "shape": 1.0}, {"right": 0.0, "shape": 1.0}, None],
            [{"right": 1.0, "shape": 1.0}, None, None],
        ]
    )
    dropped = batch_of(rollouts, *parts_recipe("group_size=3", "zero_variance=drop"))
    assert [example.rollout for example in dropped.examples] == [0, 1, 2, 15, 16]
    assert dropped.metrics["advantage/zero_variance_groups"] == 4
    assert dropped.metrics["advantage/dropped_groups"] == 5
    kept = batch_of(rollouts, *parts_recipe("group_size=3"))
    assert kept.advantages_N[3:15] == [0.0] * 12
    assert all(value != 0 for value in (kept.advantages_N[0], kept.advantages_N[1], *kept.advantages_N[15:17]))
    nobody = batch_of(grid([[None, None, None]]), *parts_recipe("group_size=3"))
    assert list(nobody.examples) == []


def test_a_group_is_silent_only_if_all_is_equal_that_a_users_advantage_reads():
    """Groups: equal; other successes; other rewards; other steps. What it does not read makes no difference."""
    same = rollout(0, 0, 1.0, success=True, steps=((1, 1.0),))
    others = [same.outcome, replace(same.outcome, success=False), replace(same.outcome, reward=0.75)]
    others.append(replace(same.outcome, steps=((1, 0.5),)))
    pairs = [(same, replace(same, sample=1, outcome=other)) for other in others]
    rollouts = [replace(one, group=group) for group, pair in enumerate(pairs) for one in pair]

    def silent(function) -> list[bool]:
        choice = make_choice("advantage", function, "mine:f", (), {})
        return find_equal_groups(rollouts, choice, torch.ones(4, 2, dtype=torch.bool), {}).tolist()

    assert silent(lambda success_PG, rewards_PG: None) == [True, False, False, True]
    assert silent(lambda steps_N, rewards_PG: None) == [True, True, False, False]
    assert silent(lambda steps_N, success_PG: None) == [True, False, True, False]
    assert silent(lambda success_PG: None) == [True, False, True, True]
    assert silent(lambda lengths_N: None) == [True, True, False, True]  # nothing of it is compared here: by the reward


def test_demonstrations_are_all_pushed_up():
    batch = batch_of([rollout(0, 0, 1.0), rollout(1, 0, 1.0, length=4)], "algorithm.name=sft", "group_size=1")
    assert batch.advantages_N == [1.0, 1.0]
    assert [trained(example) for example in batch.examples] == [[1.0] * 3, [1.0] * 4]


def test_dpo_keeps_the_best_and_the_worst_of_groups_that_differ():
    """Groups: four different, all equal, one score, two scores with ties. A pair of equals prefers nothing."""
    rewards: list[list[float | None]] = [[0.2, 1.0, 0.0, 0.5], [1.0] * 4, [None, None, 1.0, None], [None, 0.0, 1.0, 1.0]]
    batch = batch_of(grid(rewards), "algorithm.name=dpo", "algorithm.data=policy", "group_size=4", "minibatches_per_step=2")
    assert [(example.rollout, example.group) for example in batch.examples] == [(1, 0), (2, 0), (13, 3), (14, 3)]
    assert [trained(example)[0] for example in batch.examples] == [1.0, -1.0, -1.0, 1.0]
    assert [value for value in batch.advantages_N if value] == [1.0, -1.0, -1.0, 1.0]
    assert batch.metrics["advantage/dropped_groups"] == 2
    assert sorted(batch.plan) == [[0, 1], [2, 3]]  # pairs stay together in a minibatch
    for example in batch.examples:
        assert example.old_logprobs_T is None
        with torch.no_grad():
            tokens = reference.trained_tokens(other().model, sample_of(example), 1.0)
        assert example.ref_logprobs_T.tolist() == pytest.approx([float(token.logprob) for token in tokens], abs=1e-12)


# -- an advantage of its own for every token -----------------------------------------------------------------------------


def test_reinforce_plus_plus_token_returns_with_later_kl_terms():
    """R_t = r - kl_coef * (own and later k1), whitened over all trained tokens; masks with holes, one completion per prompt."""
    kl_coef = 0.2
    rollouts = [
        rollout(0, 0, 1.0, token_ids=(7, 3, 9, 11), mask=(True, False, True, True)),
        rollout(1, 0, 0.0, token_ids=(5, 6)),
        rollout(2, 0, 0.5, token_ids=(4, 4, 8)),
    ]
    batch = batch_of(rollouts, "algorithm.name=reinforce++", "group_size=1", kl_coef=kl_coef)
    returns = []
    for example, reward in zip(batch.examples, [1.0, 0.0, 0.5], strict=True):
        terms = k1_terms(example)
        returns.append([reward - kl_coef * sum(terms[place:]) for place in range(len(terms))])
    expected = reference.whitened(returns)
    for example, row in zip(batch.examples, expected, strict=True):
        assert trained(example) == pytest.approx(row, rel=1e-5, abs=1e-6)
        assert example.advantages_T[~example.loss_mask_T].abs().sum() == 0
    assert batch.advantages_N == pytest.approx([sum(row) / len(row) for row in expected], rel=1e-5, abs=1e-6)
    flat = torch.tensor([value for example in batch.examples for value in trained(example)])
    assert abs(flat.mean().item()) < 1e-6
    assert flat.std(correction=0).item() == pytest.approx(1.0, abs=1e-5)


def test_reinforce_plus_plus_without_kl_whitens_the_rewards_over_tokens():
    """Rewards 1, 0, 0 over 2, 1, 3 tokens: sqrt 2 and -1/sqrt 2, up to the epsilon. No group is needed."""
    rollouts = [
        rollout(group, 0, reward, length=length) for group, (reward, length) in enumerate(((1.0, 2), (0.0, 1), (0.0, 3)))
    ]
    batch = batch_of(rollouts, "algorithm.name=reinforce++", "kl_coef=0", "group_size=1")
    assert batch.advantages_N == pytest.approx([2**0.5, -(2**-0.5), -(2**-0.5)], rel=1e-5)
    assert all(example.old_logprobs_T is None and example.ref_logprobs_T is None for example in batch.examples)


def test_masked_completions_are_outside_the_whitening():
    """A truncated completion that is masked has no tokens to credit, and the others are whitened as if it were not there."""
    rollouts = [rollout(0, 0, 1.0), rollout(1, 0, -50.0, end="length"), rollout(2, 0, 0.0)]
    options = ["algorithm.name=reinforce++", "group_size=1", "mask_truncated=true"]
    batch = batch_of(rollouts, *options)
    alone = batch_of([rollouts[0], replace(rollouts[2], group=1)], *options)
    assert [batch.advantages_N[0], batch.advantages_N[2]] == alone.advantages_N
    assert batch.advantages_N[1] == 0.0
    assert [example.trained_tokens for example in batch.examples] == [3, 0, 3]


def some_critic() -> Critic:
    critic = Critic(policy(), CriticConfig(), OptimizerConfig(), torch.float32, 10)
    with torch.no_grad():
        critic.model.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    return critic


@pytest.mark.parametrize("kl_in", ["token_reward", "completion_reward"])
def test_ppo_is_gae_on_token_rewards(kl_in):
    """Each token pays its own k1 (or the last one pays for all), the last earns the reward; GAE with the critic's values, whitened.
    What the critic should have expected is the unwhitened advantage plus its value."""
    kl_coef, gamma, lam = 0.2, 0.9, 0.7
    rollouts = grid([[1.0, 0.0], [0.3, 0.9]])
    rollouts[3] = replace(rollouts[3], completion=replace(rollouts[3].completion, end="length"))
    batch = batch_of(
        rollouts, "algorithm.name=ppo", f"algorithm.gamma={gamma}", f"algorithm.gae_lambda={lam}", "group_size=2",
        f"algorithm.kl_in={kl_in}", "mask_truncated=true", kl_coef=kl_coef, critic=some_critic(),
    )  # fmt: skip
    rows, values = [], []
    for example, reward in zip(batch.examples[:3], [1.0, 0.0, 0.3], strict=True):
        terms = k1_terms(example)
        rewards = [-kl_coef * term for term in terms]
        if kl_in == "completion_reward":
            rewards = [0.0] * (len(terms) - 1) + [sum(rewards)]
        rewards[-1] += reward
        values.append(trained(example, example.old_values_T))
        rows.append(reference.gae_advantages(rewards, values[-1], gamma, lam))
    assert max(abs(value) for row in values for value in row) > 0.1
    for example, row, value, white in zip(batch.examples[:3], rows, values, reference.whitened(rows), strict=True):
        assert trained(example) == pytest.approx(white, rel=1e-4, abs=1e-5)
        returns = [advantage + own for advantage, own in zip(row, value, strict=True)]
        assert trained(example, example.returns_T) == pytest.approx(returns, rel=1e-4, abs=1e-5)
    # The masked one has the same fields, so that it can share a minibatch.
    assert batch.examples[3].returns_T.tolist() == [0.0] * len(batch.examples[3].completion_ids)
    assert batch.advantages_N[3] == 0.0


def test_an_untrained_critic_with_lambda_1_is_the_plain_return():
    """V = 0 before the first update: PPO with lambda 1 then credits as REINFORCE++ does."""
    rollouts = grid([[1.0, 0.0], [0.3, 0.9]])
    untrained = Critic(policy(), CriticConfig(), OptimizerConfig(), torch.float32, 10)
    ppo = batch_of(rollouts, "algorithm.name=ppo", "algorithm.gae_lambda=1", "group_size=2", critic=untrained)
    plain = batch_of(rollouts, "algorithm.name=reinforce++", "group_size=2")
    for left, right in zip(ppo.examples, plain.examples, strict=True):
        assert trained(left) == trained(right)


def test_process_rewards_reach_the_tokens_of_their_steps():
    r"""Characters are tokens here. "12+3" with steps after 2 and 4 characters (1, 0); "45" with one step (2); then a stop token.

    Rewards 1, 0, 2: mean 1, std sqrt(2/3). The step that ends with the text takes the stop token with it.
    """
    codec = policy().codec
    stop = policy().tokenizer.eos_token_id
    first, second = (tuple(codec.encode(text)) for text in ("12+3", "45"))
    assert codec.decode([*first, stop]) == "12+3"
    rollouts = [
        rollout(0, 0, 0.5, token_ids=(*first, stop), text="12+3", steps=((2, 1.0), (4, 0.0))),
        rollout(0, 1, 2.0, token_ids=(*second, stop), text="45", steps=((2, 2.0),)),
    ]
    batch = batch_of(rollouts, "algorithm.name=grpo_process", "group_size=2", "algorithm.std_epsilon=0")
    s = 1.5**0.5
    assert trained(batch.examples[0]) == pytest.approx([-s] * 5, rel=1e-6)
    assert trained(batch.examples[1]) == pytest.approx([s] * 3, rel=1e-6)
    # Steps worth 0 and 3 against one worth 0: mean 1, std sqrt 2. Later steps count, earlier ones do not.
    rollouts = [
        replace(rollouts[0], outcome=replace(rollouts[0].outcome, steps=((2, 3.0), (4, 0.0)))),
        replace(rollouts[1], outcome=replace(rollouts[1].outcome, steps=((2, 0.0),))),
    ]
    batch = batch_of(rollouts, "algorithm.name=grpo_process", "group_size=2", "algorithm.std_epsilon=0")
    root = 2**0.5
    assert trained(batch.examples[0]) == pytest.approx([2 / root - 1 / root] * 2 + [-1 / root] * 3, rel=1e-6)
    assert trained(batch.examples[1]) == pytest.approx([-1 / root] * 3, rel=1e-6)
    assert batch.advantages_N[0] == pytest.approx((2 * 1 / root - 3 / root) / 5, rel=1e-5)


def test_process_without_steps_is_the_outcome():
    """A completion that no function split into steps has one: its reward, at its end. Then process is group_normalized."""
    process = batch_of(grid(REWARDS), "algorithm.name=grpo_process", "group_size=4", step=2)
    outcome = batch_of(grid(REWARDS), "algorithm.name=grpo", "group_size=4")
    assert process.advantages_N == pytest.approx(outcome.advantages_N, rel=1e-6, abs=1e-7)


# -- log-probs -----------------------------------------------------------------------------------------------------------


def test_log_probs_are_computed_only_where_something_reads_them():
    """(old, reference) per algorithm: on-policy GRPO needs no old ones, several minibatches do; the plain gradient never does."""
    rollouts = grid([[1.0, 0.0], [0.0, 1.0]])

    def present(*overrides: str) -> tuple[bool, bool]:
        examples = batch_of(rollouts, "group_size=2", *overrides).examples
        (found,) = {(example.old_logprobs_T is not None, example.ref_logprobs_T is not None) for example in examples}
        return found

    assert present("kl_coef=0") == (False, False)
    assert present("kl_coef=0.1") == (False, True)
    assert present("kl_coef=0", "minibatches_per_step=2") == (True, False)
    assert present("kl_coef=0", "passes_per_step=2") == (True, False)
    assert present("algorithm.name=online_rft", "passes_per_step=2") == (False, False)
    # The engine's own log-probs came with the completions: a ratio to those needs no forward.
    assert present("algorithm.name=dppo", "passes_per_step=2", "minibatches_per_step=2") == (False, False)
    assert present("algorithm.name=sapo", "passes_per_step=2") == (True, False)
    assert present("algorithm.name=rloo") == (True, True)
    assert present("algorithm.name=reinforce++") == (True, True)


def test_log_probs_are_those_of_the_models():
    """Old ones from the policy, reference ones from the reference, each token its own, over minibatches and masks."""
    rollouts = grid([[1.0, 0.0], [0.0, 1.0]])
    batch = batch_of(rollouts, "group_size=2", "kl_coef=0.1", "minibatches_per_step=2", "passes_per_step=2")
    for example in batch.examples:
        with torch.no_grad():
            now, ref = (reference.trained_tokens(model.model, sample_of(example), 1.0) for model in (policy(), other()))
        assert trained(example, example.old_logprobs_T) == pytest.approx([float(token.logprob) for token in now], abs=1e-12)
        assert trained(example, example.ref_logprobs_T) == pytest.approx([float(token.logprob) for token in ref], abs=1e-12)


# -- what is left out stays out of everything ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choices", "std"),
    [
        (["algorithm.advantage=batch_std"], 0.125**0.5),  # of 1, 0, 0.5 and 0.5
        (["algorithm.advantage=batch_std", "zero_variance=drop"], 0.5),  # of 1 and 0
        (["algorithm.advantage=batch_whitened"], 0.125**0.5),  # of 0.5, -0.5, 0 and 0
        (["algorithm.advantage=batch_whitened", "zero_variance=drop"], 0.5),
    ],
)
def test_groups_that_are_left_out_are_in_no_deviation_over_the_batch(choices, std):
    """A lone score of 100 in a group that is dropped must not shrink the advantages of the others."""
    batch = batch_of(grid([[1.0, 0.0], [100.0, None], [0.5, 0.5]]), "group_size=2", "kl_coef=0", *choices)
    assert batch.advantages_N == pytest.approx([0.5 / std, -0.5 / std, 0.0, 0.0, 0.0, 0.0], rel=1e-4)


def test_a_pair_of_which_one_was_cut_and_masked_is_no_pair():
    rollouts = [rollout(0, 0, 1.0), rollout(0, 1, 0.0, end="length"), rollout(1, 0, 0.0), rollout(1, 1, 1.0)]
    chosen = ("group_size=2", "algorithm.name=dpo", "algorithm.data=policy")
    assert [example.rollout for example in batch_of(rollouts, *chosen).examples] == [0, 1, 2, 3]
    assert [example.rollout for example in batch_of(rollouts, *chosen, "mask_truncated=true").examples] == [2, 3]


def test_with_process_supervision_a_group_is_silent_only_if_its_steps_are_equal():
    """Equal totals made of different steps teach; equal steps do not."""
    text = policy().codec.decode((7, 8, 9))
    end = len(text)
    made_of = [((1, 1.0), (end, 0.0)), ((1, 0.0), (end, 1.0)), ((1, 0.5), (end, 0.5)), ((1, 0.5), (end, 0.5))]
    rollouts = [rollout(place // 2, place % 2, 0.5, text=text, steps=steps) for place, steps in enumerate(made_of)]
    batch = batch_of(rollouts, "group_size=2", "algorithm.name=grpo_process", "zero_variance=drop")
    assert [example.rollout for example in batch.examples] == [0, 1]
    assert batch.metrics["advantage/zero_variance_groups"] == 1
    assert batch.metrics["advantage/useful_groups"] == 0.5
    # Steps of +1 and -1 after normalising: the first token is credited with both, the rest with the second alone.
    assert trained(batch.examples[0]) == pytest.approx([0.0, -1.0, -1.0], abs=1e-4)
    assert trained(batch.examples[1]) == pytest.approx([0.0, 1.0, 1.0], abs=1e-4)


@pytest.mark.parametrize("choice", ["algorithm.kl_corrected=true", "algorithm.mismatch_weight=token_truncate"])
def test_old_log_probs_are_kept_wherever_something_reads_them(choice):
    """Region "none" has no ratio of its own, but a corrected KL or a mismatch weight on a second minibatch does."""
    chosen = ("algorithm.name=online_rft", "kl_coef=0.1", "group_size=2", "minibatches_per_step=2")
    plain = batch_of(grid([[1.0, 0.0], [1.0, 1.0]]), *chosen)
    asked = batch_of(grid([[1.0, 0.0], [1.0, 1.0]]), *chosen, choice)
    assert all(example.old_logprobs_T is None for example in plain.examples)
    assert all(example.old_logprobs_T is not None for example in asked.examples)


def test_what_nobody_judged_is_neither_right_nor_wrong():
    """Scored by a shaping part, but without a verdict: out of RFT altogether, signed or not."""
    rollouts = [rollout(0, 0, 1.0), rollout(0, 1, 0.0), rollout(0, 2, 0.7)]
    rollouts[2] = replace(rollouts[2], outcome=replace(rollouts[2].outcome, success=None))
    for name in ("binary", "binary_signed"):
        batch = batch_of(rollouts, "group_size=3", "algorithm.name=online_rft", f"algorithm.advantage={name}")
        assert [example.rollout for example in batch.examples] == [0, 1]
        assert batch.advantages_N == [1.0, -1.0 if name == "binary_signed" else 0.0, 0.0]


def test_process_supervision_without_a_single_step_is_refused():
    with pytest.raises(RewardError, match=r"'process'.*no reward function returned any.*\[\(position, reward\), \.\.\.\]"):
        batch_of(grid([[1.0, 0.0]]), "group_size=2", "algorithm.name=grpo_process")


def test_a_masked_completion_is_not_chosen_for_a_pair():
    """The best was cut: the second best takes its place, and the group is not lost."""
    rollouts = [rollout(0, 0, 1.0, end="length"), rollout(0, 1, 0.6), rollout(0, 2, 0.0)]
    batch = batch_of(rollouts, "group_size=3", "algorithm.name=dpo", "algorithm.data=policy", "mask_truncated=true")
    assert [(example.rollout, example.advantages_T[0].item()) for example in batch.examples] == [(1, 1.0), (2, -1.0)]


def test_the_share_of_credit_from_nearly_decided_groups_by_hand():
    """Groups of 8 with 1, 4 and 7 successes. Σ|A| of one with s successes is 2 √(s (8 − s)), without the division s (8 − s) / 4."""
    rewards = [[1.0] * successes + [0.0] * (8 - successes) for successes in (1, 4, 7)]
    expected = {"group_normalized": 4 * 7**0.5 / (4 * 7**0.5 + 8), "group_centered": 3.5 / (3.5 + 4)}
    for advantage, share in expected.items():
        batch = batch_of(grid(rewards), "group_size=8", f"algorithm.advantage={advantage}")
        assert batch.metrics["advantage/lopsided_share"] == pytest.approx(share, rel=1e-4)
    assert "advantage/lopsided_share" not in batch_of(grid([[1.0] * 8]), "group_size=8").metrics  # no credit, no share


def test_groups_without_a_verdict_are_not_counted_as_wrong():
    """Groups scored only by a shaping part are neither all right nor all wrong, and do not count as lopsided."""
    rollouts = grid([[0.5, 0.5], [0.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    for place in (0, 1, 5, 6, 7):
        rollouts[place] = replace(rollouts[place], outcome=replace(rollouts[place].outcome, success=None))
    metrics = batch_of(rollouts, "group_size=2").metrics
    assert metrics["advantage/all_correct_groups"] == 1
    assert metrics["advantage/all_wrong_groups"] == 1
    assert metrics["advantage/lopsided_share"] == 0.0
