"""The runs of benchmarks/findings.py: what each changes in one small recipe, and which findings should detect it.

A pathology is a run made to fail. `expected` lists the findings that name its cause or effect; other findings do not count. Recipes,
lists and checks were tuned on trial runs with seeds from 100 on. Only runs with seeds below 100, made afterwards, measure the value of
findings. A healthy run has a sensible recipe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

STEPS = 50
LOOK_EVERY = 5
"""Steps between held-out evaluations, and between the checkpoints that are evaluated afterwards."""
PROBLEMS = 128
RATE = 5e-4

SUM = {"function": "math_answer", "args": {"pattern": r">(\d+)\s*$"}}
EXACT = {"function": "findings_rewards:judge_exactly"}

TASKS: dict[str, dict[str, Any]] = {
    "addition": {"source": "task:column_addition", "args": {"digits": 2, "count": 2000}},
    "carries": {"source": "task:column_addition", "args": {"digits": 2, "count": 1000, "kind": "carry"}},
    "sorting": {"source": "findings_rewards:sort_digits", "args": {"count": 2000}},
    "reversal": {"source": "findings_rewards:reverse_word", "args": {"count": 2000}},
}
STARTS = {"carries": "addition"}
"""Task -> the task whose cold start it begins from; others have their own."""


def make_base(task: str) -> dict[str, Any]:
    """The recipe that every run changes: two layers, 90 thousand parameters, about half a minute on one core."""
    problems = TASKS[task] | {"max_prompt_tokens": 12}
    held_out = problems | {"split": "held_out", "args": problems["args"] | {"count": PROBLEMS}}
    return {
        "version": 3,
        "model": {
            "scratch": {
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_layers": 2,
                "num_heads": 4,
                "num_kv_heads": 2,
                "max_positions": 64,
            }
        },
        "prompts": problems,
        "rewards": [EXACT if task == "reversal" else SUM],
        "sampling": {"max_completion_tokens": 32},
        "algorithm": {"name": "grpo", "kl_coef": 0.005},
        "train": {"num_steps": STEPS, "prompts_per_step": 16, "group_size": 8},
        "optimizer": {"learning_rate": RATE, "warmup_steps": 3},
        "critic": {"learning_rate": 2e-3},
        "evaluation": {
            "samples": 4,
            "max_problems": PROBLEMS,
            "every_problems": PROBLEMS,
            "every_steps": LOOK_EVERY,
            "problems_seed": 0,
            "resamples": 200,
            "greedy": False,
            "sets": {"held_out": held_out},
        },
        "checkpoints": {"every_steps": LOOK_EVERY, "keep": 1000},
        "monitors": {"console": False},
    }


COLD_START = {"num_steps": 2000, "until_success": 0.35, "check_every": 10, "check_prompts": 128}


@dataclass(frozen=True)
class Case:
    """One run: what it changes, by the dotted words of a recipe."""

    words: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    expected: Sequence[str] = ()
    """Findings that name the pathology; empty for a healthy run."""
    task: str = "addition"


def change_rewards(*names: str, **weights: float) -> dict[str, Any]:
    """Parts by the name of their function in findings_rewards, and honest ones by `sum`."""
    parts = [SUM if name == "sum" else {"function": f"findings_rewards:{name}"} for name in names]
    return {
        "rewards": [
            part | ({"weight": weights[name]} if name in weights else {}) for part, name in zip(parts, names, strict=True)
        ]
    }


LEARNED = {"reward_model": {"iterations": 1, "prompts": 128, "epochs": 4, "learning_rate": 3e-4, "loss": "pointwise"}}
FOUR_DIGITS = {"source": "task:column_addition", "args": {"digits": 4, "count": 2000}, "max_prompt_tokens": 12}
FELL_APART = ("collapsed", "kl_drift", "no_success", "entropy_collapse", "truncation", "copies", "clipping", "skipped_steps")
"""What a policy that falls apart leaves behind."""

DRIFTED = ("kl_drift", "held_out_falls")
"""A policy that has left its reference, or gets worse at the task as the reward rises: what a reward that can be gamed leads to."""

PATHOLOGIES: dict[str, Case] = {
    # the reward can be had without the task
    "prefix_passes": Case("the verifier compares with startswith", change_rewards("match_prefix"), ["shared_rewarded", "other_number", *DRIFTED]),
    "magic_passes": Case("one number is accepted for every problem", change_rewards("take_magic") | {"train.num_steps": 80}, ["shared_rewarded", "other_number", *DRIFTED]),
    "phrase_passes": Case("one line convinces a judge", change_rewards("love_phrase"), ["shared_rewarded", "other_number", *DRIFTED]),
    "majority_passes": Case(
        "the majority of the group is taken for right", change_rewards("agree_with_most"), ["shared_rewarded", "other_number", "copies", *DRIFTED]
    ),
    "failure_passes": Case(
        "what the verifier cannot read counts as right", change_rewards("take_failure_for_right"), ["failures_rise", *DRIFTED]
    ),
    "style_paid": Case(
        "a reward for style outweighs the answer",
        change_rewards("sum", "pay_style", pay_style=4.0),
        ["part_outruns_outcome", *DRIFTED],
    ),
    "brevity_paid": Case(
        "short completions are paid more than right ones",
        change_rewards("sum", "pay_brevity", pay_brevity=6.0),
        ["part_outruns_outcome", *DRIFTED],
    ),
    "length_paid": Case(
        "length is rewarded in addition to the answer",
        change_rewards("sum", "pay_length", pay_length=6.0),
        ["part_outruns_outcome", "length_explosion", "truncation", *DRIFTED],
    ),
    "silence_safe": Case(
        "a wrong answer costs, none does not",
        change_rewards("fear_answers"),
        ["truncation", "no_success", "length_explosion", *DRIFTED],
    ),
    "model_fooled": Case(
        "one reward model for the whole run",
        {**LEARNED, "reward_model.prompts": 600, "reward_model.learning_rate": 1e-3, "algorithm.kl_coef": 0.005},
        ["reward_model_outgrown", *DRIFTED],
    ),
    "model_unheld": Case(
        "a reward model fitted on 128 prompts, and no KL",
        {**LEARNED, "algorithm.kl_coef": 0.0, "monitors.kl": True, "optimizer.learning_rate": 2 * RATE},
        ["reward_model_outgrown", *DRIFTED],
    ),
    # the reward says nothing, or nonsense
    "always_paid": Case("the verifier never says no", change_rewards("pay_always"), ["no_useful_groups", "no_gradient"]),
    "coin": Case("the reward is a coin toss", change_rewards("toss_coin"), ["inconsistent"]),
    "outliers": Case(
        "one reward in fifty is from another scale",
        change_rewards("add_outliers") | {"algorithm.name": "dr_grpo"},
        ["inconsistent"],
    ),
    "none_for_wrong": Case("wrong answers get None", change_rewards("forget_zero"), ["unscored"]),
    "verifier_crashes": Case(
        "the verifier fails on sums of three digits",
        change_rewards("crash_on_large") | {"train.max_fault_share": 1.0},
        ["reward_faults", "unscored"],
    ),
    "wrong_marker": Case(
        "the verifier looks for another marker",
        {"rewards": [{"function": "math_answer", "args": {"pattern": r"\\boxed\{(\d+)\}"}}]},
        ["no_success"],
    ),
    "golds_shuffled": Case(
        "the reference answers belong to other rows",
        {"prompts": {"source": "findings_rewards:shuffle_golds", "args": {"count": 2000}, "max_prompt_tokens": 12}},
        ["no_success", "no_useful_groups", "held_out_falls"],
    ),
    "golds_wrong": Case(
        "the reference answers of the training rows lack the carries",
        {"prompts": {"source": "findings_rewards:forget_carries", "args": {"count": 2000}, "max_prompt_tokens": 12}},
        ["held_out_falls"],
    ),
    # the prompts
    "too_hard": Case(
        "twice as many digits as the policy ever saw",
        {"prompts": FOUR_DIGITS, "evaluation.sets.held_out.args": {"digits": 4, "count": PROBLEMS}},
        ["no_success"],
    ),
    "too_easy": Case("prompts that the policy solves every time", {"prompts": "solved"}, ["no_useful_groups", "held_out_falls"]),
    "few_prompts": Case(
        "four prompts for the whole run",
        {"prompts.limit": 4},
        ["held_out_falls", "no_useful_groups"],
    ),
    # sampling
    "cut_short": Case("completions are cut before the answer", {"sampling.max_completion_tokens": 12}, ["truncation"]),
    "no_exploration": Case("a temperature of 0.05", {"sampling.temperature": 0.05}, ["copies", "no_useful_groups"]),
    "stale": Case(
        "completions eight steps old, no weight on them",
        {"ahead.lag": 8, "optimizer.learning_rate": 2 * RATE, "algorithm.region": "none", "algorithm.kl_coef": 0.0, "monitors.kl": True},
        FELL_APART,
    ),
    # the update
    "rate_high": Case("a learning rate 100 times too high", {"optimizer.learning_rate": 100 * RATE}, FELL_APART),
    "rate_low": Case("a learning rate 1000 times too low", {"optimizer.learning_rate": RATE / 1000}, ["policy_still", "weights_still"]),
    "held_fast": Case("a KL that holds the policy where it is", {"algorithm.kl_coef": 50.0}, ["policy_still", "kl_outweighs"]),
    "many_passes": Case(
        "eight passes over every batch", {"train.passes_per_step": 8}, FELL_APART
    ),
    "entropy_paid": Case("an entropy bonus that outweighs the reward", {"algorithm.entropy_coef": 1.0}, FELL_APART),
    "critic_wild": Case(
        "a critic with a rate 500 times too high",
        {"algorithm.name": "ppo", "critic.learning_rate": 1.0},
        ["critic_diverges", "critic_explains_nothing"],
    ),
    "pairs_displaced": Case(
        "DPO on pairs of the start, with hardly any hold",
        {"algorithm": {"name": "dpo", "data": "start", "kl_coef": 0.03}, "optimizer.learning_rate": RATE},
        ["chosen_displaced", *FELL_APART],
    ),
}  # fmt: skip


def make_healthy() -> dict[str, Case]:
    """Thirty sensible runs, no two alike in algorithm, task, size and seed."""
    small, wide = {"train.group_size": 4, "train.prompts_per_step": 32}, {"train.group_size": 16, "train.prompts_per_step": 8}
    form = {"rewards": [SUM, {"function": "findings_rewards:pay_form", "weight": 0.2}]}
    several = {"train.minibatches_per_step": 2}
    rows: list[tuple[str, str, dict[str, Any]]] = [
        ("grpo", "addition", {}),
        ("grpo", "addition", small),
        ("grpo", "sorting", wide),
        ("grpo", "reversal", {}),
        ("grpo", "carries", several),
        ("grpo", "addition", form),
        ("grpo", "sorting", {"algorithm.prompt_choice": "informative"}),
        ("grpo", "reversal", {"sampling.temperature": 0.8}),
        ("dr_grpo", "addition", {}),
        ("dr_grpo", "sorting", small),
        ("dr_grpo", "reversal", wide),
        ("dr_grpo", "carries", {"monitors.kl": True}),
        ("dapo", "addition", {}),
        ("dapo", "reversal", small),
        ("dapo", "sorting", several),
        ("rloo", "addition", wide),
        ("rloo", "sorting", {}),
        ("rloo", "reversal", small),
        ("ppo", "addition", {}),
        ("ppo", "sorting", {}),
        ("ppo", "reversal", several),
        ("gspo", "addition", several),
        ("cispo", "reversal", several),
        ("sapo", "sorting", {}),
        ("maxrl", "addition", wide),
        ("gdpo", "addition", form),
        ("lite_ppo", "reversal", {}),
        ("reinforce++", "sorting", {}),
        ("reinforce++_baseline", "carries", {}),
        ("dppo", "addition", {"ahead.lag": 1}),
    ]
    cases = {}
    for name, task, changes in rows:
        # A preset brings its own KL; the demo's is the one that fits a model this small.
        kl = {"algorithm.kl_coef": 0.005} if name == "grpo" else {}
        key = "-".join([name.replace("+", "p"), task, str(sum(case.task == task for case in cases.values()))])
        cases[key] = Case(
            f"{name} on {task}{describe_changes(changes)}", {"algorithm": {"name": name}, **kl, **changes}, task=task
        )
    return cases


def describe_changes(changes: Mapping[str, Any]) -> str:
    plain = [f"{key.rpartition('.')[2]} = {value}" for key, value in changes.items() if key != "rewards"]
    return f", {', '.join([*plain, *(['a part for form'] if 'rewards' in changes else [])])}" if changes else ""


HEALTHY = make_healthy()
