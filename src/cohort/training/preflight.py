"""What can be found out before a night is spent: each check gives a sentence, and a fix where something is wrong.

`run_cheap_checks` run at the start of every training; `cohort doctor` runs all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from cohort.base.importing import is_own
from cohort.engine.requests import make_list
from cohort.errors import ModelError, RewardError
from cohort.evaluation.estimators import FEW_PROBLEMS, why_no_interval
from cohort.evaluation.evaluate import make_problem_key
from cohort.model.architecture import ASKS_FOR_BALANCE, count_positions
from cohort.model.chat import find_end_of_turn_id
from cohort.model.frozen import inspect_teacher
from cohort.recipe.rules import scores_prompts
from cohort.rewards.contract import importable_name
from cohort.rewards.outcomes import fails_everywhere
from cohort.rewards.runner import RewardRunner
from cohort.training.build import EncodedData
from cohort.training.memory_estimate import MemoryEstimate, describe_memory, estimate_memory, fit_slots
from cohort.training.parts import Parts
from cohort.training.run_numbers import measure_room, read_model_numbers, read_run_numbers
from cohort.types import Completion, Outcome, Prompt
from cohort_verify.math.find import write_cell
from cohort_verify.sandbox import JailUnavailable, find_tier

Level = Literal["ok", "warning", "failure"]
GOLD_ROWS = 64
CUTS = re.compile(
    r"temperature|top_\w+|min_p|typical_p|\w+_cutoff|\w*penalty|no_repeat_ngram_size|bad_words_ids|\w*suppress_tokens|sequence_bias|"
    r"min_length|min_new_tokens|num_beam\w*|guidance_scale"
)
"""Settings of a generation_config that change which tokens are sampled."""
FORMATS = ("think_format", "think_answer_format", "regex_format")
"""The rewards that pay 1.0 for a form."""


@dataclass(frozen=True)
class Check:
    level: Level
    name: str
    text: str
    blocks: bool = False
    """Training would run into an error; other failures leave the choice to the user."""


def run_cheap_checks(parts: Parts, encoded: EncodedData) -> list[Check]:
    """No forward pass: servers, rewards on golds, sampling, lengths, memory."""
    reach_servers(parts)
    judged = {"": encoded.train} | {name: encoded.sets[name] for name in parts.rewards.sets}
    rows = [*check_reward_columns(parts, encoded)] or [
        check
        for name, prompts in judged.items()
        for check in (*check_unusable_rows(parts, prompts, name), *check_golds(parts, prompts, name))
    ]
    teacher, parameters = check_teacher(parts, encoded)
    model = [
        *check_model(parts),
        check_sampling(parts),
        check_prompt_lengths(parts, encoded),
        *check_form(parts, encoded),
        *teacher,
    ]
    return [*check_jail(parts), *rows, *check_problem_counts(parts), *model, check_memory(parts, encoded, parameters)]


# -- columns -----------------------------------------------------------------------------------------------------------


def reach_servers(parts: Parts) -> None:
    """Bring the weights to engines elsewhere: one that is absent or wrong is named before anything is trained, cold start included."""
    if not parts.engine.capabilities.shares_weights:
        parts.engine.sync(parts.policy.read_weights(), 0)


def check_reward_columns(parts: Parts, encoded: EncodedData) -> Iterator[Check]:
    """A column that a reward needs and no row has: said before anything is trained, for the first call would stop the run."""
    # Rows whose completions the rewards will be called on; demonstrations and pairs are trained on unscored.
    judged: list[tuple[str, RewardRunner, Sequence[Prompt]]] = (
        [("prompts", parts.rewards, encoded.train)] if scores_prompts(parts.recipe) else []
    )
    judged += [(f"evaluation set {name}", parts.rewards.for_set(name), prompts) for name, prompts in encoded.sets.items()]
    for place, rewards, prompts in judged:
        try:
            rewards.check_columns(prompts)
        except RewardError as problem:
            yield Check("failure", "columns", f"{place}: {problem}", blocks=True)


# -- evaluation sets ---------------------------------------------------------------------------------------------------


def check_problem_counts(parts: Parts) -> Iterator[Check]:
    """Sets with so few problems that what training changes can hardly be told from noise."""
    most = parts.recipe.evaluation.max_problems
    for name, problems in parts.evaluation_sets.items():
        different = len({make_problem_key(problem) for problem in problems})  # copies of a problem tell nothing new
        if different >= FEW_PROBLEMS:
            continue
        count = "1 problem" if different == 1 else f"{different} problems"
        sure = why_no_interval(different) or "few changes will be clear"
        fix = f"give it {FEW_PROBLEMS} or more: rows"
        if len(problems) == most:
            fix = f"raise evaluation.max_problems from {most}"
        elif name not in parts.recipe.evaluation.sets:
            fix += ", a larger evaluation.held_out, or a set under [evaluation.sets]"
        text = f"{name} has {count}: one is {100 / different:.1f} points of greedy accuracy, and {sure}; {fix}."
        yield Check("warning", "evaluation", text)


# -- golds -------------------------------------------------------------------------------------------------------------


def check_jail(parts: Parts) -> Iterator[Check]:
    """Where model text goes that could run as code."""
    if not parts.rewards.needs_jail:
        return
    try:
        tier = find_tier().name
    except JailUnavailable as problem:
        yield Check("warning", "jail", str(problem))
        return
    if tier == "unsafe":
        yield Check("warning", "jail", "COHORT_JAIL=unsafe: what the policy writes runs on this machine without a jail")
    else:
        yield Check("ok", "jail", f"model text that could run as code goes to a {tier} jail")


def check_unusable_rows(parts: Parts, prompts: Sequence[Prompt], name: str = "") -> Iterator[Check]:
    """Rows whose gold answer or tests can never be used: each would cost its rollouts and teach nothing. name: of their evaluation set."""
    for part, problems in parts.rewards.for_set(name).find_unusable(prompts).items():
        row, reason = problems[0]
        text = f"{len(problems)} of {len(prompts)} rows{f' of {name}' * bool(name)} can never be scored by {part}; the first is row {row}: {reason}"
        allowed = parts.recipe.train.max_fault_share
        if len(problems) > allowed * len(prompts):  # a step would lose more than it may, sooner or later
            advice = f"{text}. That is more than train.max_fault_share = {allowed:g}: mend or remove these rows."
            yield Check("failure", "golds", advice, blocks=True)
        else:
            yield Check("warning", "golds", f"{text}. Mend or remove these rows.")


def asks_for_form(function: str | Callable[..., Any]) -> bool:
    """Whether this reward pays 1.0 for a form: a correct completion should then have it."""
    spec = function if isinstance(function, str) else importable_name(function) or ":"
    home, _, name = spec.rpartition(":")
    return name in FORMATS and (not home or is_own(home))


def check_golds(parts: Parts, prompts: Sequence[Prompt], name: str = "") -> list[Check]:
    """Gold answers must score, and the answers of other rows must not: a verifier bug is a corrupted gradient. name: of their evaluation set."""
    rewards, of_set = parts.rewards.for_set(name), f" of {name}" * bool(name)
    column = parts.recipe.cold_start.completion_column
    rows = [prompt for prompt in prompts[: 4 * GOLD_ROWS] if list_gold_forms(prompt, column)][:GOLD_ROWS]
    if len(rows) < 2:
        return [Check("ok", "golds", f"not checked: the rows{of_set} have neither an `answer` nor a demonstration column")]
    # A row after it with another answer; none where all answers are the same.
    others = [next((one for one in [*rows[at:], *rows[:at]] if one.gold != row.gold), None) for at, row in enumerate(rows)]
    formats = [part.name for part in rewards.parts if asks_for_form(part.function)]
    forms_P, right = [list_gold_forms(row, column, bool(formats)) for row in rows], list[bool]()
    try:
        right, formed = score_best_forms(parts, rewards, rows, forms_P, formats)
        wrong, _ = score_best_forms(parts, rewards, rows, [list_gold_forms(other, column) if other else [] for other in others])
    except RewardError as problem:
        outcomes, advice = problem.outcomes, "A text that a reward cannot read has to score 0.0: fix the function."
        lost = not outcomes or fails_everywhere(outcomes, [row for row, forms in enumerate(forms_P) for _ in forms])
        blocks = lost and not right and (bool(of_set) or scores_prompts(parts.recipe) or bool(parts.evaluation_sets))
        return [
            Check("failure", "golds", f"the reward functions fail on gold answers{of_set}: {problem}\n{advice}", blocks=blocks)
        ]
    # A demonstration is the right answer in the right form; guessed wrappings of an answer may miss a form of the user's own.
    fails_below = 0.5 if column in rows[0].columns else -1.0
    what = f"gold answers{of_set} score as success{describe_forms(formats, formed)}"
    return [
        judge_share("golds", right, what, low=0.99, fails_below=fails_below),
        judge_share("shuffled golds", wrong, f"answers of other rows{of_set} score as success", high=0.01),
    ]


def list_gold_forms(row: Prompt, column: str, thinking: bool = False) -> list[str]:
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


def score_best_forms(
    parts: Parts, rewards: RewardRunner, rows: Sequence[Prompt], forms_P: Sequence[Sequence[str]], formats: Sequence[str] = ()
) -> tuple[list[bool], bool]:
    """(per row with a form, whether any of its forms is a success; whether every row has one that all parts of `formats` pay).

    Of such a row the other forms do not count: a policy that is paid for one form must be able to succeed in it.
    """
    flat = [(number, row, text) for number, (row, forms) in enumerate(zip(rows, forms_P, strict=True)) for text in forms]
    completions = [
        Completion(tuple(parts.policy.tokenizer(text, add_special_tokens=False)["input_ids"]), (), "stop", text)
        for _, _, text in flat
    ]
    scored = rewards.score([row for _, row, _ in flat], completions, step=1, num_steps=parts.recipe.train.num_steps)
    outcomes_P: dict[int, list[Outcome]] = {}
    for (number, _, _), outcome in zip(flat, scored.outcomes, strict=True):
        outcomes_P.setdefault(number, []).append(outcome)
    paid_P = {
        number: [outcome for outcome in outcomes if all(outcome.parts.get(name) == 1.0 for name in formats)]
        for number, outcomes in outcomes_P.items()
    }
    success = [any(outcome.success for outcome in paid_P[number] or outcomes) for number, outcomes in outcomes_P.items()]
    return success, all(paid_P.values())


def describe_forms(formats: Sequence[str], formed: bool) -> str:
    """Which forms were judged, where parts of the reward pay one; "" where none does."""
    if not formats:
        return ""
    names = " and ".join(formats)
    return f" in a form that {names} accept{'s' * (len(formats) == 1)}" if formed else f", though not in a form for {names}"


def judge_share(
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


def check_model(parts: Parts) -> list[Check]:
    """Which engine samples and why, and what is to be said of how the model is trained."""
    slow = parts.engine.capabilities.most_slots == 1
    notes = [Check("warning" if ASKS_FOR_BALANCE in note else "ok", "model", note) for note in parts.policy.notes]
    return [Check("warning" if slow else "ok", "engine", parts.engine_words), *notes]


def check_sampling(parts: Parts) -> Check:
    sampling, tokenizer = parts.sampling, parts.policy.tokenizer
    stops = ", ".join(f"{token} {tokenizer.convert_ids_to_tokens(token)!r}" for token in sampling.stop_ids)
    text = (
        f"temperature {sampling.temperature:g} over the full distribution ({describe_generation(parts)}), {sampling.group_size} "
        f"completions of at most {sampling.max_completion_tokens} tokens, stop at {stops or 'nothing'}"
    )
    if not sampling.stop_ids:
        return Check("warning", "sampling", f"{text}. Every completion will run to the limit: name a token in sampling.stop.")
    return Check("ok", "sampling", text)


def check_form(parts: Parts, encoded: EncodedData) -> Iterator[Check]:
    """Plain text for a model that was tuned on chats: it then continues the text, or writes to the limit, where it should answer.

    Base models may have a chat template too; they do not end at the end of a turn. Whoever writes prompts.template, or special tokens
    into the prompts, has chosen the form.
    """
    tokenizer, settings = parts.policy.tokenizer, parts.recipe.prompts
    ends = {tokenizer.eos_token_id, *make_list(parts.policy.model.generation_config.eos_token_id)}
    tuned = (end := find_end_of_turn_id(tokenizer)) is not None and end in ends
    texts = [prompt.content for prompt in encoded.train if isinstance(prompt.content, str)]
    marked = any(token in text for text in texts[:GOLD_ROWS] for token in tokenizer.all_special_tokens)
    if tuned and texts and len(texts) == len(encoded.train) and not settings.template and not marked:
        yield Check(
            "warning",
            "prompts",
            "the model is tuned on chats (its tokenizer has a chat template), and all prompts are plain text, which it will continue instead "
            f'of answering. Set prompts.system, which makes chats of them, or give messages: "{settings.prompt_column}": [{{"role": "user", '
            f'"content": ...}}]. If plain text is meant: prompts.template = "{{{settings.prompt_column}}}".',
        )


def describe_generation(parts: Parts) -> str:
    """What the model's own generation_config.json would cut, punish or forbid, which sampling in training never does."""
    asked = parts.policy.model.generation_config.to_diff_dict()
    cuts = {name: value for name, value in asked.items() if CUTS.fullmatch(name)}
    listed = ", ".join(f"{name} {value}" for name, value in cuts.items())
    return f"the checkpoint's generation_config is not used{f': {listed}' if listed else ''}"


def check_prompt_lengths(parts: Parts, encoded: EncodedData) -> Check:
    """Prompt and completion must fit into the model's positions, in training and in every evaluation set."""
    most = count_positions(parts.policy.model.config.get_text_config())
    for name, prompts in {"": encoded.train, **encoded.sets}.items():
        evaluated = parts.recipe.evaluation.max_completion_tokens if name else 0
        tokens, name = evaluated or parts.sampling.max_completion_tokens, name or "prompts"
        field = f"{'evaluation' if evaluated else 'sampling'}.max_completion_tokens"
        longest = max(len(prompt.token_ids) for prompt in prompts)
        if most and longest + tokens > most:
            text = f"{name}: prompts of up to {longest} tokens and {field} = {tokens} need {longest + tokens} positions, the model has {most}"
            return Check("failure", "lengths", f"{text}. Lower {field} or max_prompt_tokens.", blocks=True)
    report = encoded.reports["prompts"]
    level: Level = "warning" if report.too_long or report.with_unknown else "ok"
    return Check(level, "lengths", str(report))


def check_teacher(parts: Parts, encoded: EncodedData) -> tuple[list[Check], int]:
    """(whether the teacher can score what will be sampled, its parameters), before its weights are read."""
    settings = parts.recipe.teacher
    if not settings.source or not parts.recipe.train.num_steps:
        return [], 0
    longest = max(len(prompt.token_ids) for prompt in encoded.train) + parts.sampling.max_completion_tokens
    try:
        count = inspect_teacher(settings, parts.policy, longest)
    except ModelError as problem:
        return [Check("failure", "teacher", str(problem), blocks=True)], 0
    return [Check("ok", "teacher", f"{settings.source}: {count / 1e6:.2f} M parameters, the policy's vocabulary")], count


def check_memory(parts: Parts, encoded: EncodedData, teacher_parameters: int = 0, ranks: int = 0) -> Check:
    """What a rank of the run will hold at its peak, against what this device has for it. ranks: other than those there are."""
    needed = estimate_rank(parts, encoded, teacher_parameters, ranks or parts.world.size)
    there = measure_room(parts.policy.device)
    return Check("ok" if needed.peak <= there else "warning", "memory", describe_memory(needed, there))


def estimate_rank(parts: Parts, encoded: EncodedData, teacher_parameters: int, ranks: int) -> MemoryEstimate:
    run = replace(read_run_numbers(parts, encoded, ranks), teacher_parameters=teacher_parameters)
    needed = estimate_memory(read_model_numbers(parts.policy), run)
    if not parts.recipe.sampling.slots:  # then the engine takes what is free, and no more
        slots = fit_slots(needed, measure_room(parts.policy.device))
        needed = estimate_memory(needed.model, replace(needed.run, slots=slots))
    return needed
