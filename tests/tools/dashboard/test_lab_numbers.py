"""The numbers of the lab: by hand, by another formula, or by counting all outcomes."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from cohort.algorithms.named import NAMED, PRESETS
from cohort.tools.dashboard.lab import advantages, updates
from cohort.tools.dashboard.lab.stations import answer_station, load_stations
from cohort.tools.dashboard.run_index import RunIndex
from cohort.tools.dashboard.view import View


def ask(station: str, **words: str) -> dict:
    return answer_station(RunIndex([]), View(f"/lab/{station}", {"station": station}, list(words.items())))


# -- a group -------------------------------------------------------------------------------------------------------------


def test_six_cards_four_of_them_right():
    """The picture of docs/lab.md: mean 0.667, deviation 0.471, 4 of 6."""
    found = advantages.compare_group([1, 0, 1, 0, 1, 1])
    assert (found["mean"], found["right"]) == (pytest.approx(2 / 3, abs=1e-15), 4)
    assert found["std"] == pytest.approx(math.sqrt(2) / 3, abs=1e-15)
    assert found["advantages"][:2] == pytest.approx([1 / math.sqrt(2), -math.sqrt(2)], abs=1e-5)
    assert found["signal"] == pytest.approx(4 / 3 / math.sqrt(2), abs=1e-5)


@pytest.mark.parametrize("size", [2, 4, 6, 8, 64])
def test_a_single_success_gets_the_square_root_of_the_others(size):
    rewards = [1.0] + [0.0] * (size - 1)
    found = advantages.compare_group(rewards, std_epsilon=0.0)
    assert found["advantages"][0] == pytest.approx(math.sqrt(size - 1), rel=1e-12)
    assert found["largest"] == found["advantages"][0]
    assert found["shares"][0] == pytest.approx(0.5)
    sample = advantages.compare_group(rewards, std_ddof=1, std_epsilon=0.0)
    assert sample["advantages"][0] == pytest.approx((size - 1) / math.sqrt(size), rel=1e-12)


def test_equal_rewards_give_no_signal():
    found = advantages.compare_group([0.3, 0.3, 0.3, 0.3])
    assert found["advantages"] == [0.0] * 4
    assert (found["signal"], found["std"], found["mean"]) == (0.0, 0.0, pytest.approx(0.3))


def test_a_critic_and_a_group_can_disagree():
    found = advantages.compare_baselines([1, 0.6, 0.9, 0.5], value=0.5, other_right=2)
    rows = {row["preset"]: row["advantages"] for row in found["rows"]}
    assert set(rows) <= set(PRESETS)
    assert found["critic"] == pytest.approx([0.5, 0.1, 0.4, 0.0])
    assert rows["grpo"][1] < 0 < found["critic"][1]
    assert rows["dr_grpo"] == pytest.approx([0.25, -0.15, 0.15, -0.25])
    assert rows["rloo"] == pytest.approx([value * 4 / 3 for value in rows["dr_grpo"]])
    batch_std = torch.tensor([1, 0.6, 0.9, 0.5, 1, 1, 0, 0], dtype=torch.float64).std(correction=0)
    assert rows["lite_ppo"] == pytest.approx([value / (float(batch_std) + 1e-6) for value in rows["dr_grpo"]])
    assert rows["maxrl"] == [0.0] * 4  # all of them count as right
    assert (found["right"], found["success_from"]) == (4, 0.5)  # and the page says so
    assert rows["ppo"] == pytest.approx([(r - 0.625) / float(batch_std) for r in (1, 0.6, 0.9, 0.5)], rel=1e-5)


def test_parts_with_equal_sums_differ_only_for_gdpo():
    found = advantages.compare_baselines([1, 1, 0, 0], 0.5, 2, [0, 0, 1, 0], 1.0)
    rows = {row["preset"]: row["advantages"] for row in found["rows"]}
    assert found["rewards"] == [1, 1, 1, 0]
    assert rows["grpo"][0] == rows["grpo"][2]
    assert rows["gdpo"][2] > rows["gdpo"][0]


# -- one update ----------------------------------------------------------------------------------------------------------


def test_the_loss_is_zero_and_the_probabilities_move():
    """d loss / d logit v = -sum over the group of A (1[v drawn] - p_v) / G, and the advantages sum to 0."""
    found = updates.push_words([0.4, 0.3, 0.2, 0.1], [0, 0, 1, 2], right=1, learning_rate=1.0)
    assert found["loss"] == pytest.approx(0.0, abs=1e-15)
    a, b = 1 / math.sqrt(3), math.sqrt(3)
    assert found["gradient"] == pytest.approx([2 * a / 4, -b / 4, a / 4, 0.0], abs=1e-5)
    moved = [p * math.exp(-g) for p, g in zip(found["before"], found["gradient"], strict=True)]
    assert found["after"] == pytest.approx([value / sum(moved) for value in moved])
    assert found["after"][1] > 0.3
    assert found["after"][3] < 0.1, "the word that nobody drew pays too"
    assert found["undrawn"] == [3]


def test_equal_rewards_change_no_probability():
    found = updates.push_words([0.4, 0.3, 0.2, 0.1], [1, 1, 1, 1], right=1, learning_rate=4.0)
    assert found["after"] == found["before"]
    assert found["norm"] == 0.0


# -- the clip ------------------------------------------------------------------------------------------------------------


def test_every_region_of_the_registry_is_traced():
    assert list(updates.trace_regions([1.0], 1.0, {})) == list(NAMED["region"])


@pytest.mark.parametrize(
    ("ratio", "advantage", "surrogate", "slope"),
    [(1.1, 1, 1.1, 1.1), (1.5, 1, 1.2, 0), (0.5, 1, 0.5, 0.5), (0.5, -1, -0.8, 0), (1.5, -1, -1.5, -1.5)],
)
def test_the_clip_by_hand(ratio, advantage, surrogate, slope):
    found = updates.trace_regions([ratio], advantage, {"clip_low": 0.2, "clip_high": 0.2})["clip"]
    assert found["surrogate"] == pytest.approx([surrogate])
    assert found["slope"] == pytest.approx([slope])
    assert found["silenced"] == [slope == 0]


def test_the_other_regions_by_hand():
    """At ratio 2.5 from probability 0.2, in a completion of 4 tokens whose others have not moved."""
    up = updates.trace_regions([2.5], 1.0, {}, 0.2, 4)
    down = updates.trace_regions([3.5], -1.0, {}, 0.2, 4)
    assert down["dual_clip"]["slope"] == [0.0]
    assert down["dual_clip"]["surrogate"] == pytest.approx([-3.0])
    assert up["cispo"]["slope"] == pytest.approx([2.5])
    assert up["none"]["surrogate"] == pytest.approx([math.log(0.5)])
    assert up["divergence"]["silenced"] == [True]  # from 0.2 to 0.5 is further than 0.15
    gate = 1 / (1 + math.exp(-1.5))
    assert up["soft"]["slope"] == pytest.approx([4 * gate * (1 - gate) * 2.5])
    assert down["sequence"]["surrogate"] == pytest.approx([-(3.5**0.25)])
    assert down["sequence_product"]["slope"] == pytest.approx([-4 * 3.5])  # one value, at each of the four tokens
    lost = 1 / (1 + 2.5**0.1)
    assert up["dpo"]["slope"] == pytest.approx([0.1 * lost])  # one loss for the pair, which its eight tokens share


# -- difficulty ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.93, 1.0])
@pytest.mark.parametrize("size", [2, 5, 8, 32])
def test_weights_with_a_closed_form(p, size):
    found = advantages.weigh_difficulty(p, size)
    weights = found["weights"]
    assert weights["leave_one_out"] == pytest.approx(1.0)
    assert weights["group_centered"] == pytest.approx((size - 1) / size)
    maxrl = (1 - (1 - p) ** (size - 1)) / p if p else size - 1
    assert weights["relative_to_mean"] == pytest.approx(maxrl)
    assert weights["binary"] == pytest.approx(1.0)
    assert weights["binary_signed"] == pytest.approx(2.0)
    assert found["useful"] == pytest.approx(1 - p**size - (1 - p) ** size, abs=1e-15)
    assert sum(found["outcomes"]) == pytest.approx(1.0)


def test_the_weights_against_every_single_outcome():
    """sum over all 2^G (and 2^2G) outcomes of P(outcome) sum_i A_i d log pi_i / dp / G, for each advantage; G = 3 with p = 0.3 beside 0.5."""
    p, other, size = 0.3, 0.5, 3
    for name, choice in advantages.list_comparable().items():
        total = 0.0
        for outcome in itertools.product((0.0, 1.0), repeat=2 * size):
            mine, theirs = outcome[:size], outcome[size:]
            chance = math.prod(p if s else 1 - p for s in mine) * math.prod(other if s else 1 - other for s in theirs)
            batch = advantages.Groups([mine, theirs])
            credited = advantages.credit_groups(choice, advantages.CONFIG, batch)[0]
            slopes = [1 / p if success else -1 / (1 - p) for success in mine]
            total += chance * sum(a * s for a, s in zip(credited, slopes, strict=True)) / size
        assert advantages.weigh(name, p, size, other) == pytest.approx(total, abs=1e-12), name


def test_which_advantages_use_the_batch():
    found = advantages.weigh_difficulty(0.2, 4)
    assert set(found["batched"]) == {"batch_std", "batch_whitened", "parts_normalized", "global_normalized", "gae"}
    assert set(advantages.weigh_difficulty(0.2, 32)["left_out"]) == set(found["batched"])


def test_the_share_of_wasted_groups_in_the_docs():
    """p = 0.18: G 2 wastes 70 %, G 8 wastes 20 %."""
    assert 1 - advantages.weigh_difficulty(0.18, 2)["useful"] == pytest.approx(0.70, abs=0.005)
    assert 1 - advantages.weigh_difficulty(0.18, 8)["useful"] == pytest.approx(0.20, abs=0.005)


# -- lengths and the KL ----------------------------------------------------------------------------------------------------


def test_the_weight_of_a_token_under_every_aggregation():
    found = updates.weigh_lengths([20, 200, 60, 60], [0, 0, 1, 1], 256)
    rows = {row["name"]: row for row in found["rows"]}
    assert list(rows) == list(NAMED["aggregation"])
    assert rows["sequence_mean"]["token"][0] == pytest.approx(10 * rows["sequence_mean"]["token"][1])
    assert rows["sequence_mean"]["share"] == pytest.approx([0.25] * 4)
    assert rows["token_mean"]["relative"] == pytest.approx([1.0] * 4)
    assert rows["constant"]["token"] == pytest.approx([1 / (4 * 256)] * 4)
    assert rows["sequence_sum"]["relative"] == pytest.approx([1.0] * 4)
    assert rows["prompt_mean"]["token"] == pytest.approx([1 / 440, 1 / 440, 1 / 240, 1 / 240])


def test_the_kl_of_four_words_by_hand():
    """Reference (0.4, 0.3, 0.2, 0.1), the last word's logit up by log 5: policy (4, 3, 2, 5) / 14."""
    found = updates.measure_drift([0.4, 0.3, 0.2, 0.1], 3, math.log(5))
    policy, reference = [4 / 14, 3 / 14, 2 / 14, 5 / 14], [0.4, 0.3, 0.2, 0.1]
    gaps = [math.log(p / q) for p, q in zip(policy, reference, strict=True)]
    exact = sum(p * gap for p, gap in zip(policy, gaps, strict=True))
    assert found["policy"] == pytest.approx(policy)
    assert found["exact"] == pytest.approx(exact)
    assert found["gradient"] == pytest.approx([p * (gap - exact) for p, gap in zip(policy, gaps, strict=True)])
    k1, k2, k3 = (found["estimators"][name] for name in ("k1", "k2", "k3"))
    assert k1["mean"] == pytest.approx(exact)
    assert k3["mean"] == pytest.approx(exact)
    assert k2["mean"] == pytest.approx(sum(p * gap**2 / 2 for p, gap in zip(policy, gaps, strict=True)))
    variance = sum(p * (gap - exact) ** 2 for p, gap in zip(policy, gaps, strict=True))
    assert k1["deviation"] ** 2 == pytest.approx(variance)
    assert k3["deviation"] < k2["deviation"] < k1["deviation"]


def test_the_error_of_each_estimators_gradient():
    found = updates.measure_drift([0.4, 0.3, 0.2, 0.1], 3, 1.5)
    k1, k2, k3 = (found["estimators"][name] for name in ("k1", "k2", "k3"))
    assert k1["loss_error"] == pytest.approx(1.0)
    assert k2["loss_error"] == pytest.approx(0.0, abs=1e-12)
    # That of KL(reference || policy): its gradient to the logits is policy - reference.
    wanted, other = found["gradient"], [p - q for p, q in zip(found["policy"], found["reference"], strict=True)]
    assert k3["gradient"] == pytest.approx(other)
    size = math.hypot(*(a - b for a, b in zip(other, wanted, strict=True))) / math.hypot(*wanted)
    assert k3["loss_error"] == pytest.approx(size)
    assert k1["corrected_error"] == pytest.approx(0.0, abs=1e-12)
    assert k3["corrected_error"] == pytest.approx(0.0, abs=1e-12)
    assert k2["corrected_error"] > 0.1
    assert k1["reward_error"] == pytest.approx(0.0, abs=1e-12)
    assert min(k2["reward_error"], k3["reward_error"]) > 0.1


# -- addresses -------------------------------------------------------------------------------------------------------------


def test_every_station_works_without_settings():
    for station in load_stations():
        if station != "run":
            assert "problem" not in ask(station)


def test_every_preset_works():
    for name, station in load_stations().items():
        for _, words in station["presets"]:
            assert "problem" not in ask(name, **dict(word.split("=") for word in words.split("&")))


@pytest.mark.parametrize(
    ("station", "words", "named"),
    [
        ("group", {"rewards": "1"}, "rewards"),
        ("group", {"rewards": "1,nan"}, "rewards"),
        ("group", {"rewards": "1,<b>"}, "rewards"),
        ("group", {"rewards": ",".join(["1"] * 65)}, "rewards"),
        ("group", {"ddof": "0.5"}, "ddof"),
        ("clip", {"clip_high": "inf"}, "clip_high"),
        ("difficulty", {"group_size": "1000000"}, "group_size"),
        ("difficulty", {"p": "-0.1"}, "p"),
        ("length", {"lengths": "1,1e9"}, "lengths"),
        ("pushed", {"preset": "dpo"}, "preset"),
        ("pushed", {"drawn": "0,4"}, "drawn"),
        ("kl", {"toward": "9"}, "toward"),
    ],
)
def test_an_invalid_setting_is_named(station, words, named):
    assert ask(station, **words)["problem"].startswith(f"{named}:")
