"""Each finding: a synthetic history that triggers it, and a healthy one that triggers nothing worse than information."""

import math

import pytest

from cohort import session
from cohort.errors import RewardError
from cohort.observe.diagnosis.checks import CHECKS, diagnose
from cohort.observe.diagnosis.finding import History
from cohort.recipe.file import build_recipe
from cohort.training.build import Materials
from session_tools import rows_of, tiny

RECIPE = build_recipe({"sampling": {"max_completion_tokens": 256}})
PPO = build_recipe({"algorithm": {"name": "ppo"}})
TWO_PARTS = build_recipe(
    {"rewards": [{"function": "math_answer"}, {"function": "package.module:neatness", "weight": 0.1}]},
)


def healthy(steps=60, **changes):
    """Rows of a run that learns; a change is a value, or a function of the step."""
    rows = []
    for step in range(1, steps + 1):
        progress = step / steps
        row = {
            "step": step,
            "rollout/completions": 256,
            "rollout/length_mean": 100 + 20 * progress,
            "rollout/truncated": 0.02,
            "rollout/distinct": 0.9,
            "rollout/mismatch_p95": 0.01,
            "rollout/mismatch_max": 0.2,
            "reward/mean": 0.3 + 0.4 * progress,
            "reward/success": 0.3 + 0.4 * progress,
            "reward/faults": 0,
            "reward/timeouts": 0,
            "reward/math_answer/faults": 0,
            "advantage/useful_groups": 0.8,
            "advantage/all_correct_groups": 3,
            "advantage/all_wrong_groups": 3,
            "loss/policy": 0.01 * math.sin(step),
            "loss/kl_per_completion": 2.0 * progress,
            "loss/entropy": 0.8 - 0.3 * progress,
            "loss/clip_low": 0.01,
            "loss/clip_high": 0.02,
            "optim/grad_norm": 0.4,
            "optim/skipped": 0,
            "optim/learning_rate": 1e-6,
            "time/rollout": 6.0,
            "time/reward": 0.5,
            "time/prepare": 1.0,
            "time/update": 2.5,
            "time/step": 10.0,
        }
        row |= {"optim/weight_change": 1e-6} if step == 1 else {}
        row |= {"eval/held_out/pass@1": 0.3 + 0.4 * progress} if step % 20 == 0 else {}
        row |= {name: change(step) if callable(change) else change for name, change in changes.items()}
        rows.append({name: value for name, value in row.items() if value is not None})
    return rows


def keys(rows, recipe=RECIPE, evaluations=()):
    return {finding.name: finding for finding in diagnose(rows, recipe, evaluations)}


def test_a_healthy_run_has_no_findings_at_any_length():
    for steps in (0, 1, 3, 10, 60, 300):
        assert keys(healthy(steps)) == {}


SHARED = {
    "row": 17,
    "rows": [17, 40],
    "prompt": "2+2=",
    "completion": "I am sure.",
    "kind": "ending",
    "text": "I am sure.",
    "share": 0.83,
    "share_failed": 0.02,
    "prompts": 14,
    "references": 12,
}

TRIGGERS = [
    ("loss_zero", "info", {"loss/policy": 1e-9}, "by construction"),
    ("unscored", "alarm", {"reward/unscored": 256, "advantage/useful_groups": 0.0}, "2560 of 2560 completions (100 %)"),
    ("unscored", "warning", {"reward/unscored": 160, "reward/math_answer/none": 160}, "math_answer returned None for 1600."),
    (
        "unjudged",
        "warning",
        {"reward/neatness/mean": 0.4, "reward/math_answer/none": 200},
        "math_answer, the part that decides",
    ),
    ("no_success", "alarm", {"reward/success": 0.0, "advantage/useful_groups": 0.0}, "of the 2560 that were scored"),
    ("no_useful_groups", "warning", {"advantage/useful_groups": 0.05, "advantage/all_correct_groups": 28}, "too easy"),
    ("no_useful_groups", "warning", {"advantage/useful_groups": 0.05, "advantage/all_wrong_groups": 28}, "too hard"),
    ("no_useful_groups", "alarm", {"advantage/useful_groups": 0.0, "advantage/all_wrong_groups": 32}, "320 only wrong ones"),
    ("truncation", "alarm", {"rollout/truncated": 0.97}, "97 % of completions were cut at 256 tokens"),
    ("truncation", "warning", {"rollout/truncated": 0.3}, "sampling.max_completion_tokens"),
    (
        "tools_unused",
        "alarm",
        {"tools/used": lambda s: 0.6 if s < 30 else 0.0, "reward/success": 0.4},
        "Tool use fell to 0 % of episodes, from 60 %",
    ),
    (
        "replies_fill",
        "warning",
        {"turns/read_share": 0.9, "turns/cut": 3.0},
        "take 90 % of the tokens of an episode; 3 per step are cut",
    ),
    ("environment_fails", "alarm", {"turns/faults": 64.0}, "640 episodes of the last steps (25 %)"),
    ("copies", "alarm", {"rollout/distinct": 0.125}, "1.0 distinct completions out of 8 at temperature 1"),
    (
        "collapsed",
        "alarm",
        {"rollout/entropy": lambda s: 2.3 if s < 40 else 0.0, "reward/success": lambda s: 0.3 if s < 40 else 0.0},
        "The update of step 39 took the policy from 2.3 to 0 nats of entropy per token, and success from 30 % to 0 %.",
    ),
    ("kl_drift", "warning", {"loss/kl_per_completion": 6.0}, "6.0 nats"),
    ("kl_drift", "alarm", {"loss/kl_per_completion": 12.0}, "kl_coef (now 0.04)"),
    ("entropy_collapse", "warning", {"loss/entropy": lambda s: 0.8 if s < 20 else 0.01}, "from 0.8 to 0.01"),
    (
        "length_explosion",
        "warning",
        {"rollout/length_mean": lambda s: 100 + 10 * s, "reward/success": 0.4},
        "Completions grew",
    ),
    ("no_gradient", "alarm", {"optim/grad_norm": 0.0, "advantage/useful_groups": 0.0}, "No group had rewards that differ"),
    ("no_gradient", "alarm", {"optim/grad_norm": 0.0}, "80 % of groups have rewards that differ"),
    ("skipped_steps", "warning", {"optim/skipped": lambda s: int(s == 57)}, "1 optimizer step in the last 10 steps"),
    ("skipped_steps", "warning", {"critic/skipped": lambda s: int(s == 57)}, "step of the critic in the last 10 steps"),
    ("clipping", "warning", {"loss/clip_high": 0.4}, "41 % of tokens"),
    (
        "kl_outweighs",
        "warning",
        {"loss/kl_coef": 50.0, "loss/kl": 0.02, "advantage/std": 0.8},
        "The pull to the reference is 12.5 times as strong as that of the rewards (algorithm.kl_coef is 50).",  # 50 sqrt(0.04) / 0.8
    ),
    (
        "policy_still",
        "warning",
        {"loss/kl_per_completion": 1e-4, "reward/success": lambda s: 0.3 + 0.01 * (s % 2)},
        "After 60 steps the policy is 0.0001 nats per completion away from its reference, and success has not moved from 30 %. There is "
        "a signal (80 % of groups)",
    ),
    ("mismatch", "warning", {"rollout/mismatch_p95": 0.2}, "0.2"),
    ("mismatch", "alarm", {"rollout/mismatch_p95": 2.0}, "maximum of 0.2"),
    ("weights_still", "alarm", {"optim/weight_change": lambda s: 0.0 if s == 1 else None}, "no parameter changed"),
    (
        "reward_faults",
        "warning",
        {"reward/faults": 2, "reward/math_answer/faults": 2},
        "6 times in the last 3 steps. Failing: math_answer.",
    ),
    ("reward_timeouts", "warning", {"reward/timeouts": 40}, "16 % of completions"),
    (
        "slow_reward",
        "warning",
        {"time/reward": 20.0, "time/step": 29.5},
        "68 % of a step's time goes into rewards (time/reward)",
    ),
    (
        "slow_rollout",
        "info",
        {"time/rollout": 96.0, "time/step": 100.0},
        "96 % of a step's time goes into sampling completions",
    ),
    (
        "slow_reward",
        "warning",
        {"time/reward": 20.0, "time/step": 29.5, "reward/judge/seconds": 18.0, "reward/length/seconds": 1.0},
        "A step takes 30 s; speeding up everything else gains at most 32 %. judge is the slowest part, at 18 s.",
    ),
    (
        "slow_update",
        "info",
        {"time/update": 90.0, "time/step": 97.5, "perf/update_mfu": 0.12},
        "The device reaches 12 % of its peak (perf/update_mfu).",
    ),
    (
        "slow_observe",
        "warning",
        {"time/observe": 20.0, "time/step": 30.0},
        "67 % of a step's time goes into recording metrics and rollouts",
    ),
    (
        "ahead_waits",
        "warning",
        {"ahead/sample_seconds": 9.0, "ahead/score_seconds": 1.0, "time/wait": 4.0},
        "Training waits for rollouts in 40 % of its time (time/wait): a step is sampled in 9 s, scored in 1 s and trained in 6 s. Sampling "
        "is the slowest of the three",
    ),
    (
        "ahead_waits",
        "warning",
        {"ahead/sample_seconds": 1.0, "ahead/score_seconds": 9.0, "time/wait": 4.0},
        "The reward functions are the slowest of the three",
    ),
    (
        "ahead_waits",
        "warning",
        {"ahead/sample_seconds": 5.0, "ahead/score_seconds": 5.0, "time/wait": 4.0},
        "Raise ahead.lag: scoring then overlaps with sampling later batches.",
    ),
    (
        "rank_behind",
        "warning",
        {"ranks/count": 4, "ranks/slowest": 2, "ranks/behind": 3.0, "ranks/behind/update": 2.8, "ranks/wait_share": 0.25},
        "Rank 2 makes the others wait for 30 % of the steps' time, mostly in forward and backward passes (ranks/behind/update).",
    ),
    (
        "rank_behind",
        "warning",
        {"ranks/slowest": 0, "ranks/behind": 3.0, "ranks/behind/checkpoint": 2.8, "ranks/wait_share": 0.25},
        "It is rank 0, which writes to the run folder while the others wait",
    ),
    (
        "rank_behind",
        "warning",
        {"ranks/slowest": 1, "ranks/behind": 1.6, "ranks/behind/rollout": 1.5, "ranks/explained_by_tokens": 0.8},
        "It has more tokens than the others",
    ),
    (
        "rank_behind",
        "warning",
        {"ranks/slowest": 1, "ranks/behind": 1.6, "ranks/behind/old": 1.5, "ranks/explained_by_tokens": 0.8},
        "a lower train.micro_batch_tokens evens out training",
    ),
    (
        "rank_behind",
        "warning",
        {"ranks/slowest": 1, "ranks/behind": 1.6, "ranks/behind/reward": 1.5, "ranks/explained_by_tokens": 0.1},
        "Its reward functions are slower, although it has no more completions",
    ),
    ("slow_old", "warning", {"time/old": 20.0, "time/step": 30.0}, "old log-probs (time/old)"),
    ("chosen_displaced", "alarm", {"loss/chosen_gain": -10.0, "loss/preferred": 0.8}, "10.0 nats"),
    ("reward_model_outgrown", "warning", {"reward/verifier_agreement": 0.65}, "0.65"),
    (
        "lost_unseen",
        "warning",
        {"rollout/groups_drawn": 100, "rollout/groups_too_hard": lambda s: 12 if s < 5 else 45},
        "45 % of the groups drawn are all wrong, up from 12 %",
    ),
    (
        "critic_diverges",
        "alarm",
        {"critic/explained_variance": -5.0, "critic/value_mean": 50.0, "critic/loss": lambda s: 10.0 * s},
        "its explained variance is -5 (critic/explained_variance), its values average 50 where rewards average 0.67 "
        "(critic/value_mean), its loss rose from 1.6e+02 to 5.6e+02 (critic/loss).",
    ),
    (
        "critic_explains_nothing",
        "warning",
        {"critic/explained_variance": -0.2, "critic/value_mean": 0.5, "critic/loss": 0.1},
        "lower critic.learning_rate (now 1e-05)",
    ),
    ("held_out_falls", "alarm", {"eval/held_out/pass@1": lambda s: {20: 0.6, 40: 0.5, 60: 0.4}.get(s)}, "step 20"),
    (
        "part_outruns_outcome",
        "warning",
        {"reward/success": 0.3, "reward/neatness/mean": lambda s: 0.2 + 0.01 * s, "reward/math_answer/mean": 0.3},
        "The part neatness went from 0.26 to 0.76 while success (math_answer) stayed at 30 %.",
    ),
    (
        "shared_rewarded",
        "alarm",
        {"evidence": lambda s: {"shared": SHARED} if s > 50 else None},
        "83 % of the successes of step 60 share the last line “I am sure.”",
    ),
    (
        "other_number",
        "warning",
        {"rollout/other_number": lambda s: 0.01 + 0.005 * s},
        "29 % of the successes of the last steps answer another number than the reference (rollout/other_number), up from 3.8 %.",
    ),
    ("other_number", "alarm", {"rollout/other_number": lambda s: s / 60}, "92 % of the successes"),
    (
        "other_number",
        "warning",
        {"rollout/other_number": 0.9},
        "Either several numbers are right, or the verifier accepts wrong ones",
    ),
    (
        "inconsistent",
        "warning",
        {"reward/inconsistent": 0.2},
        "In 20 % of the cases of identical completions in a group",
    ),
    ("inconsistent", "alarm", {"reward/inconsistent": 0.7}, "Call the reward function twice on one completion."),
    (
        "failures_rise",
        "warning",
        {"reward/math_answer/verdict/unparsed": lambda s: s},
        "The verifier gave up on 22 % of completions, up from 2.1 % (mostly math_answer: unparsed)",
    ),
    (
        "failures_rise",
        "alarm",
        {"evidence": lambda s: {"failed/math_answer/timeout": {"row": 3, "passed": 2}} if s > 55 else None},
        "In 5 of the last 10 steps completions on which the verifier gave up (math_answer: timeout) count as successes.",
    ),
    (
        "wrong_grows",
        "warning",
        {"rollout/length_wrong": lambda s: 100 + 5 * s, "rollout/length_right": 90},
        "Wrong completions grew from 128 to 378 tokens, right ones from 90 to 90.",
    ),
]


@pytest.mark.parametrize(("key", "level", "changes", "words"), TRIGGERS, ids=[f"{t[0]}-{i}" for i, t in enumerate(TRIGGERS)])
def test_trigger(key, level, changes, words):
    found = keys(healthy(**changes), TWO_PARTS if key == "unjudged" else RECIPE)
    assert key in found, found
    assert found[key].level == level
    assert words in found[key].text


def test_every_check_has_a_trigger():
    triggered = {t[0] for t in TRIGGERS if not t[0].startswith("slow_")} | {"slow_stage"}
    triggered |= {"pass_at_k_falls"}  # needs evaluations: tests/observe/test_held_out.py
    assert len(triggered) == len(CHECKS), triggered


FALLEN = {"rollout/entropy": lambda s: 2.285 if s == 1 else 0.0, "reward/success": lambda s: 0.002 if s == 1 else 0.0}
"""The README's first example at a learning rate of 3.0: everything that follows is an effect."""


def test_a_policy_destroyed_by_one_update_has_one_alarm_with_the_cause():
    effects = {
        "advantage/useful_groups": 0.0,
        "advantage/all_wrong_groups": 32,
        "rollout/distinct": 0.125,
        "optim/grad_norm": lambda s: 0.3 if s == 1 else 0.0,
        "rollout/truncated": lambda s: 0.8 if s == 1 else 1.0,
        "loss/kl_per_completion": lambda s: 0.0 if s == 1 else 40.0,
    }
    recipe = build_recipe({"optimizer": {"learning_rate": 3.0}})
    for steps in (2, 3, 6, 12, 40):
        found = keys(healthy(steps, **FALLEN, **effects), recipe)
        assert [name for name, one in found.items() if one.level != "info"] == ["collapsed"]
        assert "Lower optimizer.learning_rate (now 3) by a factor of ten" in found["collapsed"].fix
    assert "collapsed" not in keys(healthy(1, **FALLEN, **effects), recipe)


def test_a_collapse_is_sudden_lasts_and_does_not_solve_the_task():
    def found(entropies, success=0.0):
        rows = healthy(len(entropies), **{"rollout/entropy": lambda s: entropies[s - 1], "reward/success": success})
        return keys(rows).get("collapsed")

    assert found([0.097, 0.446, 1.3, 0.48, 1.2]).why.endswith("now noise.")  # a rate 100 times too high
    assert found([2.3, 2.0, 1.6, 1.3, 1.2, 1.1, 0.74, 0.63, 0.47, 0.46, 0.63, 0.39]) is None  # the README's first example
    assert found([1.0, 0.05, 0.9, 1.0, 1.0, 1.0]) is None  # recovered
    assert found([0.028, 0.001, 0.042, 0.001]) is None  # nearly certain from the start
    assert found([1.0, 0.05, 0.05], success=lambda s: 0.2 if s == 1 else 1.0) is None  # learned within a step
    assert found([1.0, None, 0.05]) is None  # not sampled in between


def test_completions_cut_less_and_less_are_no_finding():
    assert keys(healthy(3, **{"rollout/truncated": lambda s: (0.818, 0.602, 0.35)[s - 1]})) == {}
    assert keys(healthy(3, **{"rollout/truncated": lambda s: (0.818, 0.7, 0.6)[s - 1]})).keys() == {"truncation"}


def test_copies_of_right_answers_are_none():
    """Steps 17 to 21 of the README's first example: of 32 groups 25 are solved, with a single right answer each."""
    shares = {"rollout/distinct": 0.0907, "reward/success": 0.85, "rollout/completions": 512, "loss/entropy": 0.25}
    recipe = build_recipe({"train": {"group_size": 16}})
    assert keys(healthy(21, **shares, **{"advantage/all_correct_groups": 25, "advantage/all_wrong_groups": 3}), recipe) == {}
    found = keys(healthy(21, **shares, **{"advantage/all_correct_groups": 3, "advantage/all_wrong_groups": 25}), recipe)
    assert "1.5 distinct completions out of 16" in found["copies"].what  # (0.0907 * 16 - 3/32) / (29/32)


def test_what_looks_bad_but_is_not():
    solved = {"rollout/distinct": 0.13, "reward/success": 0.98, "loss/entropy": lambda s: 0.8 if s < 20 else 0.001}
    assert keys(healthy(**solved)) == {}  # certain and right
    assert keys(healthy(**{"rollout/length_mean": lambda s: 100 + 10 * s})) == {}  # longer and better
    two = build_recipe({"train": {"minibatches_per_step": 2}})
    assert keys(healthy(**{"loss/policy": 0.0}), two) == {}
    assert "loss_zero" not in keys(healthy(**{"loss/policy": 0.0, "optim/grad_norm": 0.0}))
    falling = {"eval/held_out/pass@1": lambda s: {20: 0.52, 40: 0.5, 60: 0.49}.get(s)}
    assert keys(healthy(**falling)) == {}  # within noise
    in_turn = {"ranks/slowest": lambda s: s % 3, "ranks/behind": 3.0, "ranks/behind/rollout": 3.0}
    assert keys(healthy(**in_turn)) == {}  # now this rank, now that: a third of 30 % each
    assert keys(healthy(**{"ranks/slowest": 1, "ranks/behind": 1.4, "ranks/behind/rollout": 1.4})) == {}  # 14 %
    assert (
        keys(healthy(**{"ahead/sample_seconds": 9.0, "ahead/score_seconds": 9.0, "time/wait": 0.9})) == {}
    )  # training is the slowest
    assert keys(healthy(**{"rollout/other_number": lambda s: 0.08 + 0.0005 * s})) == {}  # few, and hardly more than at first
    held = {"loss/kl_coef": 0.04, "loss/kl": 0.02, "advantage/std": 0.8}
    assert keys(healthy(**held)) == {}  # 0.04 * 0.2: a hundredth of the push
    in_reward = build_recipe({"algorithm": {"name": "rloo"}})
    of_reward = {"loss/kl_coef": 0.5, "loss/kl": 0.02, "loss/kl_per_completion": 2.0, "reward/std": 0.5}
    assert keys(healthy(**of_reward), in_reward).keys() == {"kl_outweighs"}  # 0.5 * 2 against 0.5
    assert keys(healthy(**of_reward | {"loss/kl_coef": 0.01}), in_reward) == {}
    assert keys(healthy(**of_reward), build_recipe({"algorithm": {"name": "dpo"}})) == {}  # its beta
    idle = {"optim/weight_change": lambda s: 0.0 if s == 1 else None, "optim/grad_norm": lambda s: 0.4 * (s > 1)}
    assert keys(healthy(**idle)) == {}  # no useful group in the first step: its update had nothing to do
    still = {"loss/kl_per_completion": 1e-4}
    assert keys(healthy(**still)) == {}  # next to no KL, and success rises: it is enough
    flat = still | {"reward/success": 0.3, "reward/mean": 0.3}
    assert keys(healthy(39, **flat)) == {}  # too early to say
    assert keys(healthy(**flat), build_recipe({"algorithm": {"reference_every": 5}})) == {}  # a reference that follows


def test_held_out_uses_the_intervals_of_evaluations():
    def at(step, value, half):
        return {"step": step, "sets": {"test": {"pass@1": {"value": value, "low": value - half, "high": value + half}}}}

    rows = healthy(**{"eval/held_out/pass@1": None})
    assert "held_out_falls" in keys(rows, evaluations=[at(0, 0.5, 0.03), at(60, 0.4, 0.03)])
    assert keys(rows, evaluations=[at(0, 0.5, 0.08), at(60, 0.4, 0.08)]) == {}
    falling_reward = healthy(**{"eval/held_out/pass@1": None, "reward/mean": lambda s: 1 - s / 100})
    assert keys(falling_reward, evaluations=[at(0, 0.5, 0.03), at(60, 0.4, 0.03)]) == {}


def test_one_bad_step_is_not_a_pattern():
    assert keys(healthy(2, **{"reward/success": 0.0, "advantage/useful_groups": 0.0, "optim/grad_norm": 0.0})) == {}


def test_the_first_step_says_nothing_about_where_the_time_goes():
    """It imports what writes the files, and in short steps that is most of the time: here 100 s of a step of 110."""
    begins = {"time/observe": lambda s: 100.0 if s == 1 else 0.1, "time/step": lambda s: 110.0 if s == 1 else 10.0}
    for steps in (5, 10, 20):
        assert keys(healthy(steps, **begins)) == {}
    always = healthy(6, **{"time/observe": 100.0, "time/step": 110.0})
    assert "slow_observe" in keys(always)


def test_the_worst_comes_first_and_dicts_serve_as_recipes():
    rows = healthy(**{"loss/policy": 0.0, "rollout/truncated": 0.97, "loss/clip_high": 0.4})
    assert [f.level for f in diagnose(rows, RECIPE.model_dump())] == ["alarm", "warning", "info"]
    assert "at 256 tokens" in diagnose(rows, RECIPE.model_dump())[0].what
    assert "at the token limit" in diagnose(rows, None)[0].what


def test_rows_with_holes_nulls_and_nonsense_are_tolerated():
    rows = [{}, {"step": 1, "reward/success": None}, {"step": 2, "loss/entropy": float("nan"), "eval/x/pass@1": None}] * 20
    diagnose(rows, {"train": 3})
    assert History(rows).read_setting("train.group_size", 8) == 8


def test_right_answers_that_dpo_makes_unlikely_are_an_alarm():
    found = keys(healthy(**{"loss/chosen_gain": lambda step: -0.3 * step, "loss/preferred": 0.8}))
    assert found["chosen_displaced"].level == "alarm"
    assert "16.6 nats" in found["chosen_displaced"].what
    assert "80 %" in found["chosen_displaced"].what
    assert "chosen_displaced" not in keys(healthy(**{"loss/chosen_gain": 0.5, "loss/preferred": 0.8}))


def test_a_reward_model_that_no_longer_agrees_with_the_verifier():
    assert keys(healthy(**{"reward/verifier_agreement": 0.65}))["reward_model_outgrown"].level == "warning"
    assert keys(healthy(**{"reward/verifier_agreement": 0.52}))["reward_model_outgrown"].level == "alarm"
    assert "reward_model_outgrown" not in keys(healthy(**{"reward/verifier_agreement": 0.9}))


def test_a_kind_of_problem_lost_behind_dynamic_sampling():
    drawn = {"rollout/groups_drawn": 100}
    lost = healthy(**drawn, **{"rollout/groups_too_hard": lambda step: 12 if step < 5 else 45})
    assert "45 %" in keys(lost)["lost_unseen"].what
    assert "12 %" in keys(lost)["lost_unseen"].what
    learned = healthy(**drawn, **{"rollout/groups_too_hard": lambda step: 40 if step < 5 else 5})
    assert "lost_unseen" not in keys(learned)
    assert "lost_unseen" not in keys(healthy(**drawn, **{"rollout/groups_too_hard": 30}))  # hard from the start


# -- missing scores ----------------------------------------------------------------------------------------------------

NOTHING_SCORED = {
    "reward/unscored": 256,
    "reward/math_answer/none": 256,
    "reward/mean": None,
    "reward/success": None,
    "advantage/useful_groups": 0.0,
    "advantage/zero_variance_groups": 0,
    "advantage/all_correct_groups": 0,
    "advantage/all_wrong_groups": 0,
    "optim/grad_norm": 0.0,
    "loss/policy": 0.0,
}
"""The numbers of a run whose reward function returns None throughout."""


@pytest.mark.parametrize("steps", [1, 4, 7, 60])
def test_a_reward_that_never_speaks_is_named_and_nothing_is_said_about_the_prompts(steps):
    """From the first step on, for a step without a single score is no luck; 0 right and 0 wrong groups are no verdict."""
    found = keys(healthy(steps, **NOTHING_SCORED))
    assert set(found) == {"unscored"}
    count = 256 * min(steps, 10)
    assert f"{count} of {count} completions (100 %)" in found["unscored"].what
    assert f"math_answer returned None for {count}." in found["unscored"].what
    assert "prompt difficulty is unknown" in found["unscored"].why
    assert "a wrong answer must score 0.0" in found["unscored"].fix


def test_a_run_whose_reward_returns_none_ends_with_that_finding(tmp_path):
    def silent(completions, **columns):
        return [None] * len(completions)

    settings = {"cold_start.num_steps": 0, "evaluation.samples": 0, "train.num_steps": 5, "train.minibatches_per_step": 1}
    rewards = [{"function": "python:silent", "name": "silent"}]
    recipe = tiny(tmp_path, **settings, **{"sampling.max_completion_tokens": 12, "rewards": rewards})
    with pytest.raises(RewardError, match="no completion of the first"):
        session.start(recipe, Materials(None, {"python:silent": silent}))
    rows = rows_of(tmp_path / "run")
    found = {key for key in keys(rows, recipe) if not key.startswith("slow_")}  # how long a step takes is the machine's doing
    assert found - {"truncation"} == {"unscored"}  # random weights do not stop
    completions = sum(row["rollout/completions"] for row in rows)
    assert f"silent returned None for {completions}." in keys(rows, recipe)["unscored"].what


def test_abstaining_on_a_minority_is_nothing_to_talk_about():
    assert keys(healthy(**{"reward/unscored": 120, "reward/math_answer/none": 120})) == {}
    assert "unscored" not in keys(healthy(3, **{"reward/unscored": 160}))  # three steps are luck, unless nothing is scored
    assert "unscored" in keys(healthy(5, **{"reward/unscored": 160}))


def test_groups_that_lost_their_scores_are_not_called_too_easy():
    """Of 32 groups 2 are useful and 2 equal; the other 28 have fewer than two scores, though 55 % of completions have one."""
    lost = {"reward/unscored": 115, "advantage/useful_groups": 2 / 32, "advantage/zero_variance_groups": 2}
    found = keys(healthy(**lost, **{"advantage/all_correct_groups": 2, "advantage/all_wrong_groups": 0}))
    assert set(found) == {"unscored"}
    assert "280 groups have fewer than two scores" in found["unscored"].what
    assert found["unscored"].level == "warning"


def test_one_score_is_enough_where_groups_are_not_compared():
    """Groups of one have no second score to lose; a few abstentions are no reason for a word."""
    alone = build_recipe({"algorithm": {"name": "ppo"}, "train": {"group_size": 1}})
    single = {"advantage/useful_groups": 0.0, "advantage/zero_variance_groups": 0}
    assert keys(healthy(**single, **{"reward/unscored": 3}), alone) == {}  # nor is one completion a copy of another
    found = keys(healthy(**single, **{"reward/unscored": 200}), alone)["unscored"]
    assert (found.level, "fewer than two scores" in found.what) == ("warning", False)


def test_what_dynamic_sampling_draws_is_what_counts():
    """40 groups of 8 drawn, 32 kept: 160 of 320 are unscored, not 160 of 256; so are time limits."""
    drawn = {"rollout/groups_drawn": 40}
    assert "1600 of 3200 completions" in keys(healthy(**drawn, **{"reward/unscored": 160}))["unscored"].what
    assert "unscored" not in keys(healthy(**drawn, **{"reward/unscored": 150}))
    assert "reward_timeouts" not in keys(healthy(**drawn, **{"reward/timeouts": 15}))  # 4.7 % of 320, 5.9 % of 256
    assert (
        "of the 2700 that were scored"
        in keys(healthy(**drawn, **{"reward/success": 0.0, "reward/unscored": 50}))["no_success"].what
    )


def test_prompts_of_both_kinds_are_neither_too_easy_nor_too_hard():
    mixed = {"advantage/useful_groups": 0.05, "advantage/all_correct_groups": 15, "advantage/all_wrong_groups": 15}
    assert "Some prompts are too easy and others too hard" in keys(healthy(**mixed))["no_useful_groups"].fix


def test_without_a_verdict_nothing_is_said_about_difficulty_success_or_certainty():
    """The outcome part is silent and others pay: success is not 0 %, it is unknown."""
    unknown = {"reward/success": None, "advantage/all_correct_groups": 0, "advantage/all_wrong_groups": 0}
    found = keys(healthy(**unknown, **{"advantage/useful_groups": 0.05}))
    assert "No verdict says whether they were right" in found["no_useful_groups"].fix
    assert keys(healthy(**{"reward/success": None, "loss/entropy": lambda s: 0.8 if s < 20 else 0.01})) == {}
    assert keys(healthy(**{"reward/success": None, "rollout/length_mean": lambda s: 100 + 10 * s})) == {}
    assert "%" not in keys(healthy(**{"loss/chosen_gain": -10.0}))["chosen_displaced"].what


def test_wrong_completions_that_were_empty_at_the_start_break_nothing():
    lengths = {"rollout/length_wrong": lambda s: 0 if s <= 10 else 100, "rollout/length_right": 90}
    assert keys(healthy(**lengths)) == {}


# -- PPO's critic ------------------------------------------------------------------------------------------------------


def critic(explained, value, loss=0.1, **more):
    return {"critic/explained_variance": explained, "critic/value_mean": value, "critic/loss": loss, "reward/std": 0.4, **more}


def test_a_critic_that_is_bad_at_first_is_given_time():
    """As measured with a rate of 0.03: -1.3 in the fifth step, fine by the ninth; a good critic may explain little."""
    early = critic(lambda s: -10.0 if s <= 10 else 0.1, lambda s: 0.0 if s <= 10 else 0.4)
    for steps in (1, 10, 19, 20, 30, 60):
        assert keys(healthy(steps, **early)) == {}
    useless = critic(0.0, 0.0)
    assert [n for n in (10, 20, 29, 30, 60) if keys(healthy(n, **useless))] == [30, 60]


def test_a_critic_that_has_not_left_zero_needs_a_larger_rate():
    """As measured with a rate of 1e-5: explained variance 0.003, values of 0.006 where rewards average 0.77."""
    found = keys(healthy(**critic(0.003, 0.006)))
    assert set(found) == {"critic_explains_nothing"}
    assert "raise critic.learning_rate (now 1e-05)" in found["critic_explains_nothing"].fix
    assert 'algorithm.name = "grpo"' in found["critic_explains_nothing"].fix
    assert keys(healthy(**critic(0.003, 0.6))) == {}  # the values are there; the returns cannot be told apart further


def test_values_beyond_all_rewards_are_a_divergence_that_explained_variance_does_not_see():
    """Its returns are bootstrapped from the values themselves, and a constant error is no variance."""
    found = keys(healthy(**critic(0.5, 50.0)))
    assert found["critic_diverges"].level == "alarm"
    assert "its values average 50 where rewards average 0.67" in found["critic_diverges"].what
    assert "critic_explains_nothing" not in keys(healthy(**critic(-5.0, 50.0)))  # one finding is enough
    assert keys(healthy(**critic(0.5, 1.2))) == {}


def test_a_kl_in_the_reward_is_part_of_what_a_critic_learns():
    """Values follow returns, which hold the KL; reward/mean does not. Where no reward differs, the KL is all there is to explain."""
    low = critic(0.85, -0.9, **{"reward/mean": 0.3, "reward/std": 0.2})
    kl = {"loss/kl_coef": 0.1, "loss/kl_per_completion": 12.0}
    assert "critic_diverges" in keys(healthy(**low))
    assert "critic_diverges" in keys(healthy(**low, **kl)), "in the loss it is not"
    assert "critic_diverges" not in keys(healthy(**low, **kl), PPO)
    silent = critic(
        -0.3, -0.5, **{"reward/mean": 0.0, "reward/std": 0.0, "reward/success": 0.0, "advantage/useful_groups": 0.0}
    )
    assert "critic_explains_nothing" not in keys(healthy(**silent))


def test_one_batch_of_nearly_equal_returns_says_nothing_about_the_critic():
    assert keys(healthy(**critic(lambda s: -500.0 if s % 10 == 0 else 0.1, 0.6))) == {}
    solved = critic(lambda s: 0.3 if s < 20 else -3.0, 0.6, **{"reward/std": lambda s: 0.4 if s < 20 else 0.1})
    assert keys(healthy(**solved)) == {}


def test_a_loss_that_rises_with_the_spread_of_the_rewards_is_no_divergence():
    assert keys(healthy(**critic(0.3, 0.5, loss=lambda s: 0.01 * s))) == {}


def test_rows_with_nothing_but_a_ruined_critic_are_enough():
    rows = [
        {"step": s, "critic/explained_variance": -5.0, "critic/loss": 10.0 * s, "critic/value_mean": 50.0} for s in range(1, 60)
    ]
    assert [finding.name for finding in diagnose(rows)] == ["critic_diverges"]
    assert "critic.learning_rate" in diagnose(rows)[0].fix
