"""Named algorithms as rows of choices: what each name stands for, what cannot be combined, and what a run says of it."""

from __future__ import annotations

import pytest

from cohort.algorithms.named import NAMED, PRESETS
from cohort.errors import RecipeError
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.describe import describe_algorithm
from cohort.recipe.file import dump_recipe, load_recipe
from cohort.recipe.schema import TeacherConfig
from session_tools import tiny

TABLE = {
    "grpo": ("policy", "group_normalized", "clip", "sequence_mean", "k3", "loss", 0.04),
    "grpo_process": ("policy", "process", "clip", "sequence_mean", "k3", "loss", 0.04),
    "dr_grpo": ("policy", "group_centered", "clip", "constant", None, None, 0.0),
    "dapo": ("policy", "group_normalized", "clip", "token_mean", None, None, 0.0),
    "reinforce++": ("policy", "global_normalized", "clip", "token_mean", "k1", "token_reward", 0.01),
    "reinforce++_baseline": ("policy", "batch_whitened", "clip", "token_mean", "k2", "loss", 0.01),
    "rloo": ("policy", "leave_one_out", "none", "sequence_sum", "k1", "completion_reward", 0.01),
    "gspo": ("policy", "group_normalized", "sequence", "sequence_mean", None, None, 0.0),
    "cispo": ("policy", "group_normalized", "cispo", "token_mean", None, None, 0.0),
    "sapo": ("policy", "group_normalized", "soft", "sequence_mean", None, None, 0.0),
    "dppo": ("policy", "group_centered", "divergence", "constant", None, None, 0.0),
    "maxrl": ("policy", "relative_to_mean", "clip", "token_mean", None, None, 0.0),
    "gdpo": ("policy", "parts_normalized", "clip", "sequence_mean", None, None, 0.0),
    "lite_ppo": ("policy", "batch_std", "clip", "token_mean", None, None, 0.0),
    "ppo": ("policy", "gae", "clip", "token_mean", "k1", "token_reward", 0.01),
    "online_rft": ("policy", "binary", "none", "token_mean", None, None, 0.0),
    "rft": ("start", "binary", "none", "token_mean", None, None, 0.0),
    "opd": ("policy", "none", "none", "token_mean", None, None, 0.0),
    "sft": ("demonstrations", "uniform", "none", "token_mean", None, None, 0.0),
    "dpo": ("pairs", "best_and_worst", "dpo", "prompt_mean", None, None, 0.1),
}
"""The table of named algorithms, written once more by hand."""


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_name_is_its_row_of_choices(name):
    chosen = AlgorithmConfig(name=name)
    data, advantage, region, aggregation, estimator, kl_in, kl_coef = TABLE[name]
    assert (chosen.data, chosen.advantage, chosen.region, chosen.aggregation) == (data, advantage, region, aggregation)
    assert chosen.kl_coef == kl_coef
    if estimator:
        assert (chosen.kl_estimator, chosen.kl_in) == (estimator, kl_in)


def test_the_numbers_of_the_papers():
    dapo, gspo, ppo = AlgorithmConfig(name="dapo"), AlgorithmConfig(name="gspo"), AlgorithmConfig(name="ppo")
    assert (dapo.clip_low, dapo.clip_high, dapo.overlong_share) == (0.2, 0.28, 4096 / 20480)
    assert dapo.refill_rounds > 0
    assert (gspo.clip_low, gspo.clip_high) == (3e-4, 4e-4)
    assert (ppo.clip_low, ppo.gamma, ppo.gae_lambda) == (0.2, 1.0, 0.95)
    assert AlgorithmConfig(name="cispo").ratio_cap == 5.0
    sapo, dppo = AlgorithmConfig(name="sapo"), AlgorithmConfig(name="dppo")
    assert (sapo.soft_up, sapo.soft_down) == (1.0, 1.05)
    assert (dppo.divergence_limit, dppo.divergence_cap, dppo.weighs_mismatch) == (0.15, 0.0, False)
    for name in ("maxrl", "gdpo", "lite_ppo"):
        assert (AlgorithmConfig(name=name).clip_low, AlgorithmConfig(name=name).clip_high) == (0.2, 0.2)


def test_every_word_that_a_choice_is_told_is_a_word_of_the_recipe():
    told = {word for choices in NAMED.values() for choice in choices.values() for word in choice.parameters}
    assert told <= set(AlgorithmConfig.model_fields)
    assert {"clip_low", "std_epsilon", "gae_lambda", "ratio_cap"} <= told


CONTRADICTIONS = [
    ({"name": "grpo", "kl_estimator": "k1"}, ["k1", "expected gradient of exactly 0", "kl_corrected"]),
    ({"name": "grpo", "kl_in": "completion_reward"}, ["completion_reward", "k3", 'kl_estimator = "k1"']),
    ({"name": "rloo", "kl_estimator": "k2"}, ["k2", "only k1 has the gradient"]),
    (
        {"name": "grpo", "kl_in": "token_reward", "kl_estimator": "k1"},
        ["token_reward", "group_normalized", "completion_reward"],
    ),
    ({"name": "grpo", "kl_estimator": "k2", "kl_corrected": True}, ["k2", "already that of the KL", "kl_corrected = false"]),
    ({"name": "dpo", "entropy_coef": 0.1}, ["dpo", "entropy_coef = 0"]),
    ({"name": "gspo", "advantage": "global_normalized", "gamma": 0.9}, ["gamma 0.9", "one advantage per completion"]),
    ({"name": "rloo", "kl_corrected": True}, ["kl_corrected", "false"]),
    ({"name": "online_rft", "kl_coef": 0.1, "kl_in": "completion_reward", "kl_estimator": "k1"}, ["binary", '"loss"']),
    ({"name": "dr_grpo", "kl_target": 1.0}, ["kl_target", "kl_coef", "positive"]),
    ({"name": "grpo", "reference_every": 5, "reference_decay": 0.9}, ["reference_every", "reference_decay", "set only one"]),
    ({"name": "dapo", "reference_every": 5}, ["reference_every", "kl_coef is 0"]),
    ({"name": "dpo", "data": "start", "reference_every": 5}, ["start", "must not change"]),
    ({"name": "gspo", "aggregation": "token_mean"}, ["sequence", "once per token", "sequence_mean"]),
    ({"name": "rloo", "region": "sequence_product"}, ["sequence_product", "sequence_mean"]),
    (
        {"name": "ppo", "region": "sequence", "aggregation": "sequence_mean"},
        ["sequence", "gae", "one advantage per completion"],
    ),
    ({"name": "sft", "advantage": "group_normalized"}, ["demonstrations", "uniform"]),
    ({"name": "sft", "data": "policy"}, ["uniform", "right or wrong", "binary"]),
    ({"name": "dpo", "kl_coef": 0.0}, ["dpo", "beta", "0.1"]),
    ({"name": "dpo", "aggregation": "token_mean"}, ["pair", "prompt_mean"]),
    ({"name": "dpo", "advantage": "group_normalized"}, ["dpo", "best_and_worst"]),
    ({"name": "grpo", "data": "pairs"}, ["pairs", "dpo"]),
    ({"name": "grpo", "data": "start"}, ["start", "ratio", '"none"']),
    ({"name": "dppo", "data": "start"}, ["start", "ratio", '"none"']),
    ({"name": "sft", "region": "divergence"}, ["divergence", "demonstrations", "not sampled", '"none"']),
    ({"name": "dppo", "mismatch_weight": "token_mask"}, ["divergence", "token_mask", 'mismatch_weight = "off"']),
    (
        {"name": "gdpo", "kl_coef": 0.1, "kl_in": "completion_reward", "kl_estimator": "k1"},
        ["completion_reward", "parts_normalized", '"loss"'],
    ),
    ({"name": "maxrl", "kl_coef": 0.1, "kl_in": "completion_reward", "kl_estimator": "k1"}, ["relative_to_mean", '"loss"']),
    ({"name": "rft", "mismatch_weight": "token_truncate"}, ["mismatch_weight", "start", "off"]),
    ({"name": "grpo", "region": "dual_clip", "dual_clip": 1.1}, ["dual_clip", "1 + clip_high"]),
    (
        {"name": "online_rft", "zero_variance": "drop"},
        ["binary", "also learns from groups with equal rewards", 'zero_variance = "keep"'],
    ),
    ({"name": "sft", "zero_variance": "drop"}, ["demonstrations", 'zero_variance = "keep"']),
    ({"name": "sft", "refill_rounds": 2}, ["refill_rounds", "demonstrations"]),
    ({"name": "ppo", "refill_rounds": 2}, ["refill_rounds", "gae"]),
]


@pytest.mark.parametrize(("choices", "words"), CONTRADICTIONS)
def test_what_makes_no_sense_is_refused_with_the_reason(choices, words):
    with pytest.raises(RecipeError) as problem:
        load_recipe(values={f"algorithm.{key}": value for key, value in choices.items()})
    said = str(problem.value)
    assert said.startswith("algorithm: ")
    assert [word for word in words if word not in said] == []
    assert "\n" not in said


@pytest.mark.parametrize(
    "choices",
    [
        {"name": "rloo", "region": "sequence_product", "aggregation": "sequence_mean"},
        {"name": "grpo", "kl_estimator": "k1", "kl_corrected": True},
        {"name": "grpo", "region": "dual_clip", "aggregation": "prompt_mean"},
        {"name": "reinforce++", "kl_in": "completion_reward"},
        {"name": "dpo", "data": "policy"},
        {"name": "rft", "advantage": "binary_signed"},
        {"name": "dapo", "refill_rounds": 0, "prompt_choice": "informative"},
    ],
)
def test_any_single_choice_can_be_overridden(choices):
    recipe = load_recipe(values={f"algorithm.{key}": value for key, value in choices.items()})
    assert recipe.algorithm.model_dump().items() >= choices.items()
    # Written out in full, and read back the same.
    text = dump_recipe(recipe)
    for key, value in recipe.algorithm.model_dump().items():
        assert f"{key} = " in text or f"[algorithm.{key}]" in text, (key, value)


def test_an_unknown_algorithm_is_answered_with_the_nearest():
    with pytest.raises(RecipeError, match=r"unknown algorithm 'reinforce'.*did you mean 'reinforce\+\+'"):
        load_recipe(overrides=["algorithm=reinforce"])


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [("reinforce++", None), ("ppo", None), ("online_rft", None), ("grpo", "at least 2"), ("rloo", "at least 2")],
)
def test_a_group_of_one_is_refused_exactly_where_the_group_is_the_baseline(algorithm, message):
    words = [f"algorithm={algorithm}", "group_size=1"]
    if message is None:
        assert load_recipe(overrides=words).train.group_size == 1
    else:
        with pytest.raises(RecipeError, match=message):
            load_recipe(overrides=words)


def test_one_word_is_said_in_full_and_with_its_changes():
    said = describe_algorithm(AlgorithmConfig(name="dapo", kl_coef=0.01))
    for word in ("dapo", "samples of the policy", "group_normalized", "clip 0.2/0.28", "token_mean", "k3 0.01 in the loss"):
        assert word in said
    assert "dynamic sampling" in said
    assert "kl_coef 0.01 instead of 0.0" in said
    assert "changed" not in describe_algorithm(AlgorithmConfig(name="ppo"))


@pytest.mark.slow
def test_a_run_prints_what_its_word_stands_for(tmp_path, capsys):
    from cohort.session import start

    short = {"train.num_steps": 1, "evaluation.samples": 0, "monitors.console": True, "algorithm.name": "cispo"}
    start(tiny(tmp_path, "said", **short, **{"algorithm.kl_coef": 0.0}))
    assert (
        "algorithm cispo: samples of the policy -> group_normalized -> cispo 5 -> token_mean; no KL" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"algorithm": "rft"}, ["'start'", "not sampled during training"]),
        ({"algorithm": "sft"}, ["'demonstrations'", "not sampled during training"]),
        ({"algorithm": "grpo_process"}, ["'process'", "not the learned reward"]),
        ({"algorithm": "online_rft"}, ["'binary'", "not the learned reward"]),
        ({"algorithm": "gdpo"}, ["'parts_normalized'", "not the learned reward"]),
        ({"algorithm": "maxrl"}, ["'relative_to_mean'", "not the learned reward"]),
        ({"algorithm": "dapo"}, ["overlong_share = 0"]),
        ({"train.num_steps": 2}, ["3 iterations", "num_steps = 2"]),
    ],
)
def test_a_reward_model_that_nothing_would_read_is_refused(values, words):
    with pytest.raises(RecipeError) as problem:
        load_recipe(values={"reward_model.iterations": 3, **values})
    assert str(problem.value).startswith("reward_model.iterations: ")
    assert [word for word in words if word not in str(problem.value)] == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"algorithm": "opd"}, ["algorithm.advantage: 'none'", "teacher.source", "same tokenizer"]),
        ({"algorithm.advantage": "none"}, ["algorithm.advantage: 'none'", "teacher.source"]),
        ({"teacher.coef": 0.5}, ["teacher.coef: there is no teacher", "teacher.source", "leave coef out"]),
        ({"teacher.revision": "main"}, ["teacher.revision: there is no teacher"]),
        ({"algorithm": "rft", "teacher": "t"}, ["teacher.source: ", "'start'", "'policy'"]),
        ({"algorithm": "sft", "teacher": "t"}, ["teacher.source: ", "'demonstrations'"]),
        ({"algorithm": "dpo", "algorithm.data": "policy", "teacher": "t"}, ["teacher.source: region 'dpo'", "'clip'"]),
        ({"algorithm": "gspo", "teacher": "t"}, ["teacher.source: region 'sequence'", "single tokens", "'clip'"]),
    ],
)
def test_a_teacher_that_has_nothing_to_say_or_is_missing_is_refused(values, words):
    with pytest.raises(RecipeError) as problem:
        load_recipe(values=values)
    assert str(problem.value).startswith(words[0])
    assert [word for word in words if word not in str(problem.value)] == []


def test_a_teacher_may_stand_beside_any_credit_of_what_the_policy_samples():
    for name in ("grpo", "ppo", "reinforce++", "online_rft", "cispo", "dapo", "opd"):
        recipe = load_recipe(overrides=[f"algorithm={name}", "teacher=t", "teacher.coef=0.5"])
        assert (recipe.teacher.source, recipe.teacher.coef) == ("t", 0.5)
    assert load_recipe(overrides=["algorithm=opd", "teacher=t", "group_size=1"]).train.group_size == 1
    assert load_recipe(overrides=["algorithm=opd", "num_steps=0", "cold_start.num_steps=1"]).teacher.source == ""
    said = describe_algorithm(AlgorithmConfig(name="opd"), TeacherConfig(source="t", coef=0.5))
    assert (
        said
        == "opd: samples of the policy -> none -> region none -> token_mean; no KL; every token also by teacher t, coef 0.5"
    )


def test_a_group_of_one_is_warned_of_only_where_groups_are_compared():
    from cohort.recipe.rules import list_warnings

    words = ["model=somewhere", "group_size=1", "teacher=t"]
    assert not any("group_size" in warning for warning in list_warnings(load_recipe(overrides=["algorithm=opd", *words])))
    (warning,) = list_warnings(load_recipe(overrides=["model=somewhere", "group_size=2"]))
    assert "train.group_size = 2" in warning


def test_stale_data_without_a_ratio_is_warned_of_also_from_scratch():
    from cohort.recipe.rules import list_warnings

    assert list_warnings(load_recipe(overrides=["algorithm=rloo"])) == []
    (warning,) = list_warnings(load_recipe(overrides=["algorithm=rloo", "passes_per_step=2"]))
    assert "stale" in warning
    assert list_warnings(load_recipe(overrides=["algorithm=rft", "passes_per_step=2"])) == []  # never on-policy anyway


def test_a_ratio_to_the_engine_corrects_stale_data_without_old_log_probs():
    """The engine's log-probs came with the completions: nothing is stale without correction, and no forward is spent."""
    from cohort.recipe.rules import list_warnings
    from cohort.training.objective import has_ratio

    assert list_warnings(load_recipe(overrides=["algorithm=dppo", "passes_per_step=2"])) == []
    assert not has_ratio(AlgorithmConfig(name="dppo"))
    assert has_ratio(AlgorithmConfig(name="dppo", kl_coef=0.1, kl_corrected=True))  # which is corrected by the old ones
    assert has_ratio(AlgorithmConfig(name="sapo"))


FORMAT = {"function": "think_format"}
ANSWER = {"function": "math_answer"}


@pytest.mark.parametrize(
    ("algorithm", "rewards", "unread"),
    [
        ("maxrl", [ANSWER, FORMAT], "think_format"),
        ("maxrl", [FORMAT, ANSWER | {"outcome": True}], "think_format"),
        ("online_rft", [ANSWER, FORMAT, {"function": "length", "name": "short"}], "think_format, short"),
        ("rft", [ANSWER, FORMAT], "think_format"),
        ("maxrl", [ANSWER, FORMAT | {"weight": 0.0}], ""),
        ("maxrl", [ANSWER], ""),
        ("grpo", [ANSWER, FORMAT], ""),
        ("gdpo", [ANSWER, FORMAT], ""),
        ("sft", [ANSWER, FORMAT], ""),
    ],
)
def test_rewards_that_the_advantage_does_not_read_are_said_to_be_without_effect(algorithm, rewards, unread):
    from cohort.recipe.file import build_recipe
    from cohort.recipe.rules import list_warnings

    warnings = list_warnings(build_recipe({"algorithm": {"name": algorithm}, "rewards": rewards}))
    if not unread:
        assert warnings == []
    else:
        (warning,) = warnings
        assert f"uses only success, so these rewards are measured but have no effect: {unread}. " in warning
        assert "weight = 0" in warning


@pytest.mark.parametrize("algorithm", ["dpo", "sft"])
def test_written_data_needs_neither_a_group_nor_a_temperature(algorithm):
    recipe = load_recipe(overrides=[f"algorithm={algorithm}", "group_size=1", "temperature=0"])
    assert recipe.train.group_size == 1
