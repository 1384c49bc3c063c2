"""Held-out evaluation: pass@k, maj@k, mean@k and greedy accuracy with intervals, and paired comparison of two of them.

Differences from the usual evaluation loop:

- The noise is keyed by (seed, "evaluate", step 0) at every training step, and by the content of the problem. So the evaluations before
  and after training use the same noise for the same problem, independent of row order and of other sets.
- Numbers are estimated per problem and resampled over problems. The verdicts are kept, so that two evaluations can be compared problem
  by problem, also from the files of two runs. A problem is identified by a hash of its content and reference answer: row numbers would
  pair different problems if two runs differ in seed or source.
- A completion without a verdict (its reward function failed or abstained) is left out and counted. A problem with fewer than k verdicts
  is left out of pass@k; majority votes use the remaining verdicts.
- mean@k is the mean *success* of the k completions, equal to pass@1; it is printed because papers use the name. The mean weighted
  reward, with shaping rewards, is reported separately as `reward`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from cohort.base.keyed import keyed_hash
from cohort.base.text import write_count
from cohort.base.world import ALONE, World
from cohort.data.prompts import make_prompt_key
from cohort.engine import regroup
from cohort.evaluation.estimators import Estimate, PairedDifference, estimate, maj_at_k, mean_at_k, paired_test, pass_at_k
from cohort.types import Completion, NoiseKey, Outcome, Prompt, Request, Sampling

if TYPE_CHECKING:  # comparing stored evaluations must not import an engine
    from cohort.engine.protocol import Engine
    from cohort.rewards.contract import Scored, Scorer
    from cohort.rewards.runner import RewardRunner

NO_ANSWER = "no reward function has an extracted answer (`extract`) to vote on"
MARKS: dict[bool | None, str] = {True: "1", False: "0", None: "-"}
Value = TypeVar("Value")
VERDICTS: dict[str, bool | None] = {mark: verdict for verdict, mark in MARKS.items()}


@dataclass(frozen=True, slots=True)
class ProblemVerdicts:
    """The verdicts of one set, problem by problem."""

    problems: tuple[str, ...]
    """`make_problem_key` of each problem."""
    success: tuple[tuple[bool | None, ...], ...]
    """[problem][sample]; None: no verdict."""
    greedy: tuple[bool | None, ...] = ()
    """One verdict per problem, or empty without greedy completions."""
    reward: tuple[float | None, ...] = ()
    """Mean reward of each problem, with shaping rewards."""

    def success_rates(self, k: int = 1) -> dict[str, float]:
        """Problem -> its pass@k (k = 1: the share of successes). Problems with fewer verdicts are left out.

        Copies of a problem count as one problem with all their verdicts, because they succeed and fail together.
        """
        enough = {key: row for key, row in self.pool_success().items() if len(row) >= k}
        return {key: mean_at_k(row) if k == 1 else pass_at_k(sum(row), len(row), k) for key, row in enough.items()}

    def pool_success(self) -> dict[str, list[bool]]:
        """Problem -> the verdicts (not None) of all its copies."""
        pooled = pool(self.problems, self.success)
        return {key: [verdict for row in rows for verdict in row if verdict is not None] for key, rows in pooled.items()}

    def greedy_verdicts(self) -> dict[str, float]:
        """Problem -> 1 or 0 for its greedy completion (the mean over copies); problems without a verdict are left out."""
        found = pool(self.problems, self.greedy) if self.greedy else {}
        known = {key: [verdict for verdict in verdicts if verdict is not None] for key, verdicts in found.items()}
        return {key: mean_at_k(verdicts) for key, verdicts in known.items() if verdicts}

    def to_json(self) -> dict[str, Any]:
        """A short string ("1101-011") and a key per problem: about ten kilobytes for 512 problems."""
        return {
            "problem": list(self.problems),
            "success": ["".join(MARKS[verdict] for verdict in row) for row in self.success],
            "greedy": "".join(MARKS[verdict] for verdict in self.greedy),
            "reward": list(self.reward),
        }

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> ProblemVerdicts:
        return ProblemVerdicts(
            tuple(plain["problem"]),
            tuple(tuple(VERDICTS[mark] for mark in row) for row in plain["success"]),
            tuple(VERDICTS[mark] for mark in plain.get("greedy", "")),
            tuple(plain.get("reward", ())),
        )


def pool(keys: Sequence[str], values: Sequence[Value]) -> dict[str, list[Value]]:
    """Problem -> the values of its copies, in their order."""
    found: dict[str, list[Value]] = {}
    for key, value in zip(keys, values, strict=False):
        found.setdefault(key, []).append(value)
    return found


def make_problem_key(prompt: Prompt) -> str:
    """16 hex digits that identify a problem by question and reference answer, in any run, row or chat template."""
    answer = prompt.reference_answer
    return f"{keyed_hash('problem', make_prompt_key(prompt), '' if answer is None else answer):016x}"


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation:
    """One evaluation of a policy on one or more sets: `evaluation.sets["held_out"]["pass@1"].value`."""

    step: int
    sets: Mapping[str, Mapping[str, Estimate]]
    counts: Mapping[str, Mapping[str, float]]
    """Per set: problems, completions, unscored (counts), truncated (share), length_mean (tokens)."""
    per_problem: Mapping[str, ProblemVerdicts]
    examples: tuple[Mapping[str, Any], ...] = ()
    """The completions of the first few problems of each set: the rows of samples/before.jsonl and samples/after.jsonl."""
    seconds: float = 0.0
    label: str = ""
    """before, during or after."""

    def __repr__(self) -> str:
        """`Evaluation(held_out: 128 problems, pass@1 54.1 % [50.2, 58.0], pass@8 ...)`"""
        return f"Evaluation({'; '.join(self.describe(name) for name in self.sets)})"

    def describe(self, name: str = "") -> str:
        """One set (default: the first) in a line: pass@k, greedy accuracy and the reward, with 95 % intervals."""
        name = name or next(iter(self.sets))
        shown = [what for what in self.sets[name] if not what.startswith(("mean@", "maj@"))]
        numbers = [f"{what} {self.sets[name][what].written(share=what != 'reward')}" for what in shown]
        count = int(self.counts[name]["problems"])
        problems = write_count(count, "problem")
        return f"{name}: {', '.join([problems, *numbers])}"

    def metrics(self) -> dict[str, float]:
        """The `eval/<set>/<what>` metrics of the step."""
        row: dict[str, float] = {}
        for name, estimates in self.sets.items():
            row |= {f"eval/{name}/{what}": e.value for what, e in estimates.items() if e.value is not None}
            row |= {f"eval/{name}/{what}": self.counts[name][what] for what in ("truncated", "length_mean", "unscored")}
        return row

    def to_json(self) -> dict[str, Any]:
        """A line of evaluations.jsonl, without `examples`, which have their own files."""
        return {
            "step": self.step,
            "label": self.label,
            "sets": {
                name: {**{what: e.to_json() for what, e in estimates.items()}, **self.counts[name]}
                for name, estimates in self.sets.items()
            },
            "per_problem": {name: verdicts.to_json() for name, verdicts in self.per_problem.items()},
            "seconds": round(self.seconds, 3),
        }

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> Evaluation:
        sets: dict[str, dict[str, Estimate]] = {}
        counts: dict[str, dict[str, float]] = {}
        for name, values in plain["sets"].items():
            sets[name] = {what: Estimate(**value) for what, value in values.items() if isinstance(value, Mapping)}
            counts[name] = {what: value for what, value in values.items() if not isinstance(value, Mapping)}
        verdicts = {name: ProblemVerdicts.from_json(value) for name, value in plain.get("per_problem", {}).items()}
        return Evaluation(plain["step"], sets, counts, verdicts, (), plain.get("seconds", 0.0), plain.get("label", ""))


@dataclass(frozen=True, slots=True)
class SampledSet:
    """The completions and outcomes of one set."""

    prompts: Sequence[Prompt]
    groups: Sequence[Sequence[Completion]]
    outcomes: Sequence[Sequence[Outcome]]
    greedy: Sequence[Outcome] = field(default=())

    def list_verdicts(self) -> ProblemVerdicts:
        rewards = [[o.reward for o in row if o.reward is not None] for row in self.outcomes]
        return ProblemVerdicts(
            tuple(make_problem_key(prompt) for prompt in self.prompts),
            tuple(tuple(outcome.success for outcome in row) for row in self.outcomes),
            tuple(outcome.success for outcome in self.greedy),
            tuple(sum(row) / len(row) if row else None for row in rewards),
        )

    def count(self) -> dict[str, float]:
        completions = [completion for group in self.groups for completion in group]
        total = max(1, len(completions))
        return {
            "problems": len({make_problem_key(prompt) for prompt in self.prompts}),
            "completions": len(completions),
            "unscored": sum(outcome.success is None for row in self.outcomes for outcome in row),
            "truncated": sum(completion.end == "length" for completion in completions) / total,
            "length_mean": sum(completion.length for completion in completions) / total,
        }

    def list_examples(self, name: str, count: int) -> list[dict[str, Any]]:
        """The first problems of the set, the same before and after training."""
        return [
            {
                "set": name,
                "prompt": prompt.content,
                "answer": None if prompt.reference_answer is None else str(prompt.reference_answer),
                "completions": [
                    {"text": completion.text, "reward": outcome.reward, "success": outcome.success}
                    for completion, outcome in zip(group, outcomes, strict=True)
                ],
            }
            for prompt, group, outcomes in list(zip(self.prompts, self.groups, self.outcomes, strict=True))[:count]
        ]


def evaluate(
    engine: Engine,
    prompts: Mapping[str, Sequence[Prompt]],
    rewards: Mapping[str, RewardRunner],
    *,
    sampling: Sampling,
    seed: int,
    step: int = 0,
    num_steps: int = 0,
    greedy: bool = True,
    resamples: int = 1000,
    examples: int = 4,
    label: str = "",
    world: World = ALONE,
    on_progress: Callable[[float], None] | None = None,
) -> Evaluation:
    """Sample `sampling.group_size` completions per problem, score each set with its rewards, and estimate.

    on_progress: called during sampling with the share of it that is done, as the engine's `on_progress`.
    """
    started = time.monotonic()
    sampling, noise = replace(sampling, with_greedy=greedy), NoiseKey(seed, "evaluate", step=0)
    draws = [pair for problems in prompts.values() for pair in zip(problems, key_draws(problems), strict=True)]
    mine = draws[world.block(len(draws))]
    requests = [Request(prompt, draw, sample) for prompt, draw in mine for sample in range(sampling.completions)]
    # One call for all sets and the greedy completions: each decode step of a call reads the whole model.
    engine.on_progress = on_progress
    try:
        completions = world.compute(lambda: engine.generate(requests, sampling, noise))
    finally:
        engine.on_progress = None
    groups_PG = iter(regroup(completions, len(draws), sampling.completions))
    sets, counts, per_problem = {}, {}, {}
    rows: list[Mapping[str, Any]] = []
    for name, problems in prompts.items():
        whole = list(islice(groups_PG, len(problems)))
        scored = score_groups(rewards[name], problems, whole, step, num_steps)
        outcomes = regroup(scored.outcomes, len(whole), sampling.completions)
        most_likely = [row[-1] for row in outcomes] if greedy else []
        samples = slice(sampling.group_size)
        drawn = SampledSet(problems, [row[samples] for row in whole], [row[samples] for row in outcomes], most_likely)
        per_problem[name] = drawn.list_verdicts()
        answers = rewards[name].has_answers
        sets[name] = estimate_set(drawn, per_problem[name], list_ks(sampling.group_size), answers, resamples, seed)
        counts[name] = drawn.count()
        rows += drawn.list_examples(name, examples)
    return Evaluation(step, sets, counts, per_problem, tuple(rows), time.monotonic() - started, label)


def key_draws(problems: Sequence[Prompt]) -> Iterator[int]:
    """The draw of each problem, which keys its noise: by its content and its number among the copies in the set."""
    copies: Counter[str] = Counter()
    for problem in problems:
        content = make_prompt_key(problem)
        yield keyed_hash("draw", content, copies[content])
        copies[content] += 1


def list_ks(samples: int) -> tuple[int, ...]:
    """1, 2, 4, ... up to the number of samples, and that number."""
    return tuple(sorted({2**power for power in range(samples.bit_length()) if 2**power <= samples} | {samples}))


def score_groups(
    rewards: Scorer, prompts: Sequence[Prompt], completions_PG: Sequence[Sequence[Completion]], step: int, num_steps: int
) -> Scored:
    """Score groups; the outcomes are in the order of the completions, group after group."""
    flat = [(prompt, completion) for prompt, group in zip(prompts, completions_PG, strict=True) for completion in group]
    return rewards.score([prompt for prompt, _ in flat], [one for _, one in flat], step=step, num_steps=num_steps)


def estimate_set(
    drawn: SampledSet, verdicts: ProblemVerdicts, ks: Sequence[int], answers: bool, resamples: int, seed: int
) -> dict[str, Estimate]:
    """All numbers of one set, in the order of printing. Copies count as one problem, or intervals would be too narrow."""
    success = verdicts.pool_success().values()
    samples = max((len(group) for group in drawn.groups), default=0)
    numbers: dict[str, Estimate] = {}
    for k in ks:
        numbers[f"pass@{k}"] = estimate([pass_at_k(sum(row), len(row), k) for row in success if len(row) >= k], resamples, seed)
    # Also 8, which most papers print; with more samples it is exact over all subsets.
    scored = [
        [o for row in rows for o in row if o.success is not None] for rows in pool(verdicts.problems, drawn.outcomes).values()
    ]
    for k in sorted({samples, min(8, samples)} - {0}):
        numbers[f"maj@{k}"] = estimate_majority(scored, k, answers, resamples, seed)
    numbers[f"mean@{samples}"] = estimate([mean_at_k(row) for row in success if row], resamples, seed)
    if drawn.greedy:
        numbers["greedy"] = estimate(list(verdicts.greedy_verdicts().values()), resamples, seed)
    rewards = [[one for one in copies if one is not None] for copies in pool(verdicts.problems, verdicts.reward).values()]
    numbers["reward"] = estimate([sum(row) / len(row) for row in rewards if row], resamples, seed, proportion=False)
    return numbers


def estimate_majority(scored: Sequence[Sequence[Outcome]], k: int, answers: bool, resamples: int, seed: int) -> Estimate:
    if not answers:
        return Estimate(None, None, None, NO_ANSWER)
    votes = [maj_at_k([o.answer for o in row], [bool(o.success) for o in row], min(k, len(row))) for row in scored if row]
    return estimate(votes, resamples, seed)


def compare(a: Evaluation, b: Evaluation, *, seed: int = 0, resamples: int = 10_000) -> dict[str, dict[str, PairedDifference]]:
    """b minus a, per set: pass@1, pass@k for the largest k, and greedy.

    Paired on the problems that both evaluations contain, matched by content; sets without common problems are left out.
    """
    common = [name for name in a.per_problem if name in b.per_problem]
    sets = {name: compare_set(a.per_problem[name], b.per_problem[name], seed, resamples) for name in common}
    return {name: found for name, found in sets.items() if found}


def compare_set(a: ProblemVerdicts, b: ProblemVerdicts, seed: int, resamples: int) -> dict[str, PairedDifference]:
    found = {}
    sides = {"pass@1": (a.success_rates(), b.success_rates())}
    if k := find_largest_k(a, b):
        sides[f"pass@{k}"] = a.success_rates(k), b.success_rates(k)
    sides["greedy"] = a.greedy_verdicts(), b.greedy_verdicts()
    for what, (left, right) in sides.items():
        common = [place for place in left if place in right]
        if common:
            found[what] = paired_test([left[place] for place in common], [right[place] for place in common], seed, resamples)
    return found


def find_largest_k(a: ProblemVerdicts, b: ProblemVerdicts) -> int:
    """The largest k above 1 in both evaluations for which most problems have enough verdicts; 0 if there is none."""
    samples = min(max((len(row) for row in one.success), default=0) for one in (a, b))
    common = len(a.success_rates().keys() & b.success_rates().keys())
    for k in reversed(list_ks(samples) if samples > 1 else ()):
        if k > 1 and 2 * len(a.success_rates(k).keys() & b.success_rates(k).keys()) > common:
            return k
    return 0


def summarize(before: Evaluation | None, after: Evaluation | None) -> dict[str, Any]:
    """The `eval` entry of summary.json: the first set, all sets, and the paired changes."""
    sides = {"before": before, "after": after}
    first: dict[str, dict[str, Any]] = {label: {} for label in sides}
    sets: dict[str, dict[str, Any]] = {name: {} for side in sides.values() if side for name in side.sets}
    for label, evaluation in sides.items():
        for number, (name, values) in enumerate(evaluation.to_json()["sets"].items() if evaluation else ()):
            sets[name][label] = values
            if number == 0:
                first[label] = {what: value for what, value in values.items() if isinstance(value, Mapping)}
    changed = compare(before, after) if before is not None and after is not None else {}
    change = {name: {what: paired.to_json() for what, paired in values.items()} for name, values in changed.items()}
    return {**first, "sets": sets, "change": change}
