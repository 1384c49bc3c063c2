"""Choice by difficulty: the weights by hand, the draws against the weights, and what it gains over a plain stream."""

import itertools
import json
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from scipy import stats

from cohort.data.prompt_choice import InformativeChoice, draw_arrival_times, draw_keyed_uniform, list_first_arrivals
from cohort.data.prompts import PromptStream
from cohort.errors import CheckpointError, PromptError
from cohort.types import Prompt

FLOOR = 0.05


def some_prompts(count: int, first: int = 0) -> list[Prompt]:
    return [Prompt(index=first + place, content="", columns={}, token_ids=(1,)) for place in range(count)]


def choice(count: int, seed: int = 0, floor: float = FLOOR) -> InformativeChoice:
    return InformativeChoice(some_prompts(count), seed, floor)


def indices(prompts: list[Prompt]) -> list[int]:
    return [prompt.index for prompt in prompts]


def weight_of(*visits: tuple[int, int], floor: float = FLOOR) -> float:
    chooser = choice(1, floor=floor)
    for visit in visits:
        chooser.record({0: visit})
    return float(chooser.weights()[0])


# --- the estimate ----------------------------------------------------------------------------------------------------


def test_the_estimate_by_hand():
    """Counts begin at (1, 1); a visit halves them and adds its verdicts."""
    chooser = choice(3)
    assert chooser.estimates().tolist() == [0.5] * 3
    chooser.record({0: (0, 8), 2: (3, 4)})
    assert chooser.estimates() == pytest.approx([0.5 / 9, 0.5, 3.5 / 5], rel=1e-15)
    chooser.record({0: (0, 8), 2: (1, 2)})
    assert chooser.estimates() == pytest.approx([0.25 / 12.5, 0.5, 2.75 / 4.5], rel=1e-15)
    rate = 2.75 / 4.5
    assert chooser.weights() == pytest.approx([4 * 0.02 * 0.98, 1.0, 4 * rate * (1 - rate)], rel=1e-15)


@pytest.mark.parametrize("solved", [False, True])
@pytest.mark.parametrize("group_size", [8, 16, 64])
def test_three_visits_to_the_floor_and_not_one_whatever_the_group(group_size, solved):
    visit = (group_size * solved, group_size)
    assert weight_of(visit) == pytest.approx(4 * 0.5 * 8.5 / 81, rel=1e-12)  # 0.21: one visit is no verdict
    assert weight_of(visit, visit) == pytest.approx(4 * 0.02 * 0.98, rel=1e-12)
    assert weight_of(visit, visit, visit) == FLOOR


def test_one_failed_completion_is_far_from_hopeless():
    assert weight_of((0, 1)) == 0.75  # (0.5, 1.5) -> p = 1/4


def test_a_large_group_counts_by_its_rate():
    assert weight_of((16, 64)) == weight_of((2, 8)) != weight_of((1, 4))


def test_recent_visits_count_more_and_one_brings_a_prompt_back():
    assert weight_of((0, 8), (8, 8)) == weight_of((8, 8), (0, 8)), "p and 1 - p weigh the same"
    early, late = choice(1), choice(1)
    early.record({0: (8, 8)})
    early.record({0: (0, 8)})
    late.record({0: (0, 8)})
    late.record({0: (8, 8)})
    assert early.estimates()[0] == pytest.approx(4.25 / 12.5) == 1 - late.estimates()[0]
    for past in [(8, 8)] * 50, [(0, 8)] * 50:
        assert weight_of(*past) == FLOOR
        assert weight_of(*past, (4, 8)) == pytest.approx(0.75, rel=1e-9)


def test_no_length_of_history_breaks_the_numbers():
    """The counts of what never happened fall to 0 after 1,075 visits; the weight stays the floor."""
    chooser = choice(2)
    for _ in range(1200):
        chooser.record({0: (0, 8), 1: (8, 8)})
    assert chooser.estimates().tolist() == [0.0, 1.0]
    assert chooser.weights().tolist() == [FLOOR, FLOOR]
    chooser.record({0: (4, 8), 1: (4, 8)})
    assert chooser.weights() == pytest.approx([0.75, 0.75])


def test_a_step_without_a_verdict_is_no_visit():
    chooser = choice(2)
    chooser.record({0: (0, 0)})
    chooser.record({})
    assert chooser.metrics() == {"rollout/prompts_seen": 0, "rollout/prompts_retired": 0, "rollout/prompts_hopeless": 0}
    assert chooser.weights().tolist() == [1.0, 1.0]


# --- the draw --------------------------------------------------------------------------------------------------------


def trained(count: int, seed: int = 0) -> InformativeChoice:
    """A chooser with a history in which rates are all over the place."""
    chooser, rng = choice(count, seed), np.random.default_rng(7)
    for step in range(12):
        chooser.record({prompt.index: (int(rng.integers(0, 9)), 8) for prompt in chooser.take(step * 5, 5)})
    return chooser


def test_the_same_history_gives_the_same_choice():
    one, other = trained(40), trained(40)
    assert [indices(one.take(cursor, 10)) for cursor in range(20)] == [indices(other.take(cursor, 10)) for cursor in range(20)]
    assert indices(one.take(3, 10)) == indices(one.take(3, 10)), "looking changes nothing"
    assert indices(one.take(3, 10)) != indices(one.take(4, 10))
    assert indices(one.take(3, 10)) != indices(trained(40, seed=1).take(3, 10))


def test_the_order_of_the_outcomes_does_not_matter():
    one, other = choice(30), choice(30)
    outcomes = {index: (index % 9, 8) for index in range(20)}
    one.record(outcomes)
    other.record(dict(reversed(outcomes.items())))
    assert np.array_equal(one.weights(), other.weights())


def test_the_choice_is_pinned():
    """Another order would silently change every run that is resumed."""
    assert indices(choice(1000, seed=3).take(64, 6)) == [403, 235, 416, 308, 189, 536]
    # splitmix64 with seed 0 gives 0xE220A8397B1DCDAF first.
    assert draw_keyed_uniform(1, 0)[0] == ((0xE220A8397B1DCDAF >> 12) + 0.5) / 2**52


def test_a_call_has_no_prompt_twice_and_a_longer_one_begins_the_same():
    chooser = trained(40)
    longest = indices(chooser.take(11, 100))
    assert sorted(longest[:40]) == sorted(longest[40:80]) == list(range(40)), "all are passed through before one comes again"
    assert longest[:40] != longest[40:80]
    assert len(set(longest[80:])) == 20
    for count in range(100):
        assert indices(chooser.take(11, count)) == longest[:count]


def test_ties_go_to_the_lower_place():
    times_P = np.array([3.0, 1.0, 1.0, 2.0, 1.0, 3.0])
    assert [list_first_arrivals(times_P, count) for count in range(7)] == [[1, 2, 4, 3, 0, 5][:count] for count in range(7)]


def test_uniforms_are_uniform_and_keys_are_unrelated():
    values = np.concatenate([draw_keyed_uniform(5000, key) for key in (0, 1, 2**63, 2**64 - 1)])
    assert 0 < values.min() < values.max() < 1
    assert stats.kstest(values, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(values[:5000], values[5000:10000])[0, 1]) < 0.05
    assert np.array_equal(draw_keyed_uniform(100, 5), draw_keyed_uniform(5000, 5)[:100]), "the noise of a place is its own"


def six_prompts() -> tuple[InformativeChoice, np.ndarray]:
    """Weights from the floor to 1, two of them on the floor."""
    chooser = choice(6)
    for _ in range(10):
        chooser.record({0: (0, 8), 1: (8, 8), 2: (1, 8), 3: (2, 8), 4: (4, 8)})
    weights_P = chooser.weights()
    assert weights_P[:2].tolist() == [FLOOR, FLOOR]
    assert weights_P[2:] == pytest.approx([0.4375, 0.75, 1.0, 1.0], rel=0.01)
    return chooser, weights_P


def test_single_draws_follow_the_weights():
    chooser, weights_P = six_prompts()
    drawn = np.bincount([chooser.take(cursor, 1)[0].index for cursor in range(20_000)], minlength=6)
    assert stats.chisquare(drawn, 20_000 * weights_P / weights_P.sum()).pvalue > 1e-3
    # 2 * 0.05 of 3.29: each floor prompt comes in 1.5 % of the draws
    expected = 20_000 * FLOOR / weights_P.sum()
    assert expected == pytest.approx(304, abs=3)
    assert drawn[:2] == pytest.approx([expected] * 2, abs=4 * expected**0.5)


def test_pairs_follow_the_weights_without_replacement():
    """P(i, then j) = w_i / W * w_j / (W - w_i), for all 30 ordered pairs."""
    chooser, weights_P = six_prompts()
    total = weights_P.sum()
    pairs = list(itertools.permutations(range(6), 2))
    expected = [weights_P[i] / total * weights_P[j] / (total - weights_P[i]) for i, j in pairs]
    drawn = [tuple(indices(chooser.take(cursor, 2))) for cursor in range(20_000)]
    seen = np.array([drawn.count(pair) for pair in pairs])
    common = np.array(expected) * 20_000 >= 5  # rarer pairs are counted as one cell, as the test asks
    cells = [
        np.append(np.asarray(values)[common], np.asarray(values)[~common].sum())
        for values in (seen, 20_000 * np.array(expected))
    ]
    assert stats.chisquare(*cells).pvalue > 1e-3


def test_a_floor_of_one_is_a_uniform_choice():
    chooser = choice(5, floor=1.0)
    for _ in range(10):
        chooser.record({0: (0, 8), 1: (8, 8)})
    drawn = np.bincount([chooser.take(cursor, 1)[0].index for cursor in range(5000)], minlength=5)
    assert stats.chisquare(drawn).pvalue > 1e-3


def test_arrival_times_are_gumbel_top_k():
    weights_P = np.array([0.05, 1.0, 0.3])
    gumbel_P = -np.log(-np.log1p(-draw_keyed_uniform(3, 9)))
    assert -np.log(draw_arrival_times(weights_P, 9)) == pytest.approx(np.log(weights_P) + gumbel_P, rel=1e-12)


def test_a_million_prompts_take_less_than_half_a_second():
    times = []
    weights_P = np.random.default_rng(0).uniform(FLOOR, 1, 1_000_000)
    for key in range(3):
        started = time.process_time()
        places = list_first_arrivals(draw_arrival_times(weights_P, key), 512)
        times.append(time.process_time() - started)
        assert len(set(places)) == 512
    assert min(times) < 0.5


# --- what it is for --------------------------------------------------------------------------------------------------

RATES = np.repeat([0.0, 0.1, 0.5, 0.9, 1.0], 40)
GROUP_SIZE = 8


def useful_shares(stream: PromptStream | InformativeChoice, rates: np.ndarray, steps: int, per_step: int = 20) -> np.ndarray:
    """Share of groups with 0 < successes < G in each step, for prompts of fixed difficulty."""
    rng, shares = np.random.default_rng(0), []
    for step in range(steps):
        prompts = stream.take(step * per_step, per_step)
        tally = {prompt.index: (int(rng.binomial(GROUP_SIZE, rates[prompt.index])), GROUP_SIZE) for prompt in prompts}
        shares.append(np.mean([0 < successes < GROUP_SIZE for successes, _ in tally.values()]))
        if isinstance(stream, InformativeChoice):
            stream.record(tally)
    return np.array(shares)


def test_useful_groups_are_far_more_than_with_the_plain_stream():
    """200 prompts, 20 a step. In theory the stream gives mean(1 - p^8 - (1-p)^8) = 0.426."""
    theory = np.mean(1 - RATES**8 - (1 - RATES) ** 8)
    assert theory == pytest.approx(0.426, abs=0.001)
    plain = useful_shares(PromptStream(some_prompts(200), 0, shuffle=True), RATES, 150)
    assert plain.mean() == pytest.approx(theory, abs=0.03)
    chooser = choice(200)
    chosen = useful_shares(chooser, RATES, 150)
    assert chosen[:10].mean() < chosen[50:].mean()
    assert chosen[50:].mean() > 0.72
    metrics = chooser.metrics()
    assert metrics["rollout/prompts_seen"] == 1.0
    assert metrics["rollout/prompts_retired"] == pytest.approx(0.2, abs=0.06), "the 40 that are always right"
    assert metrics["rollout/prompts_hopeless"] == pytest.approx(0.2, abs=0.06), "the 40 that are always wrong"
    assert metrics["rollout/expected_success"] == pytest.approx(0.5, abs=0.03)


def test_a_retired_prompt_that_fails_again_comes_back():
    """Prompt 0 is solved for 100 steps, then half forgotten; its visits go from the floor's rate to that of the best."""
    rates = np.array([1.0] * 10 + [0.5] * 10)
    chooser, rng, visits = choice(20), np.random.default_rng(0), []
    for step in range(500):
        if step == 100:
            rates[0] = 0.5
        prompts = chooser.take(step * 4, 4)
        visits.append(0 in indices(prompts))
        chooser.record({prompt.index: (int(rng.binomial(8, rates[prompt.index])), 8) for prompt in prompts})
        if step == 99:
            assert chooser.weights()[0] == FLOOR
    assert chooser.weights()[0] > 0.5
    assert np.mean(visits[30:100]) < 0.1  # about 4 draws * 0.05 / 9.5
    back = visits.index(True, 100)
    assert back < 220, "the floor alone brings it up again"
    assert np.mean(visits[back + 20 :]) > 0.25  # about 4 draws * 1 / 10


def test_a_hopeless_prompt_is_found_when_it_becomes_possible():
    rates = np.array([0.0] * 10 + [0.5] * 10)
    chooser = choice(20)
    useful_shares(chooser, rates, 100, per_step=4)
    assert chooser.metrics()["rollout/prompts_hopeless"] == 0.5
    rates[:10] = 0.5
    rng = np.random.default_rng(1)
    for step in range(100, 500):
        chooser.record({p.index: (int(rng.binomial(8, rates[p.index])), 8) for p in chooser.take(step * 4, 4)})
    assert chooser.metrics()["rollout/prompts_hopeless"] == 0.0
    assert chooser.weights()[:10].mean() > 0.7


# --- metrics and state -----------------------------------------------------------------------------------------------


def test_metrics_by_hand():
    chooser = choice(8)
    for _ in range(4):
        chooser.record({0: (8, 8), 1: (8, 8), 2: (0, 8)})
    chooser.record({3: (4, 8)})
    solved, hopeless = (15 + 1 / 16) / (15 + 1 / 8), (1 / 16) / (15 + 1 / 8)  # 8 + 4 + 2 + 1, and the prior after 4 visits
    assert chooser.metrics() == pytest.approx(
        {
            "rollout/prompts_seen": 4 / 8,
            "rollout/prompts_retired": 2 / 8,
            "rollout/prompts_hopeless": 1 / 8,
            "rollout/expected_success": (2 * solved + hopeless + 0.5) / 4,
        },
        rel=1e-12,
    )


def test_the_state_goes_through_safetensors_and_goes_on_bit_for_bit():
    def go_on(chooser: InformativeChoice, first: int, last: int) -> list[list[int]]:
        taken = []
        for step in range(first, last):
            prompts = chooser.take(step * 6, 6)
            rng = np.random.default_rng(step)
            chooser.record({prompt.index: (int(rng.integers(0, 9)), 8) for prompt in prompts})
            taken.append(indices(prompts))
        return taken

    straight, first = choice(50), choice(50)
    whole = go_on(straight, 0, 40)
    head = go_on(first, 0, 17)
    arrays, document = first.state()
    tensors = {name: torch.as_tensor(array) for name, array in arrays.items()}  # as a checkpoint writes them
    assert all(tensor.dtype == torch.float64 for tensor in tensors.values())
    saved, text = save(tensors), json.dumps(document)
    go_on(first, 17, 20)
    assert save(tensors) == saved, "a state is a copy"
    second = choice(50)
    second.load_state(load(saved), json.loads(text))
    assert head + go_on(second, 17, 40) == whole
    assert second.metrics() == straight.metrics()
    assert all(np.array_equal(second.state()[0][name], array) for name, array in straight.state()[0].items())


def test_a_state_of_other_prompts_is_refused():
    with pytest.raises(CheckpointError, match="has 5 prompts, the run has 6; resume with the prompts"):
        choice(6).load_state(*choice(5).state())


def test_outcomes_find_their_place_by_index():
    """Indices have gaps where rows were left out, and need not be in order."""
    chooser = InformativeChoice([Prompt(index, "", {}, (1,)) for index in (9, 4, 7)], 0, FLOOR)
    chooser.record({4: (1, 1), 9: (3, 4)})
    assert chooser.estimates() == pytest.approx([3.5 / 5, 1.5 / 2, 0.5], rel=1e-15)
    with pytest.raises(ValueError, match="prompt 8, which is not among the 3"):
        chooser.record({8: (1, 1)})


def test_it_speaks_as_the_plain_stream_does():
    chooser, stream = choice(8), PromptStream(some_prompts(8), 0, shuffle=True)
    assert chooser.epoch(12) == stream.epoch(12) == 1.5
    assert chooser.prompts == stream.prompts
    assert chooser.take(5, 0) == stream.take(5, 0) == []
    for wrong in ((-1, 1), (0, -1)):
        with pytest.raises(ValueError, match="cannot be negative"):
            chooser.take(*wrong)


@pytest.mark.parametrize(
    ("outcomes", "message"),
    [
        ({3: (1, 8)}, "prompt 3, which is not among the 3"),
        ({-1: (1, 8)}, "prompt -1, which"),
        ({0: (9, 8)}, "prompt 0: 9 successes among 8"),
        ({0: (-1, 8)}, "prompt 0: -1 successes"),
    ],
)
def test_outcomes_that_cannot_be_are_refused_and_leave_no_trace(outcomes, message):
    chooser = choice(3)
    with pytest.raises(ValueError, match=message):
        chooser.record({1: (8, 8), **outcomes})
    assert chooser.weights().tolist() == [1.0] * 3


def test_what_cannot_be_chosen_from_is_refused():
    with pytest.raises(PromptError, match="empty"):
        InformativeChoice([], 0, FLOOR)
    with pytest.raises(PromptError, match="two of them have index 4"):
        InformativeChoice([*some_prompts(3, first=3), *some_prompts(1, first=4)], 0, FLOOR)
    for floor in (0.0, -0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="choice_floor must lie in"):
            InformativeChoice(some_prompts(2), 0, floor)
