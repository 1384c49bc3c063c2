"""Combinations that a recipe refuses, each with its reason and a fix that is accepted; no rule of the code is missing."""

from __future__ import annotations

import re

import pytest

from cohort.algorithms.compatibility import CONDITIONS, CONTRADICTIONS, OFF
from cohort.errors import RecipeError
from cohort.recipe.file import load_recipe
from cohort.recipe.rules import RULES

COMBINATIONS = [  # refused, because, instead
    ("algorithm=sft advantage=group_normalized", "demonstrations have no rewards to compare", "algorithm=sft"),
    ("algorithm=sft data=policy", "uniform` would push wrong samples up too", "algorithm=online_rft"),
    ("algorithm=grpo data=pairs", "only `dpo` trains on pairs", "algorithm=dpo"),
    ("algorithm=grpo data=start", "samples of the start grow stale; the ratio soon clips every token", "algorithm=rft"),
    (
        "algorithm=rft mismatch_weight=token_truncate",
        "the weight corrects samples of the policy",
        "algorithm=online_rft mismatch_weight=token_truncate",
    ),
    ("algorithm=sft region=divergence", "no engine sampled the data", "algorithm=sft"),
    (
        "algorithm=dppo mismatch_weight=token_truncate",
        "its ratio includes the engine",
        "algorithm=dr_grpo mismatch_weight=token_truncate",
    ),
    ("algorithm=dpo advantage=group_normalized", "a pair is the best and the worst", "algorithm=dpo"),
    ("algorithm=dpo kl_coef=0", "it is DPO's β; with 0 the loss is constant", "algorithm=dpo kl_coef=0.1"),
    ("algorithm=dpo kl_target=1", "DPO's KL is implicit", "algorithm=dpo kl_coef=1"),
    ("algorithm=dpo data=policy mismatch_weight=token_mask", "a pair's loss has no ratio", "algorithm=dpo data=policy"),
    ("algorithm=dpo entropy_coef=0.1", "a pair's loss has no entropy term", "algorithm=dpo"),
    ("algorithm=dpo aggregation=token_mean", "one loss per pair; a pair is a group", "algorithm=dpo"),
    ("region=dual_clip dual_clip=1.1", "the second clip is inside the first", "region=dual_clip dual_clip=3"),
    ("algorithm=gspo aggregation=token_mean", "one value per completion would count once per token", "algorithm=gspo"),
    (
        "algorithm=ppo region=sequence aggregation=sequence_mean",
        "one ratio per completion needs one advantage per completion",
        "algorithm=ppo",
    ),
    ("kl_estimator=k1", "plain in the loss its gradient is 0", "kl_estimator=k1 kl_corrected=true"),
    ("kl_estimator=k2 kl_corrected=true", "right when plain, wrong when corrected", "kl_estimator=k2"),
    ("algorithm=rloo kl_corrected=true", "the KL is in the reward, not in the loss", "algorithm=rloo"),
    ("algorithm=rloo kl_estimator=k3", "in the reward only k1 has the gradient of the KL", "algorithm=rloo"),
    (
        "algorithm=online_rft kl_coef=0.01 kl_estimator=k1 kl_in=completion_reward",
        "binary` reads success, not the reward",
        "algorithm=online_rft kl_coef=0.01",
    ),
    (
        "kl_in=token_reward kl_estimator=k1",
        "GRPO's advantage takes one reward per completion",
        "kl_in=completion_reward kl_estimator=k1",
    ),
    ("algorithm=dr_grpo kl_target=1", "it adapts `kl_coef`, which is 0", "algorithm=dr_grpo kl_coef=0.01 kl_target=1"),
    ("reference_every=5 reference_decay=0.9", "both move the reference", "reference_every=5"),
    ("algorithm=dapo reference_every=5", "no reference to move", "algorithm=dapo kl_coef=0.005 reference_every=5"),
    ("algorithm=dpo data=start reference_every=5", "the start itself samples", "algorithm=dpo data=policy reference_every=5"),
    ("algorithm=sft refill_rounds=2", "nothing is sampled", "algorithm=grpo refill_rounds=2"),
    ("algorithm=ppo refill_rounds=2", "PPO also learns from groups of equal rewards", "algorithm=ppo"),
    ("algorithm=ppo zero_variance=drop", "the same", "algorithm=ppo"),
    (
        "algorithm=rft reward_model.iterations=2",
        "samples of the start are not rescored",
        "algorithm=grpo reward_model.iterations=2",
    ),
    (
        "algorithm=online_rft reward_model.iterations=2",
        "binary` reads success, never the learned reward",
        "algorithm=grpo reward_model.iterations=2",
    ),
    (
        "algorithm=dapo reward_model.iterations=2",
        "a learned score has no scale; the overlong penalty has one",
        "algorithm=dapo overlong_share=0 reward_model.iterations=2",
    ),
    ("num_steps=3 reward_model.iterations=5", "some fits would train nothing", "num_steps=5 reward_model.iterations=5"),
    ("algorithm=opd", "no credit without a teacher", "algorithm=opd teacher=a_folder"),
    ("teacher.coef=0.5", "no teacher", "teacher=a_folder teacher.coef=0.5"),
    (
        "algorithm=rft teacher=a_folder",
        "a teacher scores samples of the policy, not of the start",
        "algorithm=online_rft teacher=a_folder",
    ),
    (
        "algorithm=dpo data=policy teacher=a_folder",
        "a teacher credits tokens, a pair is scored whole",
        "algorithm=grpo teacher=a_folder",
    ),
    (
        "algorithm=gspo teacher=a_folder",
        "one ratio per completion needs one advantage per completion",
        "algorithm=cispo teacher=a_folder",
    ),
    ("group_size=1", "the group is the baseline", "algorithm=reinforce++ group_size=1"),
    (
        "environment.source=mine:Game advantage=process",
        "the policy decides how many steps there are",
        "environment.source=mine:Game advantage=turns",
    ),
    (
        "environment.source=mine:Game reward_model.iterations=1",
        "a reward model scores single completions, not episodes",
        "environment.source=mine:Game",
    ),
    ("advantage=turns", "the turns of an environment, and there is none", "environment.source=mine:Game advantage=turns"),
    ("temperature=0", "all completions of a group are the same", "temperature=0.6"),
    ("top_p=0.9", "cutting probability mass biases the ratio", "evaluation.top_p=0.9"),
]


@pytest.mark.parametrize(("refused", "because", "instead"), COMBINATIONS)
def test_a_combination_is_refused_and_its_fix_is_accepted(refused, because, instead):
    with pytest.raises(RecipeError):
        load_recipe(overrides=refused.split())
    load_recipe(overrides=instead.split())


ABOUT_CHOICES = ("algorithm.", "reward_model.iterations", "teacher.", "train.group_size", "sampling.temperature")


def test_no_rule_of_the_code_is_missing():
    reasons = []
    for refused, _, _ in COMBINATIONS:
        try:
            load_recipe(overrides=refused.split())
        except RecipeError as problem:
            reasons.append(str(problem))
    switches = [condition.otherwise for condition in CONDITIONS if condition.refused and OFF.keys() & {*condition.choices}]
    texts = [
        *switches,
        *(reason for _, reason in CONTRADICTIONS),
        *(reason for _, reason in RULES if reason.startswith(ABOUT_CHOICES)),
    ]
    assert len(texts) >= 30
    for text in texts:
        longest = max(re.split(r"\{.*?\}", text), key=len)
        assert any(longest in reason for reason in reasons), longest
