"""What can be found out before a night is spent: each check gives a sentence, and a fix where something is wrong.

`cheap_checks` run at the start of every training; `cohort doctor` runs all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from cohort.algorithms.registry import SAMPLED
from cohort.errors import ModelError, RewardError
from cohort.evaluation.estimators import FEW_PROBLEMS, useful_share, why_no_interval
from cohort.evaluation.evaluate import problem_key
from cohort.model.experts import ASKED_FOR
from cohort.model.packing import make_examples
from cohort.model.rotary import count_positions
from cohort.model.teacher import look_at_teacher
from cohort.recipe.foreign import explain_missing
from cohort.recipe.schema import Recipe
from cohort.rewards.format import asks_for_form
from cohort.rewards.math.find import write_cell
from cohort.sandbox import JailUnavailable, find_tier
from cohort.training.build import EncodedData
from cohort.training.experience import rollout_metrics
from cohort.training.memory_estimate import (
    describe_memory,
    estimate_memory,
    fit_slots,
    measure_room,
    read_model_numbers,
    read_run_numbers,
)
from cohort.training.parts import Parts
from cohort.training.stages import sample_rollouts
from cohort.training.updates import mismatch_limit
from cohort.types import Completion, NoiseKey, Outcome, Prompt, Rollout

Level = Literal["ok", "warning", "failure"]
GOLD_ROWS = 64
TRIAL_PROMPTS = 32


@dataclass(frozen=True)
class Check:
    level: Level
    name: str
    text: str
    blocks: bool = False
    """Training would run into an error; other failures leave the choice to the user."""


def cheap_checks(parts: Parts, encoded: EncodedData) -> list[Check]:
    """No forward pass: rewards on golds, sampling, lengths, memory."""
    rewards = [*jail_checks(parts), *(column_checks(parts, encoded) or row_checks(parts, encoded.train))]
    teacher, parameters = teacher_checks(parts, encoded)
    rows = [*rewards, *problem_checks(parts)]
    memory = memory_check(parts, encoded, parameters)
    return [*rows, *model_checks(parts), sampling_check(parts), length_check(parts, encoded), *teacher, memory]


def trial_checks(parts: Parts, encoded: EncodedData) -> list[Check]:
    """Rollouts on a few prompts with the starting policy, and the invariants that must hold at step 1."""
    prompts = parts.stream.take(0, TRIAL_PROMPTS)
    rollouts = sample_rollouts(parts, prompts, parts.sampling, NoiseKey(parts.recipe.seed, "preflight", 0), 1)
    return [*rollout_checks(parts, rollouts), invariant_check(parts, rollouts)]


# -- columns -----------------------------------------------------------------------------------------------------------


def column_checks(parts: Parts, encoded: EncodedData) -> list[Check]:
    """A column that a reward needs and no row has: said before anything is trained, for the first call would stop the run."""
    checks = []
    for place, prompts in scored_rows(parts.recipe, encoded).items():
        try:
            parts.rewards.check_columns(prompts)
        except RewardError as problem:
            checks.append(Check("failure", "columns", f"{place}: {problem}", blocks=True))
    return checks


def scored_rows(recipe: Recipe, encoded: EncodedData) -> dict[str, Sequence[Prompt]]:
    """Place -> rows whose completions the rewards will be called on. Demonstrations and pairs are trained on unscored."""
    cold = recipe.cold_start.num_steps > 0 and recipe.cold_start.until_success < 1.0
    trained = recipe.train.num_steps > 0 and recipe.algorithm.data in SAMPLED
    rows: dict[str, Sequence[Prompt]] = {"prompts": encoded.train} if cold or trained else {}
    return rows | {f"evaluation set {name}": prompts for name, prompts in encoded.sets.items()}


# -- evaluation sets ---------------------------------------------------------------------------------------------------


def problem_checks(parts: Parts) -> list[Check]:
    """Sets with so few problems that what training changes can hardly be told from noise."""
    most = parts.recipe.evaluation.max_problems
    checks = []
    for name, problems in parts.evaluation_sets.items():
        different = len({problem_key(problem) for problem in problems})  # copies of a problem tell nothing new
        if different >= FEW_PROBLEMS:
            continue
        count = "1 problem" if different == 1 else f"{different} problems"
        sure = why_no_interval(different) or "few changes will be clear"
        source = (
            "rows"
            if name in parts.recipe.evaluation.sets
            else "rows, a larger evaluation.held_out, or a set under [evaluation.sets]"
        )
        fix = (
            f"raise evaluation.max_problems from {most}"
            if len(problems) == most
            else f"give it {FEW_PROBLEMS} or more: {source}"
        )
        text = f"{name} has {count}: one is {100 / different:.1f} points of greedy accuracy, and {sure}; {fix}."
        checks.append(Check("warning", "evaluation", text))
    return checks


# -- golds -------------------------------------------------------------------------------------------------------------


def jail_checks(parts: Parts) -> list[Check]:
    """Where model text goes that could run as code."""
    if not parts.rewards.needs_jail:
        return []
    try:
        tier = find_tier().name
    except JailUnavailable as problem:
        return [Check("warning", "jail", str(problem))]
    if tier == "unsafe":
        return [Check("warning", "jail", "COHORT_JAIL=unsafe: what the policy writes runs on this machine without a jail")]
    return [Check("ok", "jail", f"model text that could run as code goes to a {tier} jail")]


def row_checks(parts: Parts, prompts: Sequence[Prompt]) -> list[Check]:
    return [*unusable_checks(parts, prompts), *gold_checks(parts, prompts)]


def unusable_checks(parts: Parts, prompts: Sequence[Prompt]) -> list[Check]:
    """Rows whose gold answer or tests can never be used: each would cost its rollouts and teach nothing."""
    checks = []
    for part, problems in parts.rewards.find_unusable(prompts).items():
        row, reason = problems[0]
        text = f"{len(problems)} of {len(prompts)} rows can never be scored by {part}; the first is row {row}: {reason}"
        allowed = parts.recipe.train.max_fault_share
        if len(problems) > allowed * len(prompts):  # a step would lose more than it may, sooner or later
            advice = f"{text}. That is more than train.max_fault_share = {allowed:g}: mend or remove these rows."
            checks.append(Check("failure", "golds", advice, blocks=True))
        else:
            checks.append(Check("warning", "golds", f"{text}. Mend or remove these rows."))
    return checks


def gold_checks(parts: Parts, prompts: Sequence[Prompt]) -> list[Check]:
    """Gold answers must score, and the answers of other rows must not: a verifier bug is a corrupted gradient."""
    rows = [prompt for prompt in prompts[: 4 * GOLD_ROWS] if gold_forms(prompt, parts.recipe.cold_start.completion_column)][
        :GOLD_ROWS
    ]
    if len(rows) < 2:
        return [Check("ok", "golds", "not checked: the rows have neither an `answer` nor a demonstration column")]
    column = parts.recipe.cold_start.completion_column
    others = [other_row(number, rows) for number in range(len(rows))]
    formats = [part.name for part in parts.rewards.parts if asks_for_form(part.function)]
    try:
        right, formed = best_success(parts, rows, [gold_forms(row, column, bool(formats)) for row in rows], formats)
        wrong, _ = best_success(parts, rows, [gold_forms(other, column) if other else [] for other in others])
    except RewardError as problem:
        return [Check("failure", "golds", f"the reward functions fail on gold answers: {problem}")]
    # A demonstration is the right answer in the right form; guessed wrappings of an answer may miss a form of the user's own.
    sure = column in rows[0].columns
    return [
        share_check(
            "golds",
            right,
            f"gold answers score as success{in_form(formats, formed)}",
            low=0.99,
            fails_below=0.5 if sure else -1.0,
        ),
        share_check("shuffled golds", wrong, "answers of other rows score as success", high=0.01),
    ]


def gold_forms(row: Prompt, column: str, thinking: bool = False) -> list[str]:
    """Texts that a right completion could be: the demonstration, or the answer in the usual wrappings.

    thinking: each wrapping also behind a thought, and behind one that the prompt has opened, for parts that pay such a form.
    """
    if column in row.columns:
        return [str(row.columns[column])]
    if row.gold is None:
        return []
    gold = write_cell(row.gold)
    wrapped = [f"\\boxed{{{gold}}}", f"#### {gold}", f"<answer>{gold}</answer>", gold]
    if not thinking:
        return [*wrapped, f"<think>so</think>\n\\boxed{{{gold}}}"]
    return [f"{thought}{text}" for thought in ("", "<think>so</think>\n", "so</think>\n") for text in wrapped]


def other_row(number: int, rows: Sequence[Prompt]) -> Prompt | None:
    """A row with another answer; None where all answers are the same."""
    mine = rows[number].gold
    return next(
        (
            rows[(number + shift) % len(rows)]
            for shift in range(1, len(rows))
            if rows[(number + shift) % len(rows)].gold != mine
        ),
        None,
    )


def best_success(
    parts: Parts, rows: Sequence[Prompt], forms_P: Sequence[Sequence[str]], formats: Sequence[str] = ()
) -> tuple[list[bool], bool]:
    """(per row with a form, whether any of its forms is a success; whether every row has one that all parts of `formats` pay).

    Of such a row the other forms do not count: a policy that is paid for one form must be able to succeed in it.
    """
    flat = [(number, row, text) for number, (row, forms) in enumerate(zip(rows, forms_P, strict=True)) for text in forms]
    completions = [
        Completion(tuple(parts.policy.tokenizer(text, add_special_tokens=False)["input_ids"]), (), "stop", text)
        for _, _, text in flat
    ]
    scored = parts.rewards.score([row for _, row, _ in flat], completions, step=1, num_steps=parts.recipe.train.num_steps)
    outcomes_P: dict[int, list[Outcome]] = {}
    for (number, _, _), outcome in zip(flat, scored.outcomes, strict=True):
        outcomes_P.setdefault(number, []).append(outcome)
    paid_P = {
        number: [outcome for outcome in outcomes if all(outcome.parts.get(name) == 1.0 for name in formats)]
        for number, outcomes in outcomes_P.items()
    }
    success = [any(outcome.success for outcome in paid_P[number] or outcomes) for number, outcomes in outcomes_P.items()]
    return success, all(paid_P.values())


def in_form(formats: Sequence[str], formed: bool) -> str:
    """Which forms were judged, where parts of the reward pay one; "" where none does."""
    if not formats:
        return ""
    names = " and ".join(formats)
    return f" in a form that {names} accept{'s' * (len(formats) == 1)}" if formed else f", though not in a form for {names}"


def share_check(
    name: str, verdicts: Sequence[bool], what: str, low: float = 0.0, high: float = 1.0, fails_below: float = -1.0
) -> Check:
    if not verdicts:
        return Check("ok", name, "not checked: all rows have the same answer")
    share = sum(verdicts) / len(verdicts)
    text = f"{sum(verdicts)} of {len(verdicts)} {what}"
    if low <= share <= high:
        return Check("ok", name, text)
    advice = f"{text}. Look at the outcome reward: it is what the policy will learn to satisfy."
    return Check("failure" if share < fails_below else "warning", name, advice)


# -- sampling, lengths, memory -----------------------------------------------------------------------------------------


def model_checks(parts: Parts) -> list[Check]:
    """Which engine samples and why, and what is to be said of how the model is trained."""
    slow = parts.engine.capabilities.most_slots == 1
    notes = [Check("warning" if ASKED_FOR in note else "ok", "model", note) for note in parts.policy.notes]
    return [Check("warning" if slow else "ok", "engine", parts.engine_words), *notes]


def sampling_check(parts: Parts) -> Check:
    sampling, tokenizer = parts.sampling, parts.policy.tokenizer
    stops = ", ".join(f"{token} {tokenizer.convert_ids_to_tokens(token)!r}" for token in sampling.stop_ids)
    text = (
        f"temperature {sampling.temperature:g} over the full distribution ({generation_words(parts)}), {sampling.group_size} "
        f"completions of at most {sampling.max_completion_tokens} tokens, stop at {stops or 'nothing'}"
    )
    if not sampling.stop_ids:
        return Check("warning", "sampling", f"{text}. Every completion will run to the limit: name a token in sampling.stop.")
    return Check("ok", "sampling", text)


def generation_words(parts: Parts) -> str:
    """What the model's own generation_config.json would cut, punish or forbid, which sampling in training never does."""
    asked = parts.policy.model.generation_config.to_diff_dict()
    cuts = {name: value for name, value in asked.items() if name in ("top_p", "top_k", "temperature") or explain_missing(name)}
    listed = ", ".join(f"{name} {value}" for name, value in cuts.items())
    return f"the checkpoint's generation_config is not used{f': {listed}' if listed else ''}"


def length_check(parts: Parts, encoded: EncodedData) -> Check:
    """Prompt and completion must fit into the model's positions, in training and in every evaluation set."""
    most = count_positions(parts.policy.model.config.get_text_config())
    evaluated = parts.recipe.evaluation.max_completion_tokens
    needs = [("sampling.max_completion_tokens", "prompts", encoded.train, parts.sampling.max_completion_tokens)]
    for name, prompts in encoded.sets.items():
        field = "evaluation.max_completion_tokens" if evaluated else "sampling.max_completion_tokens"
        needs.append((field, name, prompts, evaluated or parts.sampling.max_completion_tokens))
    for field, name, prompts, tokens in needs:
        longest = max(len(prompt.token_ids) for prompt in prompts)
        if most and longest + tokens > most:
            text = f"{name}: prompts of up to {longest} tokens and {field} = {tokens} need {longest + tokens} positions, the model has {most}"
            return Check("failure", "lengths", f"{text}. Lower {field} or max_prompt_tokens.", blocks=True)
    report = encoded.reports["prompts"]
    level: Level = "warning" if report.too_long or report.with_unknown else "ok"
    return Check(level, "lengths", str(report))


def teacher_checks(parts: Parts, encoded: EncodedData) -> tuple[list[Check], int]:
    """(whether the teacher can score what will be sampled, its parameters), before its weights are read."""
    settings = parts.recipe.teacher
    if not settings.source or not parts.recipe.train.num_steps:
        return [], 0
    longest = max(len(prompt.token_ids) for prompt in encoded.train) + parts.sampling.max_completion_tokens
    try:
        count = look_at_teacher(settings, parts.policy, longest)
    except ModelError as problem:
        return [Check("failure", "teacher", str(problem), blocks=True)], 0
    return [Check("ok", "teacher", f"{settings.source}: {count / 1e6:.2f} M parameters, the policy's vocabulary")], count


def memory_check(parts: Parts, encoded: EncodedData, teacher_parameters: int = 0) -> Check:
    """What the run will hold at its peak, against what this device has for it."""
    run = replace(read_run_numbers(parts, encoded), teacher_parameters=teacher_parameters)
    needed = estimate_memory(read_model_numbers(parts.policy), run)
    there = measure_room(parts.policy.device)
    if not parts.recipe.sampling.slots:  # then the engine takes what is free, and no more
        needed = estimate_memory(needed.model, replace(needed.run, slots=fit_slots(needed, there)))
    return Check("ok" if needed.peak <= there else "warning", "memory", describe_memory(needed, there))


def rollout_checks(parts: Parts, rollouts: Sequence[Rollout]) -> list[Check]:
    size = parts.sampling.group_size
    metrics = rollout_metrics(rollouts, 0)
    groups = [rollouts[at : at + size] for at in range(0, len(rollouts), size)]
    rates = [sum(bool(rollout.outcome.success) for rollout in group) / len(group) for group in groups]
    mean = sum(rates) / len(rates)
    # A rate of 0 or 1 out of `size` draws is not a probability of 0 or 1: each is pulled towards the mean of all prompts,
    # with the weight of two draws, and the mean itself away from 0 and 1 by half a draw.
    pooled = (mean * len(rollouts) + 0.5) / (len(rollouts) + 1)
    predicted = sum(useful_share((rate * size + 2 * pooled) / (size + 2), size) for rate in rates) / len(rates)
    seen = sum(0 < rate < 1 for rate in rates)
    checks = []
    cut = f"{metrics['rollout/truncated']:.0%} of completions were cut at {parts.sampling.max_completion_tokens} tokens; mean length {metrics['rollout/length_mean']:.0f}"
    untrained = parts.recipe.cold_start.num_steps > 0
    if metrics["rollout/truncated"] > 0.3 and not untrained:
        checks.append(Check("warning", "truncation", f"{cut}. Raise sampling.max_completion_tokens."))
    else:
        checks.append(Check("ok", "truncation", cut + (" (before the cold start)" if untrained else "")))
    text = f"{mean:.1%} success on {len(groups)} prompts x {size}; groups with signal: {seen} of {len(groups)} seen, {predicted:.0%} predicted"
    if untrained:
        checks.append(Check("ok", "success", f"{text} (before the cold start, which comes first)"))
    elif seen == 0:
        hint = (
            "too hard or not parsed: try easier prompts, a cold start, or look at a completion"
            if mean < 0.5
            else "too easy: nothing is left to learn from"
        )
        checks.append(Check("warning", "success", f"{text}. {hint[0].upper()}{hint[1:]}."))
    else:
        checks.append(Check("ok", "success", text))
    distinct = metrics["rollout/distinct"]
    level: Level = "ok" if distinct > 1.5 / size or size == 1 else "warning"
    checks.append(Check(level, "diversity", f"{distinct:.0%} of the completions of a group are distinct"))
    checks.append(Check("ok", "example", example_text(rollouts)))
    return checks


def example_text(rollouts: Sequence[Rollout]) -> str:
    best = max(rollouts, key=lambda rollout: (rollout.outcome.reward or 0.0, -rollout.completion.length))
    content: Any = best.prompt.content
    return f"{content!r} -> {best.completion.text[:200]!r} (reward {best.outcome.reward})"


@torch.no_grad()
def invariant_check(parts: Parts, rollouts: Sequence[Rollout]) -> Check:
    """Ratio 1 between engine and trainer, log-probs <= 0, KL 0 to a copy of the weights."""
    scored = [rollout for rollout in rollouts if rollout.outcome.reward is not None]
    examples = make_examples(scored)
    if not examples:
        return Check("failure", "step 1", "no completion was scored, so nothing could be compared")
    policy = parts.policy.score_examples(examples, parts.recipe.train.micro_batch_tokens)
    again = parts.policy.score_examples(examples, parts.recipe.train.micro_batch_tokens)
    mismatch = torch.cat(
        [
            (ours - example.sampling_logprobs_T)[example.loss_mask_T].abs()
            for ours, example in zip(policy, examples, strict=True)
        ]
    )
    drift = max(float((ours - twice).abs().max()) for ours, twice in zip(policy, again, strict=True))
    limit = mismatch_limit(parts.policy.model, parts.engine.capabilities.rounding)
    largest, highest = float(mismatch.max()), max(float(ours.max()) for ours in policy)
    text = f"max |log ratio| engine to trainer {largest:.1e} (limit {limit:.0e}), largest log-prob {highest:.1e}, KL to equal weights {drift:.1e}"
    held = largest <= limit and highest <= 1e-6 and drift == 0.0
    return Check("ok" if held else "failure", "step 1", text)
