"""The registry explains every metric a run can write, and the page is written from it."""

from pathlib import Path

import pytest

from cohort.observe.metrics import AREAS, MERGES, METRICS, describe, markdown

NAMES = """
rollout/completions rollout/tokens rollout/length_mean rollout/length_max rollout/length_right rollout/length_wrong rollout/truncated rollout/distinct
rollout/shared_rewarded rollout/prompt_tokens_mean rollout/epoch rollout/mismatch_mean rollout/mismatch_p95 rollout/mismatch_max
rollout/rounds rollout/groups_drawn rollout/groups_too_easy rollout/groups_too_hard rollout/groups_surplus
rollout/prompts_seen rollout/prompts_retired rollout/prompts_hopeless rollout/expected_success
reward/mean reward/std reward/success reward/unscored reward/faults reward/timeouts
reward/failed_extracts reward/<part>/mean reward/<part>/std reward/<part>/none reward/<part>/faults reward/<part>/timeouts
reward/<part>/retried reward/<part>/verdict/<word> reward/<part>/dropped_logs reward/<part>/steps reward/overlong/mean reward/verifier_agreement
reward/<part>/seconds reward/<part>/<logged>
advantage/useful_groups advantage/zero_variance_groups advantage/dropped_groups advantage/all_correct_groups
advantage/all_wrong_groups advantage/std advantage/abs_max advantage/lopsided_share
teacher/gap teacher/gap_per_completion
loss/total loss/policy loss/kl loss/kl_coef loss/kl_term loss/kl_per_completion loss/entropy loss/clip_low loss/clip_high loss/ratio_max
loss/coefficient_mean loss/coefficient_p05 loss/coefficient_p95 loss/coefficient_abs_max loss/margin loss/preferred
loss/chosen_gain loss/rejected_gain
loss/mismatch_weight loss/mismatch_cut loss/trained_tokens
optim/learning_rate optim/grad_norm optim/clipped optim/skipped optim/policy_version optim/weight_change
critic/loss critic/explained_variance critic/value_mean critic/grad_norm critic/clipped_share critic/skipped
reward_model/iteration reward_model/accuracy reward_model/accuracy_before reward_model/auc reward_model/loss
reward_model/held_back_loss reward_model/pairs reward_model/held_back_pairs reward_model/completions
reward_model/tokens reward_model/seconds reward_model/replayed
eval/<set>/pass@<k> eval/<set>/maj@<k> eval/<set>/mean@<k> eval/<set>/greedy eval/<set>/reward eval/<set>/truncated
eval/<set>/length_mean eval/<set>/unscored
time/rollout time/reward time/prepare time/old time/reference time/teacher time/critic time/pack time/update time/optimizer time/observe
time/evaluate time/checkpoint time/step
perf/slowest_stage_share perf/host_share perf/rollout_tokens_per_second perf/engine_occupancy perf/engine_slots
perf/engine_decode_steps perf/engine_looks perf/engine_prefills perf/engine_graphs perf/engine_<figure> perf/train_tokens_per_second
perf/executed_tokens_per_second perf/update_mfu perf/padding_share perf/shared_share perf/skipped_share
perf/tokens_per_second perf/peak_memory_gib
""".split()  # noqa: SIM905


def test_the_registry_is_exactly_the_list_in_data_flow_order():
    assert [metric.name for metric in METRICS] == NAMES
    areas = list(dict.fromkeys(metric.area for metric in METRICS))
    assert areas == list(AREAS)


def test_the_page_is_up_to_date():
    page = Path(__file__).parents[2] / "docs" / "metrics.md"
    assert page.read_text(encoding="utf-8") == markdown(), "run `python -m cohort.observe.metrics`"


def test_every_row_is_filled_in():
    for metric in METRICS:
        assert all((metric.unit, metric.formula, metric.healthy, metric.bad)), metric.name
        assert metric.bad.endswith("."), metric.name


def test_a_row_says_how_its_values_are_merged():
    """Two optimizer steps of one step, two rounds of 3 prompts and 1: by hand. What no row explains is averaged."""
    from cohort.training.drawing import merge_metrics
    from cohort.training.updates import mean_metrics

    assert {metric.merge for metric in METRICS} == {"mean", *MERGES}
    steps = [
        {"loss/policy": 1.0, "loss/trained_tokens": 30, "loss/ratio_max": 1.5, "rollout/mismatch_max": 0.1, "optim/learning_rate": 2e-6},
        {"loss/policy": 4.0, "loss/trained_tokens": 12, "loss/ratio_max": 1.2, "rollout/mismatch_max": 0.7, "optim/learning_rate": 1e-6},
    ]  # fmt: skip
    assert mean_metrics(steps) == {
        "loss/policy": 2.5, "loss/trained_tokens": 42, "loss/ratio_max": 1.5, "rollout/mismatch_max": 0.1, "optim/learning_rate": 1e-6,
    }  # fmt: skip
    rounds = [
        (3, {"reward/r/verdict/right": 2.0, "reward/r/seconds": 0.5, "reward/r/steps": 4.0, "nothing/here": 1.0}),
        (1, {"reward/r/verdict/right": 1.0, "reward/r/seconds": 0.25, "reward/r/steps": 8.0, "nothing/here": 5.0}),
    ]
    assert merge_metrics(rounds) == {
        "reward/r/verdict/right": 3.0, "reward/r/seconds": 0.75, "reward/r/steps": 5.0, "nothing/here": 2.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("reward/mean", "reward/mean"),
        ("reward/math_answer/mean", "reward/<part>/mean"),
        ("reward/math_answer/seconds", "reward/<part>/seconds"),
        ("reward/check_steps/steps", "reward/<part>/steps"),
        ("reward/math_answer/digits", "reward/<part>/<logged>"),
        ("eval/held_out/pass@1", "eval/<set>/pass@<k>"),
        ("eval/gsm8k.test/maj@16", "eval/<set>/maj@<k>"),
        ("perf/engine_occupancy", "perf/engine_occupancy"),
        ("perf/engine_refills", "perf/engine_<figure>"),
    ],
)
def test_describe_finds_concrete_names(name, row):
    assert describe(name).name == row


def test_describe_knows_what_it_does_not_know():

    assert describe("nothing/here") is None
    assert describe("eval/held_out/pass@x") is None
