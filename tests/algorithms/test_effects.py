"""algorithms/compatibility.py both ways, by computing: what it calls idle changes no bit of a step, what it does not call so changes some.

A step is made as the loop makes it: rewards with the overlong penalty, make_batch, and the loss and gradient of its
second pass, under a policy that has moved since, so that ratios lie on both sides of every limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from cohort.algorithms.compatibility import ALWAYS, CONDITIONS, explain_idle
from cohort.algorithms.named import FIELDS, NAMED, PRESETS, list_parameters
from cohort.algorithms.registry import SAMPLED
from cohort.data.prompt_choice import InformativeChoice
from cohort.model.critic import Critic, NoCritic
from cohort.model.frozen import Teacher
from cohort.model.packing import pack
from cohort.model.policy import Policy
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.describe import describe_algorithm
from cohort.recipe.file import load_recipe
from cohort.recipe.schema import CriticConfig, OptimizerConfig, Recipe, TeacherConfig
from cohort.rewards.contract import Scored
from cohort.training.build import EncodedData, make_stream
from cohort.training.experience import Models
from cohort.training.objective import compares_pairs, needs_critic, pushes_on_all_tokens, token_loss, weigh_tokens
from cohort.training.rollouts import Collected, penalize_overlong
from cohort.types import Prompt, Rollout
from conftest import collect_batch, gradients, rollout, tiny_policy

LONGEST = 6
ELSEWHERE = {"refill_rounds", "prompt_choice", "choice_floor", "kl_target", "reference_every", "reference_decay"}
"""Act before a batch is made or after it is trained on: tests/algorithms/test_refill.py, data/test_prompt_choice.py, training/test_kl_control.py and
model/test_reference.py. On one given batch they must do nothing."""
OTHER_VALUES: dict[str, tuple[Any, ...]] = {
    "std_epsilon": (0.1,),
    "gamma": (0.9,),
    "gae_lambda": (0.5,),
    "clip_low": (0.05,),
    "clip_high": (0.05,),
    "dual_clip": (1.5,),
    "ratio_cap": (1.2,),
    "soft_up": (2.0,),
    "soft_down": (2.0,),
    "divergence_limit": (0.02,),
    "divergence_cap": (1.2,),
    "mismatch_cap": (1.1,),
    "kl_coef": (0.3, 0.0),
    "kl_target": (0.5,),
    "reference_every": (2,),
    "reference_decay": (0.5,),
    "entropy_coef": (0.1,),
    "refill_rounds": (2,),
    "choice_floor": (0.5,),
    "overlong_share": (0.9,),
}
"""Of choices that are numbers; the others have all their words tried."""
VARIANTS: list[dict[str, Any]] = [
    {"name": "grpo", "kl_coef": 0.0},
    {"name": "grpo", "kl_corrected": True},
    {"name": "grpo", "region": "dual_clip"},
    {"name": "grpo", "region": "sequence_product", "advantage": "batch_std"},
    {"name": "grpo", "mismatch_weight": "token_truncate", "prompt_choice": "informative"},
    {"name": "grpo", "advantage": "binary_signed", "region": "dual_clip"},
    {"name": "reinforce++", "kl_coef": 0.0, "gamma": 0.95},
    {"name": "online_rft", "region": "dual_clip"},
    {"name": "online_rft", "region": "sequence", "aggregation": "sequence_mean", "kl_coef": 0.1},
    {"name": "online_rft", "overlong_share": 0.5, "kl_coef": 0.1},
    {"name": "online_rft", "region": "soft"},
    {"name": "rft", "kl_coef": 0.1},
    {"name": "sft", "region": "clip", "kl_coef": 0.1},
    {"name": "dpo", "data": "policy"},
    {"name": "dpo", "data": "start"},
]
BASES = [{"name": name} for name in PRESETS] + VARIANTS


def remember_scores(policy: Policy) -> Policy:
    """Hundreds of steps ask it for the same log-probs: equal questions get the first answer again."""
    score, known = policy.score_examples, {}

    def score_examples(examples: list[Any], micro_batch_tokens: int, *skip: bool, **options: bool) -> list[Tensor]:
        asked = (
            (
                one.prompt_ids,
                one.completion_ids,
                one.group,
                tuple(one.loss_mask_T.tolist()),
                tuple((one.advantages_T != 0).tolist()),
            )
            for one in examples
        )
        key = (tuple(asked), micro_batch_tokens, skip, *options.items())
        if key not in known:
            known[key] = score(examples, micro_batch_tokens, *skip, **options)
        return known[key]

    policy.score_examples = score_examples
    return policy


@cache
def policy() -> Policy:
    return remember_scores(tiny_policy(seed=0))


@cache
def reference() -> Policy:
    return remember_scores(tiny_policy(seed=1))


@cache
def moved() -> Policy:
    """The policy some updates later."""
    later = tiny_policy(seed=0)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in later.model.parameters():
            if parameter.dim() >= 2:
                parameter.add_(0.25 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return later


@cache
def critic() -> Critic:
    made = Critic(policy(), CriticConfig(), OptimizerConfig(), torch.float64, 10)
    with torch.no_grad():
        made.model.head.weight.fill_(0.1)
    return made


@cache
def teacher() -> Teacher:
    return Teacher(tiny_policy(seed=2), TeacherConfig(source="elsewhere"))


REWARDS = {
    "policy": [[1.0, 0.0, 0.25, None], [0.75, 0.75, 0.75, 0.75], [0.0, 1.0, 3.0, 0.75], [0.0, 0.0, 0.25, 1.0]],
    "start": [[0.0, 0.0, 1.0, 0.5], [1.0, 0.25, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25], [1.0, 1.0, None, 0.0]],
    "demonstrations": [[1.0], [1.0], [1.0], [1.0]],
    "pairs": [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]],
}


@cache
def rollouts(data: str) -> tuple[Rollout, ...]:
    """As the source gives them: sampled groups with one all equal, one completion cut and steps; or what is written in rows."""
    generator = torch.Generator().manual_seed(len(data))
    made = []
    for group, row in enumerate(REWARDS[data]):
        for sample, reward in enumerate(row):
            equal = len(set(row)) == 1  # and short, so that no penalty for length makes a difference
            length = 2 + (3 * group + sample) % (3 if equal else 5)
            ids = tuple(torch.randint(3, 17, (length,), generator=generator).tolist())
            text = policy().codec.decode(ids)
            one = rollout(group, sample, reward, token_ids=ids, text=text, end="length" if length == LONGEST else "stop")
            if data not in SAMPLED:
                completion = replace(one.completion, end="stop", sampling_logprobs=(0.0,) * length)
                one = replace(one, completion=completion, outcome=replace(one.outcome, success=None))
            elif reward is not None:
                one = replace(one, outcome=replace(one.outcome, steps=((1, row[0]), (len(text), reward))))
            made.append(one)
    return tuple(made)


@dataclass(frozen=True)
class Step:
    plan: list[list[int]]
    tensors: list[Tensor]
    """Advantages and returns of every example, then loss and gradient."""

    def same(self, other: Step) -> bool:
        return (
            self.plan == other.plan
            and len(self.tensors) == len(other.tensors)
            and all(torch.equal(mine, theirs) for mine, theirs in zip(self.tensors, other.tensors, strict=True))
        )


@cache
def base_recipe() -> Recipe:
    return load_recipe(overrides=["passes_per_step=2", "group_size=4", f"max_completion_tokens={LONGEST}"])


def take_step(algorithm: AlgorithmConfig, *, taught: bool = False) -> Step:
    recipe = base_recipe().model_copy(update={"algorithm": algorithm})
    sampled = list(rollouts(algorithm.data))
    if algorithm.overlong_share:
        scored = Scored([one.outcome for one in sampled], {})
        completions = [one.completion for one in sampled]
        outcomes = penalize_overlong(scored, completions, LONGEST, algorithm.overlong_share).outcomes
        sampled = [replace(one, outcome=outcome) for one, outcome in zip(sampled, outcomes, strict=True)]
    has_reference = algorithm.kl_coef > 0 or algorithm.data == "start"
    has_critic = needs_critic(algorithm)
    has_teacher = taught or algorithm.chosen.advantage.traits.needs_teacher
    models = Models(
        policy(),
        reference() if has_reference else None,
        critic() if has_critic else NoCritic(),
        teacher() if has_teacher else None,
    )
    batch = collect_batch(Collected(sampled, {}, 4, 99), models, recipe, 1, algorithm.kl_coef)
    tensors = [example.advantages_T for example in batch.examples]
    tensors += [example.returns_T for example in batch.examples if example.returns_T is not None]
    minibatch = pack(
        [batch.examples[index] for index in batch.plan[1]],
        aggregation=weigh_tokens(algorithm),
        max_completion_tokens=LONGEST,
        micro_batch_tokens=10_000,
        skip_zero_advantage=not pushes_on_all_tokens(algorithm),
        keep_groups=compares_pairs(algorithm),
    )
    for micro in minibatch.micro_batches:
        scores = moved().compute_logprobs(micro, entropy_gradient=algorithm.entropy_coef > 0)
        loss = (token_loss(scores, micro, algorithm, algorithm.kl_coef).loss_M * micro.loss_weights_M).sum()
        loss.backward()
        tensors += [loss.detach(), gradients(moved())]
    return Step(batch.plan, tensors)


def flips(choices: dict[str, Any], choice: str) -> Iterator[AlgorithmConfig]:
    """The algorithm with another value of one choice, for every value that is not refused."""
    annotation = AlgorithmConfig.model_fields[choice].annotation
    named = {field: tuple(NAMED[kind]) for kind, field in FIELDS.items()}
    values = OTHER_VALUES.get(choice) or named.get(choice) or ((False, True) if annotation is bool else get_args(annotation))
    assert values, f"{choice}: name another value in OTHER_VALUES"
    for value in values:
        if value != choices[choice]:
            try:
                yield AlgorithmConfig(**(choices | {choice: value}))
            except ValueError:
                continue


@pytest.mark.parametrize(
    "base",
    [pytest.param(base, marks=pytest.mark.prove if base in VARIANTS else ()) for base in BASES],
    ids=lambda base: ",".join(map(str, base.values())),
)
def test_what_is_idle_changes_no_bit_and_what_is_not_changes_some(base):
    algorithm = AlgorithmConfig(**base)
    choices = algorithm.model_dump()
    without, here = explain_idle(choices), take_step(algorithm)
    assert here.same(take_step(algorithm))
    for choice in AlgorithmConfig.model_fields:
        if choice in ("name", "args"):  # args are for functions of a user's own
            continue
        same = (take_step(flipped).same(here) for flipped in flips(choices, choice))
        if choice in without or choice in ELSEWHERE:
            assert all(same), f"{choice} is said to be idle: {without.get(choice)}"
        else:
            assert not next(same, False) or not all(same), f"{choice} is said to act"


def test_a_teacher_pushes_tokens_down_beside_an_advantage_that_pushes_none():
    choices = {"name": "online_rft", "region": "clip"}
    algorithm, flipped = AlgorithmConfig(**choices), AlgorithmConfig(**choices, clip_low=0.05)
    assert "clip_low" in explain_idle(algorithm.model_dump())
    assert take_step(algorithm).same(take_step(flipped))
    assert "clip_low" not in explain_idle(algorithm.model_dump(), taught=True)
    assert not take_step(algorithm, taught=True).same(take_step(flipped, taught=True))
    assert "without effect here: clip_low" in describe_algorithm(flipped)
    assert "changed from the preset: region clip instead of none, clip_low 0.05" in describe_algorithm(
        flipped, TeacherConfig(source="t")
    )


def test_the_batch_reaches_every_limit():
    """Otherwise a choice could seem idle for want of a case: ratios beyond all limits, on tokens pushed up and down."""
    config = AlgorithmConfig(name="grpo", kl_coef=0.0)
    recipe = base_recipe().model_copy(update={"algorithm": config})
    batch = collect_batch(Collected(list(rollouts("policy")), {}, 4, 99), Models(policy(), None, NoCritic()), recipe, 1, 0.0)
    old_M = torch.cat([example.old_logprobs_T for example in batch.examples]).double()
    now_M = torch.cat(moved().score_examples(batch.examples, 10_000)).double()
    ratio_M, sign_M = (now_M - old_M).exp(), torch.cat([example.advantages_T for example in batch.examples])
    assert ((ratio_M < 0.8) & (sign_M < 0)).any()
    assert ((ratio_M > 1.2) & (sign_M > 0)).any()
    assert ((ratio_M > 3.0) & (sign_M < 0)).any()
    assert ((ratio_M > 5.0) & (sign_M != 0)).any()
    assert any(one.completion.end == "length" and one.outcome.success for one in rollouts("policy"))
    assert any(one.completion.end == "length" for one in rollouts("start"))


def test_the_table_speaks_of_every_choice_and_of_no_other():
    named = {choice for condition in CONDITIONS for choice in condition.choices} | (list_parameters() - ALWAYS)
    assert named | ALWAYS == set(AlgorithmConfig.model_fields)
    assert not named & ALWAYS


def test_every_condition_is_met_and_missed_among_the_cases():
    chosen = [AlgorithmConfig(**base).chosen for base in BASES]
    for condition in CONDITIONS:
        assert {condition.holds(choices) for choices in chosen} == {True, False}, condition.otherwise
    for word in list_parameters():
        assert {any(word in choice.parameters for choice in choices.all) for choices in chosen} == {True, False}, word


SWITCHES = {
    "mismatch_weight", "kl_target", "reference_every", "reference_decay", "entropy_coef", "refill_rounds", "prompt_choice",
    "overlong_share",
}  # fmt: skip
"""Choices that are off unless switched on."""


@pytest.mark.parametrize("base", BASES, ids=lambda base: ",".join(map(str, base.values())))
def test_what_may_not_be_switched_on_is_idle(base):
    choices = AlgorithmConfig(**base).model_dump()
    for choice in SWITCHES:
        assert any(flips(choices, choice)) or choice in explain_idle(choices), choice


def test_who_has_a_reference_that_may_move_and_an_estimate_of_the_kl():
    without = explain_idle(AlgorithmConfig(name="dpo").model_dump())
    assert {"kl_estimator", "kl_in", "kl_corrected", "kl_target"} <= without.keys()
    assert not {"kl_coef", "reference_every", "reference_decay"} & without.keys()
    assert explain_idle(AlgorithmConfig(name="rloo").model_dump())["kl_corrected"] == "only a KL in the loss is corrected"
    fixed = explain_idle(AlgorithmConfig(name="rft", kl_coef=0.1).model_dump())
    assert "kl_estimator" not in fixed
    assert (
        fixed["reference_every"]
        == fixed["reference_decay"]
        == "data 'start' is sampled from the reference, which must not change"
    )


def test_the_floor_acts_where_prompts_are_chosen_and_nowhere_else():
    """Half of 40 prompts are hopeless: which are drawn depends on their floor, unless all are drawn in turn."""
    prompts = [Prompt(index, "q", {}, (5, 6)) for index in range(40)]
    for word in ("stream", "informative"):
        drawn = []
        for floor in (0.05, 1.0):
            algorithm = AlgorithmConfig(prompt_choice=word, choice_floor=floor)
            recipe = base_recipe().model_copy(update={"algorithm": algorithm})
            stream = make_stream(recipe, EncodedData(prompts, {}, [], [], {}))
            if isinstance(stream, InformativeChoice):
                stream.record({index: (0 if index < 20 else 4, 8) for index in range(40)})
            drawn.append([prompt.index for prompt in stream.take(0, 40)])
        assert (drawn[0] == drawn[1]) == ("choice_floor" in explain_idle(algorithm.model_dump()))


def test_a_run_says_which_of_its_changes_have_no_effect():
    said = describe_algorithm(AlgorithmConfig(name="cispo", clip_low=0.1, gamma=0.9, ratio_cap=4.0))
    assert (
        "(changed from the preset: ratio_cap 4.0 instead of 5.0); without effect here: gamma (used only by advantage " in said
    )
    assert said.endswith("clip_low (used only by region 'clip', 'dual_clip', 'sequence_product' and 'sequence')")
    masked = describe_algorithm(AlgorithmConfig(name="sft", mask_truncated=True))
    assert "truncated completions masked" not in masked
    assert "changed" not in masked
    assert "without effect here: mask_truncated (data 'demonstrations' is not sampled" in masked
    acting = describe_algorithm(AlgorithmConfig(name="reinforce++", gamma=0.9, mask_truncated=True))
    assert "truncated completions masked (changed from the preset: gamma 0.9 instead of 1.0, mask_truncated True" in acting
    assert "without effect" not in acting
