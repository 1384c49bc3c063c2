r"""Tasks of the reasoning-gym package: their rows, and the reward that scores them.

    prompts.source    = "gym:chain_sum"
    rewards.0.function = "cohort.rewards.gym.rows:gym_verifier"

Three questions decide how a task is served. Tests check the answers against the installed package:
  - Can the task's verifier, or a module below it, run text as code? Then the task is in JAILED_TASKS: its answers must pass a
    grammar in the trusted process and are scored only in a jail.
  - Do its rows depend only on the seed? Tasks in FIXED_HASH_TASKS iterate over sets. Their rows are made in a process with a fixed
    hash seed, because a resumed run needs the same prompts.
  - Is the verdict right? If the package's verifier accepts less than the right answer, a guard prevents that. If no guard can, the
    task is in REFUSED_TASKS with the reason.

docs/gym-tasks.md lists the tasks and their guards.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cohort.base.keyed import keyed_hash, keyed_share
from cohort.errors import PromptError
from cohort.recipe.sections import suggest_nearest
from cohort.rewards.gym.guards import AnswerRefused, admit, extract_answer
from cohort.rewards.pool import HelperPool
from cohort_verify.sandbox import Answer, JailUnavailable, Limits, find_tier, shared_pool
from cohort_verify.text import find_last_tag, text_of
from cohort_verify.workers import keep_pool

logger = logging.getLogger(__name__)

# ---------------------------------------------------------------------------------------------------------------------
# The tasks
# ---------------------------------------------------------------------------------------------------------------------

SAFE = """
    ab acre aiw arc_1d arc_agi base_conversion binary_alternation boxnet caesar_cipher calendar_arithmetic chain_sum
    circuit_logic coin_flip color_cube_rotation complex_arithmetic count_bits count_primes course_schedule cryptarithm
    decimal_arithmetic decimal_chain_sum dice emoji_mystery family_relationships figlet_font fraction_simplification
    futoshiki game_of_life game_of_life_halting gcd graph_color group_anagrams isomorphic_strings jugs kakurasu knight_swap
    knights_knaves largest_island lcm leg_counting letter_counting letter_jumble list_functions mahjong_puzzle
    manipulate_matrix maze mini_sudoku modulo_grid needle_haystack number_filtering number_format number_sequence
    palindrome_generation palindrome_partitioning path_star pool_matrix power_function prime_factorization products
    quantum_lock ransom_note rearc rectangle_count rotate_matrix rotten_oranges rubiks_cube rush_hour self_reference
    sentence_reordering shortest_path simple_equations simple_geometry sokoban spell_backward string_manipulation
    string_splitting string_synthesis sudoku survo syllogism time_intervals tower_of_hanoi tsumego word_ladder
    word_sequence_reversal word_sorting zebra_puzzles
"""
SAFE_TASKS = tuple(SAFE.split())
"""Tasks without a module that can run text. On a machine without a jail they are scored in ordinary worker processes."""

JAILED_TASKS: dict[str, str] = {
    "advanced_geometry": "sympy",
    "basic_arithmetic": "eval",
    "bf": "compile",
    "binary_matrix": "eval",
    "bitwise_arithmetic": "eval",
    "codeio": "exec",
    "countdown": "parse_expr",
    "gsm_symbolic": "eval",
    "intermediate_integration": "parse_expr",
    "n_queens": "eval",
    "number_sorting": "eval",
    "polynomial_equations": "sympy",
    "polynomial_multiplication": "parse_expr",
    "puzzle24": "parse_expr",
    "simple_integration": "parse_expr",
    "spiral_matrix": "eval",
    "string_insertion": "eval",
}
"""How their modules can run text. These tasks have a grammar of answers each, and need a jail."""

REFUSED_TASKS: dict[str, str] = {
    "composite": "it is a mixture; name its tasks one by one",
    "propositional_logic": (
        "its verifier can be exploited, and no condition on the answer can help: it accepts any statement that follows from "
        "the premises, and their conjunction, copied from the question, always does"
    ),
}

SERVED_TASKS: tuple[str, ...] = tuple(sorted([*SAFE_TASKS, *JAILED_TASKS]))

FIXED_HASH = """
    advanced_geometry codeio countdown intermediate_integration isomorphic_strings knight_swap polynomial_equations
    polynomial_multiplication puzzle24 ransom_note simple_integration word_ladder
"""
FIXED_HASH_TASKS = frozenset(FIXED_HASH.split())
"""Tasks that sample from sets of text, and all that generate with sympy, whose order of terms depends on the hash seed too."""


def require_served(name: str) -> None:
    """Raise PromptError, with the reason, for a task that is not served on this machine."""
    if name in REFUSED_TASKS:
        raise PromptError(f"prompts.source: gym task {name!r} is not served: {REFUSED_TASKS[name]}")
    if name in SAFE_TASKS:
        return
    if name not in JAILED_TASKS:
        close = suggest_nearest(name, [*SERVED_TASKS, *REFUSED_TASKS])
        raise PromptError(
            f"prompts.source: unknown gym task {name!r}{close}; docs/gym-tasks.md lists the {len(SERVED_TASKS)} that are served"
        )
    try:
        find_tier()
    except JailUnavailable as problem:
        raise PromptError(
            f"prompts.source: gym task {name!r} is not served on this machine: its modules can run text as code "
            f"({JAILED_TASKS[name]}), so its answers are scored only in a jail, and {problem}"
        ) from problem


# ---------------------------------------------------------------------------------------------------------------------
# Reference answers
# ---------------------------------------------------------------------------------------------------------------------

WITHOUT_ANSWER = frozenset({"rush_hour"})
"""Tasks without a reference answer: a solution of rush_hour takes a search through thousands of positions."""


def find_reference_answer(name: str, entry: Mapping[str, Any]) -> str | None:
    """The stored answer, or one made from the entry: the package stores none for tasks with many right answers.

    Without one, neither the verifier nor the rows can be checked before a run. Raises KeyError or TypeError if the entry is not
    the task's.
    """
    if name == "boxnet":
        return json.dumps(plan_boxes(entry["metadata"]["initial_state"]))
    if name == "graph_color":
        return json.dumps(entry["metadata"]["possible_answer"])
    if name == "rubiks_cube":
        return entry["metadata"]["example_correct_answer"] or reverse_moves(entry["metadata"]["scramble_moves"])
    answer = entry["answer"]
    return None if answer is None else str(answer)


def plan_boxes(state: Mapping[str, list[str]]) -> list[dict[str, str]]:
    """A plan with one action at a time: each box moves to a target of its colour, first along the rows, then along the columns."""
    targets = [(place, item) for place, items in state.items() for item in items if item.startswith("target_")]
    plans: list[dict[str, str]] = []
    for place, items in state.items():
        for box in (item for item in items if item.startswith("box_")):
            wanted = "target_" + box.removeprefix("box_")
            goal = next(target for target in targets if target[1] == wanted)
            targets.remove(goal)
            here, there = ([float(part) for part in square.split("_")] for square in (place, goal[0]))
            for axis in (0, 1):
                while here[axis] != there[axis]:
                    agent = f"Agent[{here[0]}, {here[1]}]"
                    here[axis] += 1 if there[axis] > here[axis] else -1
                    plans.append({agent: f"move({box}, square[{here[0]}, {here[1]}])"})
            plans.append({f"Agent[{here[0]}, {here[1]}]": f"move({box}, {wanted})"})
    return plans


def reverse_moves(moves: str) -> str:
    """The inverse of a sequence of cube moves: each move reversed, in reverse order."""
    return " ".join(move.removesuffix("'") if move.endswith("'") else f"{move}'" for move in reversed(moves.split()))


# ---------------------------------------------------------------------------------------------------------------------
# The reward
#
#     completion -> final answer, guard (guards.py) -> verifier (worker.py, jailed) -> score, verdict
#
# On a machine without a jail, tasks whose modules cannot run text are scored in ordinary worker processes, which are killed at the
# time limit; the others are refused.
# ---------------------------------------------------------------------------------------------------------------------

SCORE = "cohort.rewards.gym.worker:score_answer"
EXTRACT = "cohort.rewards.gym.guards:extract_in_worker"
LIMITS = Limits(cpu_s=5, memory_mb=2048, files_mb=1)
"""A verdict takes milliseconds, and up to half a second for a worker's first answer to a task."""
VERDICTS = {"cpu": "timeout", "wall": "timeout", "memory": "memory", "output": "output", "files": "files", "crash": "crash"}
"""Problem of the worker -> verdict on the answer that caused it. Any other problem is a fault of the infrastructure."""
PLAIN_WORKERS = 2


@dataclass(frozen=True)
class GymVerdict:
    """The score of one answer, and why."""

    score: float | None
    """None: unscored."""
    verdict: str
    detail: str = ""
    error: str = ""
    """Name of the exception that the verifier raised."""


def gym_verifier(
    completions: Sequence[Any],
    entry: Sequence[Any],
    task: Sequence[str],
    pattern: str = "",
    gym_args: Sequence[Mapping[str, Any] | None] | None = None,
    wall_s: float = 10.0,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    log_verdict: Callable[..., None] | None = None,
    **columns: Any,
) -> list[float | None]:
    """Score of the final answer by the task's own verifier, 0 to 1; many tasks give partial marks below 1.

    An answer that makes a verifier raise is wrong: 0.0, and logged in the column `verifier_error`.
    """
    answers = extract_answers([text_of(completion) for completion in completions], pattern, wall_s)
    settings = gym_args if gym_args is not None else [None] * len(answers)
    verdicts = score_answers(answers, [parse_entry(one) for one in entry], task, settings, wall_s)
    if log_extra is not None and any(verdict.error for verdict in verdicts):
        log_extra("verifier_error", [verdict.error for verdict in verdicts])
    if log_verdict is not None:
        for row, verdict in enumerate(verdicts):
            log_verdict(row, verdict.verdict, verdict.detail)
    return [verdict.score for verdict in verdicts]


def unusable(
    entry: Sequence[Any], task: Sequence[str], gym_args: Sequence[Mapping[str, Any] | None] | None = None, **columns: Any
) -> list[str | None]:
    """By row: why it can never be scored, or None. Its task is not served, its entry is not the task's, or its own answer is wrong."""
    settings = gym_args if gym_args is not None else [None] * len(entry)
    problems: list[str | None] = [None] * len(entry)
    references: dict[int, str] = {}
    for row, (one, name) in enumerate(zip(entry, task, strict=True)):
        try:
            require_served(name)
            reference = find_reference_answer(name, parse_entry(one))
            if reference is not None:
                references[row] = reference
        except PromptError as problem:
            problems[row] = str(problem)
        except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as problem:
            problems[row] = f"entry: not an entry of gym task {name} ({type(problem).__name__}: {problem})"
    entries, tasks, chosen = (
        [parse_entry(entry[row]) for row in references],
        [task[row] for row in references],
        [settings[row] for row in references],
    )
    verdicts = score_answers(list(references.values()), entries, tasks, chosen, LIMITS.wall_s)
    for (row, reference), verdict in zip(references.items(), verdicts, strict=True):
        if verdict.score != 1.0:
            reason = verdict.detail or verdict.error or f"it scores {verdict.score}"
            problems[row] = f"entry: its own answer {reference[:80]!r} is wrong according to gym task {task[row]} ({reason})"
    return problems


gym_verifier.supervised = True  # type: ignore[attr-defined]
gym_verifier.jailed = True  # type: ignore[attr-defined]
gym_verifier.unusable = unusable  # type: ignore[attr-defined]
gym_verifier.extract = extract_answer  # type: ignore[attr-defined]


def parse_entry(entry: Any) -> Any:
    return json.loads(entry) if isinstance(entry, str) else entry


# ---------------------------------------------------------------------------------------------------------------------
# Answers and verdicts
# ---------------------------------------------------------------------------------------------------------------------


def extract_answers(texts: Sequence[str], pattern: str, wall_s: float) -> list[str | GymVerdict]:
    """The final answers. A user's pattern may never finish on a model's text, so it runs in a worker."""
    answers: list[str | GymVerdict] = [extract_answer(text) for text in texts]
    if pattern:
        re.compile(pattern)
        untagged = [row for row, text in enumerate(texts) if find_last_tag(text) is None]
        messages = [{"completion": texts[row], "pattern": pattern} for row in untagged]
        found = ask_workers(EXTRACT, messages, LIMITS, wall_s, "", must_be_jailed=False)
        for row, answer in zip(untagged, found, strict=True):
            answers[row] = str(answer.value) if not answer.problem else read_failure(answer)
    return answers


def score_answers(
    answers: Sequence[str | GymVerdict],
    entries: Sequence[Any],
    tasks: Sequence[str],
    settings: Sequence[Mapping[str, Any] | None],
    wall_s: float,
) -> list[GymVerdict]:
    for name in dict.fromkeys(tasks):  # rows can come from a file, which can name any task
        require_served(name)
    verdicts: list[GymVerdict | None] = [None] * len(answers)
    messages: dict[int, dict[str, Any]] = {}
    for row, (answer, entry, name, chosen) in enumerate(zip(answers, entries, tasks, settings, strict=True)):
        if isinstance(answer, GymVerdict):
            verdicts[row] = answer
            continue
        try:
            admitted = admit(name, answer, entry)
            messages[row] = {"task": name, "settings": dict(chosen or {}), "entry": entry, "answer": admitted}
        except AnswerRefused as refusal:
            verdicts[row] = GymVerdict(0.0, refusal.verdict, refusal.detail)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as problem:
            detail = f"entry: not an entry of gym task {name} ({type(problem).__name__}: {problem})"
            verdicts[row] = GymVerdict(None, "infrastructure", detail)
    must_be_jailed = any(message["task"] in JAILED_TASKS for message in messages.values())
    only_jailed = "gym tasks whose modules can run text are scored only in a jail"
    replies = ask_workers(SCORE, list(messages.values()), LIMITS, wall_s, only_jailed, must_be_jailed)
    for row, reply in zip(messages, replies, strict=True):
        verdicts[row] = read_verdict(reply)
    return [verdict for verdict in verdicts if verdict is not None]


def read_verdict(reply: Answer) -> GymVerdict:
    if reply.problem:
        return read_failure(reply)
    value = reply.value if isinstance(reply.value, dict) else {}
    error, score = value.get("error"), value.get("score")
    if isinstance(error, str):
        return GymVerdict(0.0, "wrong", f"the verifier raised {error}", error)
    if not isinstance(score, int | float) or isinstance(score, bool):
        return GymVerdict(None, "infrastructure", "the verifier's worker returned no score")
    if not (math.isfinite(score) and 0.0 <= score <= 1.0):
        # Only a wrong answer that exploits a flaw of the verifier gets such a number.
        return GymVerdict(0.0, "wrong", f"the verifier returned {score}", "ScoreOutOfRange")
    return GymVerdict(float(score), "right" if score == 1.0 else "wrong")


def read_failure(reply: Answer) -> GymVerdict:
    if reply.problem in VERDICTS:
        return GymVerdict(0.0, VERDICTS[reply.problem], reply.detail)
    return GymVerdict(None, "infrastructure", f"{reply.problem}: {reply.detail}")


# ---------------------------------------------------------------------------------------------------------------------
# Workers
# ---------------------------------------------------------------------------------------------------------------------


def ask_workers(
    entry: str, messages: Sequence[Any], limits: Limits, wall_s: float, refusal: str, must_be_jailed: bool
) -> list[Answer]:
    """Replies of jailed workers; on a machine without a jail, of ordinary workers unless `must_be_jailed`."""
    try:
        return shared_pool(entry, limits).ask_many(messages, replace(limits, wall_s=wall_s))
    except JailUnavailable as problem:
        if must_be_jailed:
            raise PromptError(f"{refusal}, and {problem}") from problem
        warn_of_plain_workers(str(problem))
    # The order of sets must not decide a row or a verdict. In a jail the hash seed is fixed too.
    pool = keep_pool(entry, lambda: HelperPool(PLAIN_WORKERS, entry, {"PYTHONHASHSEED": "0"}))
    return pool.ask_many(messages, replace(limits, wall_s=wall_s))


@functools.cache
def warn_of_plain_workers(problem: str) -> None:
    """Warn once per problem."""
    logger.warning("gym tasks run in ordinary processes, with only a time limit: %s", problem)


# ---------------------------------------------------------------------------------------------------------------------
# Rows
#
# A hash of the question decides between "train" and "held_out", so the two are disjoint for all seeds and numbers of rows. Each
# split also has its own seeds. Rows are dropped if their right answer is empty, which would reward silence, or if the task's guard
# refuses it.
# ---------------------------------------------------------------------------------------------------------------------

HELD_OUT_SHARE = 0.2
DEFAULT_COUNTS = {"train": 1000, "held_out": 200}
CHUNK = 256
"""Entries per derived seed. reasoning-gym seeds entry i with seed + i, so neighbouring seeds would overlap."""
SLICE = 2
"""Entries per request to a worker: some take seconds each."""
TRIES_PER_ROW = 20
"""Entries generated per requested row before a split counts as exhausted."""
ENTRIES = "cohort.rewards.gym.worker:make_entries"
ENTRIES_LIMITS = Limits(cpu_s=120, wall_s=600, memory_mb=2048, files_mb=1)


def load_gym(name: str, split: str, seed: int, args: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of a reasoning-gym task. args: `count`, and any setting of the task."""
    require_served(name)
    if split not in DEFAULT_COUNTS:
        raise PromptError(
            f"prompts.split: gym tasks have no split {split!r}{suggest_nearest(split, DEFAULT_COUNTS)}; they have train and held_out"
        )
    settings = dict(args)
    count = settings.pop("count", DEFAULT_COUNTS[split])
    if not isinstance(count, int) or count < 1:
        raise PromptError(f"prompts.args.count: give the number of rows, at least 1 (got {count!r})")
    check_settings(name, settings)
    rows: dict[str, dict[str, Any]] = {}
    for tries, entry in enumerate(stream_entries(name, split, seed, settings)):
        if len(rows) == count or tries == count * TRIES_PER_ROW + CHUNK:
            break
        if entry is None or entry["question"] in rows or choose_split(name, entry["question"]) != split:
            continue
        answer = find_reference_answer(name, entry)
        try:  # of an integral that the package could not solve it stores the integral, which the guard refuses
            usable = answer is None or bool(admit(name, answer, entry))
        except AnswerRefused:
            usable = False
        if usable:
            rows[entry["question"]] = {
                "prompt": entry["question"],
                "answer": answer,
                "entry": dict(entry),
                "task": name,
                # Some verifiers read their settings (tolerances, for instance), so the scoring one needs those of the question.
                "gym_args": dict(settings),
            }
    if not rows:
        raise PromptError(f"prompts.source: gym task {name} has no {split} problem with these arguments; widen prompts.args")
    if len(rows) < count:
        warnings.warn(f"gym task {name}: only {len(rows)} different {split} problems of the {count} requested", stacklevel=2)
    return list(rows.values())


def choose_split(name: str, question: str) -> str:
    return "held_out" if keyed_share("gym", name, question) < HELD_OUT_SHARE else "train"


def check_settings(name: str, settings: Mapping[str, Any]) -> None:
    fields = [field.name for field in dataclasses.fields(load_worker().DATASETS[name][1]) if field.name not in ("seed", "size")]
    for given in settings:
        if given in ("seed", "size"):
            replacement = "count" if given == "size" else "the recipe's seed"
            raise PromptError(f"prompts.args.{given}: use {replacement} instead, from which it is derived")
        if given not in fields:
            raise PromptError(
                f"prompts.args: gym task {name} takes no {given!r}{suggest_nearest(given, [*fields, 'count'])}; it takes count, {', '.join(fields)}"
            )
    if name == "codeio" and "input_prediction_probability" in settings:
        raise PromptError(
            "prompts.args.input_prediction_probability: leave it out. Only outputs are supported: for an input "
            "the verifier would accept only the stored one, though others give the same output"
        )
    if name == "rubiks_cube" and settings.get("cube_size", 3) > 3:
        raise PromptError(
            "prompts.args.cube_size: set 2 or 3. The package scrambles larger cubes with moves of inner layers, which its verifier "
            "ignores in answers"
        )


# ---------------------------------------------------------------------------------------------------------------------
# Entries
# ---------------------------------------------------------------------------------------------------------------------


def stream_entries(name: str, split: str, seed: int, settings: Mapping[str, Any]) -> Iterator[dict[str, Any] | None]:
    """An endless stream of entries as plain JSON values; None for an entry that is unfit for training."""
    chunk = 0
    while True:
        derived = keyed_hash("gym", name, seed, split, chunk) % 2**31
        chosen = {**settings, "size": CHUNK, "seed": derived}
        dataset = create_dataset(name, chosen)  # also if a worker makes the entries: wrong settings get an error message here
        if name in FIXED_HASH_TASKS:
            for start in range(0, CHUNK, SLICE):
                yield from make_entries_elsewhere({"task": name, "settings": chosen, "start": start, "stop": start + SLICE})
        else:
            for index in range(CHUNK):
                yield load_worker().make_plain_entry(name, dataset, index)
        chunk += 1


def make_entries_elsewhere(message: dict[str, Any]) -> list[dict[str, Any] | None]:
    """Entries made in a worker with PYTHONHASHSEED=0, which a running process cannot set."""
    task = message["task"]
    refusal = f"prompts.source: gym task {task} makes its problems only in a jail"
    [answer] = ask_workers(ENTRIES, [message], ENTRIES_LIMITS, ENTRIES_LIMITS.wall_s, refusal, task in JAILED_TASKS)
    if answer.problem or not isinstance(answer.value, list):
        raise PromptError(f"prompts.source: gym task {task} could not make its problems ({answer.problem}: {answer.detail})")
    return answer.value


def load_worker() -> Any:
    """The module that imports reasoning-gym; PromptError if that is not installed."""
    try:
        from cohort.rewards.gym import worker
    except ImportError as problem:
        raise PromptError(
            'prompts.source: "gym:" needs reasoning-gym; install it with: pip install "cohort-rl[gym]"'
        ) from problem
    return worker


def create_dataset(name: str, settings: Mapping[str, Any]) -> Any:
    try:
        return load_worker().create_dataset(name, settings)
    except (AssertionError, TypeError, ValueError) as problem:
        raise PromptError(
            f"prompts.args: gym task {name} refuses these arguments: {problem or 'a value is out of range'}"
        ) from problem
