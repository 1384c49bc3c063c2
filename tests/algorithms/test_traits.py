"""What every registered choice says of itself against what it does, by brute force on random numbers: a trait may not lie."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from cohort.algorithms.named import NAMED
from cohort.algorithms.regions import Tokens
from cohort.algorithms.registry import Choice
from cohort.errors import RecipeError
from cohort.model.examples import make_examples
from cohort.recipe.schema import AlgorithmConfig
from cohort.training.credit import Credit
from conftest import rollout

PROMPTS, SIZE, LENGTH = 4, 3, 4
SEEDS = range(12)
WORDS = AlgorithmConfig()


def told(choice: Choice) -> dict[str, Any]:
    return WORDS.read_parameters(choice) | ({"kl_coef": 0.1} if "kl_coef" in choice.parameters else {})


# -- advantages ------------------------------------------------------------------------------------------------------------


def random_rewards(seed: int) -> Tensor:
    return torch.randint(0, 5, (PROMPTS, SIZE), generator=torch.Generator().manual_seed(seed)) / 4


def credit_rewards(choice: Choice, rewards_PG: Tensor) -> list[Tensor]:
    """Advantages of the tokens of every completion. A success has a reward of at least 1/2; each has two parts."""
    rollouts = []
    for group, row in enumerate(rewards_PG.tolist()):
        for sample, reward in enumerate(row):
            made = rollout(group, sample, reward, length=LENGTH, success=reward >= 0.5)
            parts = {"answer": reward, "form": 1.0 - reward * reward}
            rollouts.append(replace(made, outcome=replace(made.outcome, parts=parts)))
    examples = [replace(one, old_values_T=torch.full((LENGTH,), 0.3)) for one in make_examples(rollouts)]
    counted_PG = torch.ones(rewards_PG.shape, dtype=torch.bool)
    algorithm = WORDS.model_copy(update={"advantage": choice.name if not choice.digest else "mine:f"})
    if choice.digest:
        algorithm = algorithm.resolved({"advantage": replace(choice, name="mine:f")})
    credit = Credit(rollouts, counted_PG, algorithm, 0.0, lambda ids: "t", {"answer": 1.0, "form": 0.5})
    return [example.advantages_T for example in credit.advantages(examples)]


ADVANTAGES = [pytest.param(choice, id=name) for name, choice in NAMED["advantage"].items()]


@pytest.mark.parametrize("choice", ADVANTAGES)
def test_an_advantage_compares_its_group_exactly_where_it_says_so(choice):
    """A group of equals beside others teaches nothing exactly where groups are compared."""
    silent = True
    for seed in SEEDS:
        for value in (0.0, 1.0):
            rewards_PG = random_rewards(seed)
            rewards_PG[1] = value
            silent &= not any(row.any() for row in credit_rewards(choice, rewards_PG)[SIZE : 2 * SIZE])
    assert silent == (choice.traits.compares_group or choice.traits.needs_teacher)


@pytest.mark.parametrize("choice", ADVANTAGES)
def test_an_advantage_that_compares_changes_with_the_others_of_its_group(choice):
    changed = False
    for seed in SEEDS:
        rewards_PG = random_rewards(seed)
        before = credit_rewards(choice, rewards_PG)[0]
        rewards_PG[0, 1:] = 1.0 - rewards_PG[0, 1:]
        changed |= not torch.equal(before, credit_rewards(choice, rewards_PG)[0])
    reads_batch = {"token_rewards_N"} & {*choice.reads}  # whitened over all tokens of the batch, groups or not
    assert changed == (choice.traits.compares_group or bool(reads_batch))


@pytest.mark.parametrize("choice", ADVANTAGES)
def test_an_advantage_pushes_nothing_down_exactly_where_it_says_so(choice):
    lowest = min(float(row.min()) for seed in SEEDS for row in credit_rewards(choice, random_rewards(seed)))
    assert (lowest >= 0) == (choice.traits.never_negative or choice.traits.needs_teacher)


@pytest.mark.parametrize("choice", ADVANTAGES)
def test_an_advantage_credits_nothing_exactly_where_a_teacher_must(choice):
    credited = any(bool(row.any()) for seed in SEEDS for row in credit_rewards(choice, random_rewards(seed)))
    assert credited == (not choice.traits.needs_teacher)


@pytest.mark.parametrize("choice", ADVANTAGES)
def test_only_an_advantage_that_says_so_gives_vectors(choice):
    """Credit refuses a tensor of one that credits tokens, and a list of one that does not: to be credited at all is the proof."""
    assert len(credit_rewards(choice, random_rewards(0))) == PROMPTS * SIZE
    lying = replace(choice, traits=replace(choice.traits, per_token=not choice.traits.per_token), digest="d" * 64)
    with pytest.raises(RecipeError, match="An advantage per token returns a list"):
        credit_rewards(lying, random_rewards(0))


# -- regions ---------------------------------------------------------------------------------------------------------------

ROWS, ROW_LENGTH = 6, 3
REGIONS = [pytest.param(choice, id=name) for name, choice in NAMED["region"].items()]


def random_tokens(seed: int, **changed: Tensor) -> Tokens:
    """Three groups of a completion that is pushed up and one that is pushed down; log-probs of all four kinds are unlike."""
    generator = torch.Generator().manual_seed(seed)

    def logprobs() -> Tensor:
        return -1.5 * torch.rand(ROWS * ROW_LENGTH, generator=generator, dtype=torch.float64) - 0.1

    row_M = torch.arange(ROWS).repeat_interleave(ROW_LENGTH)
    signs_B = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(ROWS // 2)
    made = Tokens(
        policy_logprobs_M=logprobs().requires_grad_(),
        old_logprobs_M=logprobs(),
        sampling_logprobs_M=logprobs(),
        advantages_M=signs_B[row_M],
        row_M=row_M,
        num_rows=ROWS,
        ref_logprobs_M=logprobs(),
        group_B=torch.arange(ROWS // 2).repeat_interleave(2),
    )
    return replace(made, **changed)


def lose(choice: Choice, tokens: Tokens) -> tuple[Tensor, Tensor]:
    """(loss of each token, gradient of their sum), for fresh log-probs of the policy."""
    tokens = replace(tokens, policy_logprobs_M=tokens.policy_logprobs_M.detach().clone().requires_grad_())
    loss_M = choice.call(told(choice), tokens=tokens).loss_M
    return loss_M.detach(), torch.autograd.grad(loss_M.sum(), tokens.policy_logprobs_M)[0]


def differs(choice: Choice, change: Any) -> bool:
    """Whether loss or gradient of some random tokens is another after the change."""
    pairs = [(lose(choice, tokens), lose(choice, change(tokens))) for tokens in map(random_tokens, SEEDS)]
    return any(not torch.equal(one, other) for before, after in pairs for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("choice", REGIONS)
def test_a_region_reads_those_log_probs_that_it_says_it_compares_with(choice):
    traits = choice.traits
    reads_old = differs(choice, lambda tokens: replace(tokens, old_logprobs_M=tokens.old_logprobs_M.flip(0)))
    reads_sampling = differs(choice, lambda tokens: replace(tokens, sampling_logprobs_M=tokens.sampling_logprobs_M.flip(0)))
    assert (reads_old or reads_sampling) == traits.needs_ratio
    assert reads_sampling == traits.corrects_mismatch
    assert reads_old == (traits.needs_ratio and not traits.corrects_mismatch)


@pytest.mark.parametrize("choice", REGIONS)
def test_a_region_leaves_a_token_of_advantage_0_alone_exactly_where_it_says_so(choice):
    pushed = False
    for tokens in map(random_tokens, SEEDS):
        silent_M = tokens.row_M < 2
        _, gradient_M = lose(choice, replace(tokens, advantages_M=tokens.advantages_M.masked_fill(silent_M, 0.0)))
        assert gradient_M[~silent_M].any()
        pushed |= bool(gradient_M[silent_M].any())
    assert pushed == (not choice.traits.idle_at_zero)


@pytest.mark.parametrize("choice", REGIONS)
def test_on_policy_the_loss_is_minus_the_advantage_exactly_where_a_region_says_so(choice):
    equal = True
    for tokens in map(random_tokens, SEEDS):
        now_M = tokens.policy_logprobs_M.detach()
        loss_M, _ = lose(choice, replace(tokens, old_logprobs_M=now_M, sampling_logprobs_M=now_M))
        equal &= torch.equal(loss_M, -tokens.advantages_M)
    assert equal == choice.traits.zero_on_policy


@pytest.mark.parametrize("choice", REGIONS)
def test_a_completion_has_one_value_exactly_where_a_region_says_so(choice):
    losses_BT = torch.cat([lose(choice, tokens)[0].view(ROWS, ROW_LENGTH) for tokens in map(random_tokens, SEEDS)])
    one_value = torch.equal(losses_BT, losses_BT[:, :1].expand_as(losses_BT))
    assert one_value == (choice.traits.one_value or choice.traits.preference)


@pytest.mark.parametrize("choice", REGIONS)
def test_a_completion_meets_another_of_its_group_exactly_in_a_preference(choice):
    def move_second_row(tokens: Tokens) -> Tokens:
        moved_M = tokens.policy_logprobs_M - 0.5 * (tokens.row_M == 1)
        return replace(tokens, policy_logprobs_M=moved_M.detach())

    met = False
    for tokens in map(random_tokens, SEEDS):
        first_M = tokens.row_M == 0
        met |= not torch.equal(lose(choice, tokens)[1][first_M], lose(choice, move_second_row(tokens))[1][first_M])
    assert met == choice.traits.preference


# -- estimators of the KL --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", [pytest.param(choice, id=name) for name, choice in NAMED["kl"].items()])
def test_the_expected_gradient_of_an_estimator_is_the_one_it_names(choice):
    """Over all outcomes of a vocabulary of eight, as a term of the loss and as a part of the reward."""
    generator = torch.Generator().manual_seed(5)
    logits_V, ref_V = torch.randn(2, 8, generator=generator, dtype=torch.float64)
    logits_V.requires_grad_()
    policy_V, ref_V = logits_V.log_softmax(0), ref_V.log_softmax(0)
    chance_V = policy_V.detach().exp()
    estimate_V = choice.call({}, policy_logprobs_M=policy_V, ref_logprobs_M=ref_V)

    def slope(value: Tensor) -> Tensor:
        return torch.autograd.grad(value, logits_V, retain_graph=True)[0]

    forward = slope((policy_V.exp() * (policy_V - ref_V)).sum())
    wanted = {"kl": forward, "reverse": slope((ref_V.exp() * (ref_V - policy_V)).sum()), "none": torch.zeros(8).double()}
    found = slope((chance_V * estimate_V).sum())
    assert [name for name, other in wanted.items() if torch.allclose(found, other, atol=1e-12)] == [choice.traits.gradient]
    in_reward = slope((chance_V * estimate_V.detach() * policy_V).sum())
    assert torch.allclose(in_reward, forward, atol=1e-12) == choice.traits.fits_reward
