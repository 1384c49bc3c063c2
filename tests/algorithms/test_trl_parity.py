"""The same tensors through TRL 1.16's own `GRPOTrainer`, live: losses, gradients and advantages agree.

`Trl.in_our_words` is the dictionary between the two. TRL's own head computes log-probs in float32, which limits how closely
losses (1e-6) and gradients (1e-5 of the largest entry) can agree. Given float64 log-probs, TRL's loss and ours are the same
function: 1e-12. The last section pins where the two differ by design, each by an exact statement.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from cohort.algorithms.advantages import batch_std, group_centered, group_normalized, parts_normalized
from conftest import ragged_examples, relative_difference
from trl_bench import (
    PROMPTS,
    Bench,
    Trl,
    compare,
    grpo_bench,
    holed_examples,
    our_loss_and_gradients,
    trl_inputs,
    trl_loss_and_gradients,
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return grpo_bench(tmp_path_factory.mktemp("grpo"))


CASES = [
    # (TRL's words, how far the old log-probs are from the current ones)
    (Trl("grpo", 0.0, corrected=False), 0.0),
    (Trl("grpo", 0.04, corrected=False, epsilon_high=0.28), 0.3),
    (Trl("grpo", 0.04, corrected=True), 0.0),
    (Trl("grpo", 0.04, corrected=True, epsilon_high=0.28), 0.3),
    (Trl("grpo", 0.04, corrected=False, delta=1.5), 0.5),
    (Trl("grpo", 0.04, corrected=False, epsilon_low=0.1, epsilon_high=0.1, level="sequence"), 0.3),
    (Trl("grpo", 0.0, corrected=False, epsilon_low=3e-4, epsilon_high=4e-4, level="sequence"), 1e-3),
    (Trl("grpo", 0.0, corrected=False, epsilon_low=3e-4, epsilon_high=4e-4, level="sequence"), 0.0),
    (Trl("dr_grpo", 0.0, corrected=False), 0.3),
    (Trl("dr_grpo", 0.04, corrected=False), 0.0),
    (Trl("bnpo", 0.04, corrected=False, epsilon_high=0.28), 0.3),
    (Trl("bnpo", 0.0, corrected=False, entropy_coef=0.1), 0.0),
    (Trl("dapo", 0.0, corrected=False, epsilon_high=0.28), 0.3),
    (Trl("dapo", 0.04, corrected=True, delta=2.0), 0.5),
    (Trl("cispo", 0.0, corrected=False, epsilon_high=1.2), 0.3),
    (Trl("cispo", 0.04, corrected=True, epsilon_high=5.0), 1.0),
    (Trl("sapo", 0.0, corrected=False), 0.0),
    (Trl("sapo", 0.0, corrected=False), 0.5),
    (Trl("sapo", 0.04, corrected=True, tau_up=2.0, tau_down=0.3), 0.3),
    (Trl("luspo", 0.04, corrected=False), 0.3),
]


@pytest.mark.parametrize(("trl", "off_policy"), CASES)
def test_loss_and_gradients_agree_with_trl(bench, trl, off_policy):
    of_losses, of_gradients = compare(bench, trl, off_policy, float64=False)
    assert of_losses < 1e-6
    assert of_gradients < 1e-5
    assert max(compare(bench, trl, off_policy)) < 1e-12


@pytest.mark.parametrize(
    ("trl", "off_policy", "wrong"),
    [
        (Trl("grpo", 0.04, corrected=False), 0.3, {"aggregation": "token_mean"}),
        (Trl("grpo", 0.04, corrected=False), 0.0, {"kl_corrected": True}),
        (Trl("grpo", 0.04, corrected=True), 0.0, {"kl_corrected": False}),
        (Trl("grpo", 0.04, corrected=True), 0.3, {"kl_estimator": "k1"}),
        (Trl("grpo", 0.0, corrected=False, delta=1.5), 0.5, {"region": "clip"}),
        (Trl("grpo", 0.0, corrected=False, level="sequence"), 0.3, {"region": "clip"}),
        (Trl("grpo", 0.0, corrected=False, level="sequence"), 0.3, {"region": "sequence_product"}),
        (Trl("grpo", 0.0, corrected=False, epsilon_low=3e-4, epsilon_high=4e-4, level="sequence"), 1e-3, {"clip_low": 4e-4}),
        (Trl("dr_grpo", 0.0, corrected=False), 0.3, {"max_completion_tokens": 7}),
        (Trl("bnpo", 0.04, corrected=False), 0.3, {"aggregation": "prompt_mean"}),
        (Trl("bnpo", 0.0, corrected=False, entropy_coef=0.1), 0.0, {"entropy_coef": 0.11}),
        (Trl("dapo", 0.0, corrected=False, epsilon_high=0.28), 0.3, {"clip_high": 0.2}),
        (Trl("cispo", 0.0, corrected=False, epsilon_high=1.2), 0.3, {"ratio_cap": 2.2}),
        (Trl("luspo", 0.0, corrected=False), 0.3, {"aggregation": "constant"}),
        (Trl("sapo", 0.0, corrected=False), 0.3, {"soft_up": 1.05}),
        (Trl("sapo", 0.0, corrected=False), 0.3, {"soft_down": 1.0}),
        (Trl("sapo", 0.0, corrected=False), 0.3, {"aggregation": "token_mean"}),
    ],
)
def test_the_comparison_can_fail(bench, trl, off_policy, wrong):
    """One wrong word on our side, and the two differ by far more than any tolerance above: the batches reach that choice."""
    assert compare(bench, trl, off_policy, **wrong)[1] > 1e-4


@pytest.mark.prove
@pytest.mark.parametrize("loss_type", ["grpo", "gspo", "dr_grpo", "bnpo", "dapo", "cispo", "luspo", "sapo"])
def test_loss_and_gradients_agree_with_trl_on_the_whole_grid(bench, loss_type):
    """Every loss type x beta x correction x clip x second clip x drift x three batches, with TRL's head and in float64."""
    worst = {False: [0.0, 0.0], True: [0.0, 0.0]}
    for trl, off_policy, seed in product(_grid(loss_type), (0.0, 0.05, 0.3, 1.0), range(3)):
        for float64, largest in worst.items():
            found = compare(bench, trl, off_policy, seed, float64=float64)
            worst[float64] = [max(pair) for pair in zip(largest, found, strict=True)]
    print(f"{loss_type}: (loss, gradient) differ by {worst[False]} through TRL's head, {worst[True]} in float64")
    assert worst[False][0] < 1e-6
    assert worst[False][1] < 1e-5
    assert max(worst[True]) < 1e-12


def _grid(loss_type: str) -> list[Trl]:
    kl = [(0.0, False), (0.04, False), (0.04, True)]
    if loss_type == "cispo":
        return [Trl("cispo", beta, corrected, epsilon_high=cap) for (beta, corrected), cap in product(kl, (1.0, 1.28, 5.0))]
    if loss_type == "sapo":
        taus = [(1.0, 1.05), (2.0, 0.3), (0.5, 0.5)]
        return [Trl("sapo", *kl_, tau_up=up, tau_down=down) for kl_, (up, down) in product(kl, taus)]
    clips = [(0.2, 0.2), (0.2, 0.28), (0.1, 0.3)]
    if loss_type == "gspo":  # without the corrected KL, whose ratio is another one (see below)
        return [
            Trl("grpo", beta, False, *clip, level="sequence") for (beta, _), clip in product(kl[:2], [*clips, (3e-4, 4e-4)])
        ]
    return [Trl(loss_type, *kl_, *clip, delta=delta) for kl_, clip, delta in product(kl, clips, (None, 1.3, 3.0))]


# -- advantages --------------------------------------------------------------------------------------------------------

REWARDS = [
    [1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0],
    [0.0, 0.95, 0.95, 0.95, 0.25, 0.5, 0.75, 1.0],
    [1.0, None, 0.0, 0.5, None, 0.0, 0.25, 1.0],
    [0.35, 0.35, 0.35, 0.35, -2.0, 3.0, 0.1, 0.2],
    [None, None, None, 0.7, -2.0, 3.0, None, 0.2],
]


@pytest.mark.parametrize("rewards", REWARDS)
def test_advantages_agree_with_trl(bench, rewards):
    """Real generations, scripted rewards, TRL's own normalisation (ddof 1, epsilon 1e-4), abstentions included."""
    rewards_PG = torch.tensor([0.0 if reward is None else reward for reward in rewards], dtype=torch.float64).view(2, 4)
    scored_PG = torch.tensor([reward is not None for reward in rewards]).view(2, 4)
    for scale, ours in (
        ("group", group_normalized(rewards_PG, scored_PG, std_ddof=1, std_epsilon=1e-4)),
        ("batch", batch_std(rewards_PG, scored_PG, std_ddof=1, std_epsilon=1e-4)),
        ("none", group_centered(rewards_PG, scored_PG)),
    ):
        assert (ours.flatten() - _trl_advantages(bench, rewards, scale)).abs().max().item() < 1e-6


def test_the_comparison_of_advantages_can_fail(bench):
    """Our defaults (ddof 0, epsilon 1e-6) are not TRL's."""
    rewards_PG = torch.tensor(REWARDS[0], dtype=torch.float64).view(2, 4)
    scored_PG = torch.ones(2, 4, dtype=torch.bool)
    for scale, ours in (
        ("group", group_normalized(rewards_PG, scored_PG)),
        ("batch", batch_std(rewards_PG, scored_PG)),
        ("none", group_normalized(rewards_PG, scored_PG)),
    ):
        assert (ours.flatten() - _trl_advantages(bench, REWARDS[0], scale)).abs().max().item() > 1e-4


def _trl_advantages(bench: Bench, rewards: list[float | None], scale: str) -> torch.Tensor:
    bench.use_float64(False)
    Trl("grpo", 0.0, corrected=False).configure(bench.trainer)
    bench.scripted_rewards, bench.trainer.scale_rewards = rewards, scale
    return bench.trainer._generate_and_score_completions([dict(row) for row in PROMPTS])["advantages"]


PARTS: list[tuple[list[float | None], list[float | None]]] = [
    ([1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0], [0.2, 0.9, 0.1, 0.5, 7.0, 3.0, -1.0, 4.0]),
    ([1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0], [0.5, 0.25, 0.5, 0.0, 0.3, 0.3, 0.3, 0.3]),
    ([1.0, None, 0.0, 0.5, 1.0, 0.0, None, 1.0], [0.2, 0.9, None, 0.5, 0.4, 0.3, None, 4.0]),
    ([1.0, None, None, None, 0.0, 1.0, 0.5, 0.5], [0.2, 0.9, 0.1, 0.5, 0.1, 0.2, 0.3, 0.0]),
]
"""Two reward functions: of other scales; equal throughout a group; abstaining apart and together; spoken once in a group."""
WEIGHTS = [(1.0, 1.0), (1.0, 0.25), (1.0, 0.0)]


def difference_by_parts(
    bench: Bench,
    scripts: tuple[list[float | None], list[float | None]],
    weights: tuple[float, float],
    *,
    ddof: int = 1,
    epsilon: float = 1e-4,
    here: tuple[float, float] | None = None,
) -> float:
    """Ours from TRL's: `normalize_then_sum` on real generations, with two scripted reward functions."""
    trainer = bench.trainer
    bench.use_float64(False)
    Trl("grpo", 0.0, corrected=False).configure(trainer)

    def second(completions: list[str], **columns: object) -> list[float | None]:
        return scripts[1]

    with pytest.MonkeyPatch.context() as patch:
        bench.scripted_rewards = scripts[0]
        patch.setattr(trainer, "multi_objective_aggregation", "normalize_then_sum")
        patch.setattr(trainer, "reward_funcs", [*trainer.reward_funcs, second])
        patch.setattr(trainer, "reward_func_names", [*trainer.reward_func_names, "second"])
        patch.setattr(trainer, "reward_processing_classes", [*trainer.reward_processing_classes, None])
        patch.setattr(trainer, "reward_weights", torch.tensor(weights))
        theirs = trainer._generate_and_score_completions([dict(row) for row in PROMPTS])["advantages"]
    parts_PG = {
        name: torch.tensor([float("nan") if value is None else value for value in script], dtype=torch.float64).view(2, 4)
        for name, script in zip(("first", "second"), scripts, strict=True)
    }
    scored_PG = ~(parts_PG["first"].isnan() & parts_PG["second"].isnan())
    named = dict(zip(parts_PG, here or weights, strict=True))
    ours = parts_normalized(parts_PG, named, scored_PG, std_ddof=ddof, std_epsilon=epsilon)
    return float((ours.flatten() - theirs).abs().max())


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("scripts", PARTS)
def test_advantages_by_parts_agree_with_trl(bench, scripts, weights):
    """TRL's `normalize_then_sum` is parts_normalized with ddof 1 and epsilon 1e-4; the batch mean it subtracts is 0."""
    assert difference_by_parts(bench, scripts, weights) < 1e-6


def test_the_comparison_of_advantages_by_parts_can_fail(bench):
    assert difference_by_parts(bench, PARTS[0], (1.0, 1.0), ddof=0) > 1e-3
    assert difference_by_parts(bench, PARTS[0], (1.0, 1.0), epsilon=1e-2) > 1e-3
    assert difference_by_parts(bench, PARTS[0], (1.0, 0.5), here=(1.0, 0.45)) > 1e-3


# -- where the two differ by design ------------------------------------------------------------------------------------


def test_a_second_clip_inside_the_first_is_another_function(bench):
    """delta >= 1 + epsilon_high is dual clip, also for A > 0. Below, TRL's clamp cuts A > 0 too, and A < 0 escapes it."""
    assert max(compare(bench, Trl("grpo", 0.0, corrected=False, delta=1.2), 0.5)) < 1e-12
    inside = Trl("grpo", 0.0, corrected=False, epsilon_high=0.28, delta=1.1)
    with pytest.raises(ValueError, match="inside the first clip"):
        compare(bench, inside, 0.5)
    # For A > 0 it is our clip with clip_high = delta - 1.
    risen = [
        replace(example, advantages_T=example.advantages_T.abs()) for example in holed_examples(bench.policy, 1, off_policy=0.5)
    ]
    assert max(compare(bench, inside, 0.5, examples=risen, region="clip", clip_high=1.1 - 1.0)) < 1e-12
    # For A < 0 it is our clip: a ratio above delta still counts up to 1 + epsilon_high, and beyond that it is stopped there.
    fallen = [replace(example, advantages_T=-example.advantages_T) for example in risen]
    assert max(compare(bench, inside, 0.5, examples=fallen, dual_clip=1.28)) < 1e-12


def test_the_corrected_kl_of_gspo_has_the_tokens_ratio_here_and_the_completions_in_trl(bench):
    trl = Trl("grpo", 0.04, corrected=True, level="sequence")
    assert compare(bench, trl, 0.3)[1] > 1e-4
    # With one trained token per completion the two ratios are one.
    examples = ragged_examples(bench.policy, seed=1, shapes=((3, 1),) * 4 + ((4, 1),) * 4, off_policy=0.3, reference=True)
    assert max(compare(bench, trl, 0.3, examples=examples)) < 1e-12


def test_the_entropy_bonus_is_weighted_like_the_loss_here_and_by_tokens_in_trl(bench):
    trl = Trl("grpo", 0.0, corrected=False, entropy_coef=0.1)
    assert compare(bench, trl, 0.0)[1] > 1e-4
    same_length = ragged_examples(bench.policy, seed=1, shapes=((3, 4),) * 8)
    assert max(compare(bench, trl, 0.0, examples=same_length)) < 1e-12


def test_a_ratio_stops_at_e_to_the_20(bench):
    """TRL's goes on, to infinity in the end; a second clip below makes the two equal again."""
    examples = holed_examples(bench.policy, 1, off_policy=0.3)
    examples[0].advantages_T[:] = -1.0
    examples[0].old_logprobs_T[1] -= 25.0
    beyond = Trl("grpo", 0.0, corrected=False)
    assert compare(bench, beyond, 0.3, examples=examples)[1] > 1e-4
    assert max(compare(bench, replace(beyond, delta=3.0), 0.3, examples=examples)) < 1e-12


def test_the_temperatures_of_sapo_are_float32_in_trl(bench):
    """A choice between two plain numbers is a float32 in torch: 1.05 is 1.0499999523 there, and 1.05 here."""
    assert 1e-9 < compare(bench, Trl("sapo", 0.0, corrected=False), 0.3, soft_down=1.05)[1] < 1e-6


def test_a_lone_score_is_in_the_deviation_of_trl_alone(bench):
    """A group in which one completion was scored has nothing to compare: TRL counts its sum of 0 in the std over the batch."""
    lone: tuple[list[float | None], list[float | None]] = (
        [1.0, None, None, None, 0.0, 1.0, 0.5, 0.25],
        [0.2, None, None, None, 0.1, 0.2, 0.3, 0.0],
    )
    assert difference_by_parts(bench, lone, (1.0, 1.0)) > 1e-2


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "bnpo", "dapo", "luspo"])
def test_a_fully_masked_completion_counts_in_trl_alone(bench, loss_type):
    """Where TRL's denominator counts completions, a masked one is in it; ours has it on neither side."""
    examples = holed_examples(bench.policy, 1, off_policy=0.3)
    examples[6].loss_mask_T[:] = False
    scale = 1.0 if loss_type in ("bnpo", "dapo") else 7 / 8
    _assert_scaled(bench, Trl(loss_type, 0.0, corrected=False), examples, examples, scale)


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "bnpo", "dapo", "luspo"])
def test_an_unscored_completion_counts_in_trl_alone(bench, loss_type):
    """TRL keeps it with advantage 0, in every denominator (and under the KL, if there is one); ours leaves it out."""
    examples = holed_examples(bench.policy, 1, off_policy=0.3)
    examples[6].advantages_T[:] = 0.0
    scored = [example for place, example in enumerate(examples) if place != 6]
    tokens = [sum(example.trained_tokens for example in some) for some in (scored, examples)]
    scale = tokens[0] / tokens[1] if loss_type in ("bnpo", "dapo") else 7 / 8
    _assert_scaled(bench, Trl(loss_type, 0.0, corrected=False), examples, scored, scale)


def _assert_scaled(bench: Bench, trl: Trl, theirs: list, ours: list, scale: float) -> None:
    """TRL's loss and gradient on `theirs` are `scale` times ours on `ours`."""
    bench.use_float64(True)
    trl.configure(bench.trainer)
    trl_loss, trl_gradients = trl_loss_and_gradients(bench, trl_inputs(theirs, bench.policy.tokenizer.pad_token_id))
    loss, gradients = our_loss_and_gradients(bench.policy, ours, **trl.in_our_words())
    assert abs(scale * loss - trl_loss) < 1e-12
    assert relative_difference(scale * gradients, trl_gradients) < 1e-12
