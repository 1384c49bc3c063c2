"""Checks before training: each gives a message, and a fix if something is wrong.

`run_cheap_checks` runs at the start of every training; `cohort doctor` runs all checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from cohort.algorithms.registry import SAMPLED
from cohort.base.importing import is_own
from cohort.base.text import write_count
from cohort.engine.requests import make_list
from cohort.engine.sampling import find_mismatch_limit
from cohort.errors import CohortError, ModelError, RewardError
from cohort.evaluation.estimators import FEW_PROBLEMS, predict_useful_share, why_no_interval
from cohort.evaluation.evaluate import make_problem_key
from cohort.model.architecture import ASKS_FOR_BALANCE, count_positions
from cohort.model.chat import find_end_of_turn_id
from cohort.model.critic import NoCritic
from cohort.model.examples import make_examples
from cohort.model.frozen import inspect_teacher
from cohort.model.policy import Policy
from cohort.recipe.rules import ENVIRONMENT_REWARD, measures_kl, scores_prompts
from cohort.recipe.schema import PromptsConfig
from cohort.rewards.contract import importable_name
from cohort.rewards.outcomes import fails_everywhere
from cohort.rewards.runner import RewardRunner
from cohort.training.build import EncodedData
from cohort.training.experience import Models, make_batch, measure_rollouts
from cohort.training.memory_estimate import (
    MemoryEstimate,
    describe_memory,
    estimate_memory,
    fit_slots,
    measure_room,
    read_model_numbers,
    read_run_numbers,
)
from cohort.training.objective import needs_critic, pack_minibatch, score_tokens, token_loss
from cohort.training.rollouts import Collected
from cohort.training.run import Run
from cohort.training.stages import sample_rollouts
from cohort.types import Completion, NoiseKey, Outcome, Prompt, Rollout
from cohort_verify.math.find import write_cell
from cohort_verify.sandbox import JailUnavailable, find_tier

Level = Literal["ok", "skip", "warning", "failure"]
"""skip: not checked, for the reason in the text."""
ANSWER_ROWS = 64
GENERATION = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "no_repeat_ngram_size")
"""Sampling settings of a generation_config.json, which training ignores."""
FORMATS = ("think_format", "think_answer_format", "regex_format")
"""Rewards that return 1.0 for the right format."""


@dataclass(frozen=True)
class Check:
    level: Level
    name: str
    text: str
    blocks: bool = False
    """Training would stop with an error. Other failures leave the decision to the user."""


def run_cheap_checks(run: Run, encoded: EncodedData) -> list[Check]:
    """Checks without a forward pass: servers, rewards on reference answers, sampling, lengths, memory."""
    if not run.engine.capabilities.shares_weights:  # reports a missing or wrong server before anything is trained
        run.engine.sync(run.policy.read_weights(), 0)
    scored = {"": encoded.train} | {name: encoded.sets[name] for name in run.rewards.sets}
    rows = [*check_reward_columns(run, encoded)] or [
        check
        for name, prompts in scored.items()
        for check in (*check_unusable_rows(run, prompts, name), *check_reference_answers(run, prompts, name))
    ]
    teacher, parameters = check_teacher(run, encoded)
    model = [*check_model(run), check_sampling(run), check_prompt_lengths(run, encoded), *check_format(run, encoded), *teacher]
    return [*check_jail(run), *rows, *check_problem_counts(run), *model, check_memory(run, encoded, parameters)]


# -- rows and rewards --------------------------------------------------------------------------------------------------


def check_reward_columns(run: Run, encoded: EncodedData) -> Iterator[Check]:
    """Report columns that a reward needs and no row has: the first call would stop the run."""
    # Demonstrations and pairs are trained on without a score.
    scored: list[tuple[str, RewardRunner, Sequence[Prompt]]] = (
        [("prompts", run.rewards, encoded.train)] if scores_prompts(run.recipe) else []
    )
    scored += [(f"evaluation set {name}", run.rewards.for_set(name), prompts) for name, prompts in encoded.sets.items()]
    for place, rewards, prompts in scored:
        try:
            rewards.check_columns(prompts)
        except RewardError as problem:
            yield Check("failure", "columns", f"{place}: {problem}", blocks=True)


def check_problem_counts(run: Run) -> Iterator[Check]:
    """One warning for the sets with too few problems to tell an effect of training from noise."""
    most, sets = run.recipe.evaluation.max_problems, run.evaluation_sets
    # A repeated problem adds no information.
    counts = {name: len({make_problem_key(problem) for problem in problems}) for name, problems in sets.items()}
    few = {name: count for name, count in counts.items() if count < FEW_PROBLEMS}
    if not few:
        return
    smallest, each = min(few.values()), "each" if len(few) > 1 else "it"
    fix = f"give {each} {FEW_PROBLEMS} or more: rows"
    if all(len(sets[name]) == most for name in few):
        fix = f"raise evaluation.max_problems from {most}"
    elif any(name not in run.recipe.evaluation.sets for name in few):
        fix += ", a larger evaluation.held_out, or a set under [evaluation.sets]"
    listed = ", ".join(f"{name} has {write_count(count, 'problem')}" for name, count in few.items())
    certainty = why_no_interval(smallest) or "few changes will be clear"
    points = f"one is {'up to ' * (len(few) > 1)}{100 / smallest:.1f} points of greedy accuracy"
    yield Check("warning", "evaluation", f"{listed}: {points}, and {certainty}; {fix}.")


def check_jail(run: Run) -> Iterator[Check]:
    """Report where model text runs that could be code."""
    if not run.rewards.needs_jail:
        return
    try:
        tier = find_tier().name
    except JailUnavailable as problem:
        yield Check("warning", "jail", str(problem))
        return
    if tier == "unsafe":
        yield Check("warning", "jail", "COHORT_JAIL=unsafe: code that the policy writes runs on this machine without a jail")
    else:
        yield Check("ok", "jail", f"model text that could run as code runs in a {tier} jail")


def check_unusable_rows(run: Run, prompts: Sequence[Prompt], name: str = "") -> Iterator[Check]:
    """Report rows whose answer or tests are unusable: their rollouts would teach nothing. name: of their evaluation set."""
    for part, problems in run.rewards.for_set(name).find_unusable(prompts).items():
        row, reason = problems[0]
        place = f" of {name}" * bool(name)
        text = f"{len(problems)} of {len(prompts)} rows{place} can never be scored by {part}; the first is row {row}: {reason}"
        allowed = run.recipe.train.max_fault_share
        if len(problems) > allowed * len(prompts):  # sooner or later a step would exceed the limit
            advice = f"{text}. That is more than train.max_fault_share = {allowed:g}: fix or remove these rows."
            yield Check("failure", "answers", advice, blocks=True)
        else:
            yield Check("warning", "answers", f"{text}. Fix or remove these rows.")


def rewards_format(function: str | Callable[..., Any]) -> bool:
    """Whether this reward returns 1.0 for a format, which a correct completion should then have."""
    spec = function if isinstance(function, str) else importable_name(function) or ":"
    home, _, name = spec.rpartition(":")
    return name in FORMATS and (not home or is_own(home))


def check_reference_answers(run: Run, prompts: Sequence[Prompt], name: str = "") -> list[Check]:
    """Check that reference answers score, and answers of other rows do not: errors of a verifier corrupt the gradient."""
    rewards, of_set = run.rewards.for_set(name), f" of {name}" * bool(name)
    deciding = [*(part for part in rewards.parts if part.outcome), *rewards.parts][:1]
    if deciding and deciding[0].function == ENVIRONMENT_REWARD:
        return [Check("skip", "answers", f"the environment decides success{of_set}, so there are no texts to score")]
    column = run.recipe.cold_start.completion_column
    rows = [prompt for prompt in prompts[: 4 * ANSWER_ROWS] if list_answer_texts(prompt, column)][:ANSWER_ROWS]
    if len(rows) < 2:
        return [Check("skip", "answers", f"the rows{of_set} have neither an `answer` nor a demonstration column")]
    # The next row with another answer, if there is one.
    answers, places = [row.reference_answer for row in rows], range(len(rows))
    others = [next((rows[i] for i in [*places[at:], *places[:at]] if answers[i] != answers[at]), None) for at in places]
    formats = [part.name for part in rewards.parts if rewards_format(part.function)]
    forms_P, right = [list_answer_texts(row, column, bool(formats)) for row in rows], list[bool]()
    try:
        right, formed = score_best_formats(run, rewards, rows, forms_P, formats)
        wrong, _ = score_best_formats(
            run, rewards, rows, [list_answer_texts(other, column) if other else [] for other in others]
        )
    except RewardError as problem:
        outcomes, advice = problem.outcomes, "A text that a reward cannot read has to score 0.0: fix the function."
        lost = not outcomes or fails_everywhere(outcomes, [row for row, forms in enumerate(forms_P) for _ in forms])
        blocks = lost and not right and (bool(of_set) or scores_prompts(run.recipe) or bool(run.evaluation_sets))
        text = f"the reward functions fail on reference answers{of_set}: {problem}\n{advice}"
        return [Check("failure", "answers", text, blocks=blocks)]
    # A demonstration has the right format; the guessed formats of an answer may not include the user's own.
    fails_below = 0.5 if column in rows[0].columns else -1.0
    subject = f"reference answers{of_set} score as success{describe_formats(formats, formed)}"
    return [
        check_share("answers", right, subject, low=0.99, fails_below=fails_below),
        check_share("shuffled answers", wrong, f"answers of other rows{of_set} score as success", high=0.01),
    ]


def list_answer_texts(row: Prompt, column: str, thinking: bool = False) -> list[str]:
    """Possible correct completions: the demonstration, or the answer in the usual formats.

    thinking: also after a thought, and after a thought that the prompt has opened, for rewards of such a format.
    """
    if column in row.columns:
        shown = row.columns[column]
        return ["\n".join(map(str, shown[::2]))] if isinstance(shown, list) else [str(shown)]  # turns and replies
    if row.reference_answer is None:
        return []
    answer = write_cell(row.reference_answer)
    wrapped = [f"\\boxed{{{answer}}}", f"#### {answer}", f"<answer>{answer}</answer>", answer]
    if not thinking:
        return [*wrapped, f"<think>so</think>\n\\boxed{{{answer}}}"]
    return [f"{thought}{text}" for thought in ("", "<think>so</think>\n", "so</think>\n") for text in wrapped]


def score_best_formats(
    run: Run, rewards: RewardRunner, rows: Sequence[Prompt], forms_P: Sequence[Sequence[str]], formats: Sequence[str] = ()
) -> tuple[list[bool], bool]:
    """(for each row with texts, whether any is a success; whether every row has a text that all rewards of `formats` accept).

    Other texts of such a row do not count: a policy that is rewarded for a format must be able to succeed in it.
    """
    flat = [(number, row, text) for number, (row, forms) in enumerate(zip(rows, forms_P, strict=True)) for text in forms]
    completions = [
        Completion(tuple(run.policy.tokenizer(text, add_special_tokens=False)["input_ids"]), (), "stop", text)
        for _, _, text in flat
    ]
    scored = rewards.score([row for _, row, _ in flat], completions, step=1, num_steps=run.recipe.train.num_steps)
    outcomes_P: dict[int, list[Outcome]] = {}
    for (number, _, _), outcome in zip(flat, scored.outcomes, strict=True):
        outcomes_P.setdefault(number, []).append(outcome)
    paid_P = {
        number: [outcome for outcome in outcomes if all(outcome.parts.get(name) == 1.0 for name in formats)]
        for number, outcomes in outcomes_P.items()
    }
    success = [any(outcome.success for outcome in paid_P[number] or outcomes) for number, outcomes in outcomes_P.items()]
    return success, all(paid_P.values())


def describe_formats(formats: Sequence[str], formed: bool) -> str:
    """The formats that were checked; "" if no reward pays for one."""
    if not formats:
        return ""
    names = " and ".join(formats)
    return f" in a format that {names} accept{'s' * (len(formats) == 1)}" if formed else f", but not in the format of {names}"


def check_share(
    name: str, verdicts: Sequence[bool], subject: str, low: float = 0.0, high: float = 1.0, fails_below: float = -1.0
) -> Check:
    if not verdicts:
        return Check("skip", name, "all rows have the same answer")
    share, text = sum(verdicts) / len(verdicts), f"{sum(verdicts)} of {len(verdicts)} {subject}"
    if low <= share <= high:
        return Check("ok", name, text)
    advice = f"{text}. Check the outcome reward: the policy will learn to satisfy it."
    return Check("failure" if share < fails_below else "warning", name, advice)


# -- sampling, lengths, memory -----------------------------------------------------------------------------------------


def check_model(run: Run) -> list[Check]:
    """Report the engine and why it was chosen, and notes on how the model is trained."""
    slow = run.engine.capabilities.most_slots == 1
    notes = [Check("warning" if ASKS_FOR_BALANCE in note else "ok", "model", note) for note in run.policy.notes]
    return [Check("warning" if slow else "ok", "engine", run.engine_description), *notes]


def check_sampling(run: Run) -> Check:
    sampling, tokenizer = run.sampling, run.policy.tokenizer
    stops = ", ".join(f"{token} {tokenizer.convert_ids_to_tokens(token)!r}" for token in sampling.stop_ids)
    settings = run.policy.model.generation_config.to_diff_dict()
    ignored = ", ".join(f"{name} {settings[name]}" for name in GENERATION if name in settings)
    text = (
        f"temperature {sampling.temperature:g} over the full distribution, {sampling.group_size} "
        f"completions of at most {write_count(sampling.max_completion_tokens, 'token')}, stop at {stops or 'nothing'}"
        + (f" (ignored settings of generation_config: {ignored})" if ignored else "")
    )
    if not sampling.stop_ids:
        return Check("warning", "sampling", f"{text}. Every completion will run to the limit: add a token to sampling.stop.")
    return Check("ok", "sampling", text)


def check_format(run: Run, encoded: EncodedData) -> Iterator[Check]:
    """One warning of plain-text prompts for a chat model, in training or in an evaluation set with settings of its own."""
    sets = {f"evaluation.sets.{name}": (encoded.sets.get(name, []), own) for name, own in run.recipe.evaluation.sets.items()}
    for place, (prompts, settings) in {"prompts": (encoded.train, run.recipe.prompts), **sets}.items():
        if text := explain_plain_prompts(run.policy, prompts, settings, place):
            yield Check("warning", "prompts", text)
            return


def explain_plain_prompts(policy: Policy, prompts: Sequence[Prompt], settings: PromptsConfig, place: str) -> str:
    """Why these prompts have the wrong form for a chat model, which continues plain text instead of answering; "" if they have not.

    A base model may have a chat template, too, but its text does not end at the end of a turn. A template of the section `place`, or
    special tokens in the prompts, are a deliberate choice.
    """
    tokenizer = policy.tokenizer
    ends = {tokenizer.eos_token_id, *make_list(policy.model.generation_config.eos_token_id)}
    tuned = (end := find_end_of_turn_id(tokenizer)) is not None and end in ends
    texts = [prompt.content for prompt in prompts if isinstance(prompt.content, str)]
    marked = any(token in text for text in texts[:ANSWER_ROWS] for token in tokenizer.all_special_tokens)
    if not tuned or not texts or len(texts) < len(prompts) or settings.template or marked:
        return ""
    column, whose = settings.prompt_column, "" if place == "prompts" else f" of {place}"
    return (
        f"this is a chat model (its tokenizer has a chat template), but all prompts{whose} are plain text, which it will continue instead of "
        f'answering. Set {place}.system to convert them to chats, or use messages: "{column}": [{{"role": "user", "content": ...}}]. If '
        f'plain text is intended: {place}.template = "{{{column}}}".'
    )


def check_prompt_lengths(run: Run, encoded: EncodedData) -> Check:
    """Check that prompt and completion fit into the model's positions, in training and in every evaluation set."""
    most = count_positions(run.policy.model.config.get_text_config())
    for name, prompts in {"": encoded.train, **encoded.sets}.items():
        evaluated = run.recipe.evaluation.max_completion_tokens if name else 0
        tokens, name = evaluated or run.sampling.max_completion_tokens, name or "prompts"
        field = f"{'evaluation' if evaluated else 'sampling'}.max_completion_tokens"
        longest, replies = max(len(prompt.token_ids) for prompt in prompts), run.sampling.max_reply_tokens
        if most and longest + tokens + replies > most:
            also = f" and {replies} for replies of the environment" if replies else ""
            text = f"{name}: prompts of up to {longest} tokens and {field} = {tokens}{also} need {longest + tokens + replies} positions, the"
            fix = ", environment.max_turns or environment.max_observation_tokens" if replies else ""
            return Check(
                "failure", "lengths", f"{text} model has {most}. Lower {field} or max_prompt_tokens{fix}.", blocks=True
            )
    report = encoded.reports["prompts"]
    level: Level = "warning" if report.too_long or report.with_unknown else "ok"
    return Check(level, "lengths", str(report))


def check_teacher(run: Run, encoded: EncodedData) -> tuple[list[Check], int]:
    """(whether the teacher can score the completions, its number of parameters), before its weights are loaded."""
    settings = run.recipe.teacher
    if not settings.source or not run.recipe.train.num_steps:
        return [], 0
    longest = max(len(prompt.token_ids) for prompt in encoded.train) + run.sampling.longest_completion
    try:
        count = inspect_teacher(settings, run.policy, longest)
    except ModelError as problem:
        return [Check("failure", "teacher", str(problem), blocks=True)], 0
    return [Check("ok", "teacher", f"{settings.source}: {count / 1e6:.2f} M parameters, the policy's vocabulary")], count


def check_memory(run: Run, encoded: EncodedData, teacher_parameters: int = 0, ranks: int = 0) -> Check:
    """Compare the peak memory of a rank with the memory of this device. ranks: a number other than the current one."""
    needed = estimate_rank(run, encoded, teacher_parameters, ranks or run.world.size)
    available = measure_room(run.policy.device)
    return Check("ok" if needed.peak <= available else "warning", "memory", describe_memory(needed, available))


def estimate_rank(run: Run, encoded: EncodedData, teacher_parameters: int, ranks: int) -> MemoryEstimate:
    numbers = replace(read_run_numbers(run, encoded, ranks), teacher_parameters=teacher_parameters)
    needed = estimate_memory(read_model_numbers(run.policy), numbers)
    if not run.recipe.sampling.slots:  # the engine then uses free memory only
        slots = fit_slots(needed, measure_room(run.policy.device))
        needed = estimate_memory(needed.model, replace(needed.run, slots=slots))
    return needed


# -- checks that sample ------------------------------------------------------------------------------------------------

TRIAL_PROMPTS = 32
OWN_PROMPTS = 8


def run_trial_checks(run: Run, encoded: EncodedData) -> list[Check]:
    """Sample a few prompts with the starting policy, and check the invariants of step 1."""
    prompts = run.stream.take(0, TRIAL_PROMPTS)
    run.engine.sync(run.policy.read_weights(), 0)
    rollouts = sample_rollouts(run, prompts, run.sampling, NoiseKey(run.recipe.seed, "preflight", 0), 1)
    return [*check_rollouts(run, rollouts), check_invariants(run, rollouts)]


def check_rollouts(run: Run, rollouts: Sequence[Rollout]) -> Iterator[Check]:
    size = run.sampling.group_size
    metrics = measure_rollouts(rollouts, 0)
    groups = [rollouts[at : at + size] for at in range(0, len(rollouts), size)]
    rates = [sum(bool(rollout.outcome.success) for rollout in group) / len(group) for group in groups]
    mean = sum(rates) / len(rates)
    # A rate of 0 or 1 out of `size` draws is not a probability of 0 or 1: each rate is pulled towards the mean of all prompts with
    # the weight of two draws, and the mean away from 0 and 1 by half a draw.
    pooled = (mean * len(rollouts) + 0.5) / (len(rollouts) + 1)
    predicted = sum(predict_useful_share((rate * size + 2 * pooled) / (size + 2), size) for rate in rates) / len(rates)
    seen = sum(0 < rate < 1 for rate in rates)
    longest, length = run.sampling.max_completion_tokens, metrics["rollout/length_mean"]
    truncated = f"{metrics['rollout/truncated']:.0%} of completions were truncated at {write_count(longest, 'token')}; mean length {length:.0f}"
    untrained = run.recipe.cold_start.num_steps > 0
    if metrics["rollout/truncated"] > 0.3 and not untrained:
        yield Check("warning", "truncation", f"{truncated}. Raise sampling.max_completion_tokens.")
    else:
        yield Check("ok", "truncation", truncated + (" (before the cold start)" if untrained else ""))
    text = f"{mean:.1%} success on {len(groups)} prompts x {size}; groups with signal: {seen} of {len(groups)}, {predicted:.0%} predicted"
    if untrained:
        yield Check("ok", "success", f"{text} (before the cold start, which comes first)")
    elif seen == 0 and mean < 0.5:
        hint = "Too hard, or answers are not found in the text: try easier prompts or a cold start, or look at a completion."
        yield Check("warning", "success", f"{text}. {hint}")
    elif seen == 0:
        yield Check("warning", "success", f"{text}. Too easy: nothing is left to learn.")
    else:
        yield Check("ok", "success", text)
    distinct = metrics["rollout/distinct"]
    level: Level = "ok" if distinct > 1.5 / size or size == 1 else "warning"
    yield Check(level, "diversity", f"{distinct:.0%} of the completions of a group are distinct")
    best = max(rollouts, key=lambda rollout: (rollout.outcome.reward or 0.0, -rollout.completion.length))
    shown = f"{best.prompt.content!r} -> {best.completion.text[:200]!r} (reward {best.outcome.reward})"
    yield Check("ok", "example", shown)


@torch.no_grad()
def check_invariants(run: Run, rollouts: Sequence[Rollout]) -> Check:
    """Ratio 1 between engine and trainer, log-probs <= 0, KL 0 to a copy of the weights."""
    scored = [rollout for rollout in rollouts if rollout.outcome.reward is not None]
    examples = make_examples(scored)
    if not examples:
        return Check("failure", "step 1", "no completion has a score, so nothing could be compared")
    policy = run.policy.score_examples(examples, run.recipe.train.micro_batch_tokens)
    again = run.policy.score_examples(examples, run.recipe.train.micro_batch_tokens)
    compared = zip(policy, examples, strict=True)
    mismatch = torch.cat([(ours - one.sampling_logprobs_T)[one.loss_mask_T].abs() for ours, one in compared])
    drift = max(float((ours - twice).abs().max()) for ours, twice in zip(policy, again, strict=True))
    limit = find_mismatch_limit(run.policy.model, run.engine.capabilities.rounding)
    largest, highest = float(mismatch.max()), max(float(ours.max()) for ours in policy)
    text = f"max |log ratio| engine to trainer {largest:.1e} (limit {limit:.0e}), largest log-prob {highest:.1e}, KL to equal weights {drift:.1e}"
    passed = largest <= limit and highest <= 1e-6 and drift == 0.0
    return Check("ok" if passed else "failure", "step 1", text)


# -- a user's own functions --------------------------------------------------------------------------------------------


def check_own_functions(run: Run) -> list[Check]:
    """Try the user's own functions on the starting policy and report the result. No weight changes."""
    algorithm = run.recipe.algorithm
    names = ", ".join(choice.name for choice in algorithm.own.values())
    if not names:
        return []
    if needs_critic(algorithm) or algorithm.data not in SAMPLED:
        return [Check("skip", "algorithm", f"{names}: they need a critic, or completions given in the rows")]
    try:
        return [Check("ok", "algorithm", f"{names}: {try_functions(run)}")]
    except CohortError as problem:
        return [Check("failure", "algorithm", str(problem))]


def try_functions(run: Run) -> str:
    recipe, policy = run.recipe, run.policy
    prompts = run.stream.take(0, OWN_PROMPTS)
    rollouts = sample_rollouts(run, prompts, run.sampling, NoiseKey(recipe.seed, "preflight", 1), 1)
    # At the start the reference is the policy itself.
    models = Models(policy, policy if measures_kl(recipe) else None, NoCritic())
    batch = make_batch(Collected(rollouts, {}, len(prompts), 0), models, recipe, 1, recipe.algorithm.kl_coef)
    advantages_N = batch.advantages_N
    result = f"advantages from {min(advantages_N):.3g} to {max(advantages_N):.3g} on {len(rollouts)} completions"
    members = batch.examples.select(batch.plan[0] if batch.plan else [])
    minibatch = pack_minibatch(members, recipe, policy, batch.layouts)
    if not minibatch.micro_batches:
        return f"{result}; no token has a loss, so the region was not called"
    micro = minibatch.micro_batches[0].to(policy.device)
    loss = token_loss(score_tokens(policy, micro, recipe.algorithm), micro, recipe.algorithm, recipe.algorithm.kl_coef)
    return f"{result}, a finite loss for each of {loss.loss_M.numel()} tokens"
