r"""Tasks of the reasoning-gym package by name, and the reward that calls a task's own verifier.

    prompts.source    = "gym:chain_sum"
    rewards.0.function = "cohort.tasks.gym:gym_verifier"

Only the tasks in SAFE_TASKS are served. A model's answer is untrusted text, and many of the package's verifiers hand
it to `eval`, `exec` or sympy's parsers, which execute it. A task is on the list when
  - neither its module nor any reasoning_gym module below it mentions a function that runs text as code, and a verifier
    of its own does not sit in a module that imports sympy (whose functions parse strings on their own);
  - the verifier gives 1.0 to the stored answer after the entry went through JSON, which is how it reaches workers;
  - no fixed answer ("0", "nan", ...), and not the answer to another problem, earns full marks throughout;
  - the rows depend on the seed alone, not on PYTHONHASHSEED: a resumed run must meet the same prompts.
The tests derive these properties again from the installed package. REFUSED_TASKS says why the others are not here.

Splits. A question belongs to "train" or "held_out" by a hash of its text, so that the two are disjoint whatever the
seeds and the numbers of rows; each split also draws from seeds of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cohort.config import nearest
from cohort.errors import PromptError
from cohort.rewards.text import last_boxed, text_of
from cohort.tasks.keyed import keyed_hash, keyed_share

HELD_OUT_SHARE = 0.2
DEFAULT_COUNTS = {"train": 1000, "held_out": 200}
CHUNK = 256
"""Entries generated from one derived seed. reasoning-gym seeds entry i with seed + i, so neighbouring seeds overlap."""
TRIES_PER_ROW = 20
"""Entries generated per row wanted before a split counts as exhausted."""

SAFE_TASKS: tuple[str, ...] = (
    "ab",
    "acre",
    "aiw",
    "arc_1d",
    "base_conversion",
    "binary_alternation",
    "caesar_cipher",
    "calendar_arithmetic",
    "chain_sum",
    "circuit_logic",
    "color_cube_rotation",
    "count_bits",
    "count_primes",
    "course_schedule",
    "cryptarithm",
    "decimal_arithmetic",
    "decimal_chain_sum",
    "dice",
    "emoji_mystery",
    "family_relationships",
    "figlet_font",
    "fraction_simplification",
    "futoshiki",
    "gcd",
    "group_anagrams",
    "jugs",
    "kakurasu",
    "knights_knaves",
    "largest_island",
    "lcm",
    "leg_counting",
    "letter_counting",
    "letter_jumble",
    "list_functions",
    "mahjong_puzzle",
    "manipulate_matrix",
    "maze",
    "mini_sudoku",
    "modulo_grid",
    "needle_haystack",
    "number_filtering",
    "number_format",
    "number_sequence",
    "palindrome_generation",
    "palindrome_partitioning",
    "path_star",
    "pool_matrix",
    "power_function",
    "prime_factorization",
    "products",
    "quantum_lock",
    "rectangle_count",
    "rotate_matrix",
    "rotten_oranges",
    "self_reference",
    "sentence_reordering",
    "shortest_path",
    "simple_equations",
    "simple_geometry",
    "sokoban",
    "spell_backward",
    "string_manipulation",
    "string_splitting",
    "string_synthesis",
    "sudoku",
    "survo",
    "syllogism",
    "time_intervals",
    "tower_of_hanoi",
    "tsumego",
    "word_sequence_reversal",
    "word_sorting",
    "zebra_puzzles",
)

RUNS_TEXT = "its verifier, or a module it uses, can run text as code ({}); it waits for the sandboxed worker"
NO_GOLD = "it stores no answer, so its verifier cannot be checked before a run"
NOT_JSON = "its verifier rejects the stored answer once the entry went through JSON"
GAMED = "its verifier is gamed: {}"
UNSTABLE = "its rows change from process to process, so a resumed run would meet other prompts"

REFUSED_TASKS: dict[str, str] = {
    "advanced_geometry": RUNS_TEXT.format("sympy"),
    "arc_agi": NOT_JSON,
    "basic_arithmetic": RUNS_TEXT.format("eval"),
    "bf": RUNS_TEXT.format("compile"),
    "binary_matrix": RUNS_TEXT.format("eval"),
    "bitwise_arithmetic": RUNS_TEXT.format("eval"),
    "boxnet": NO_GOLD,
    "codeio": RUNS_TEXT.format("exec"),
    "coin_flip": GAMED.format('"0" scores 1.0 as a prefix of every probability'),
    "complex_arithmetic": GAMED.format('"nan" scores 1.0'),
    "composite": "it is a mixture; name its tasks one by one",
    "countdown": RUNS_TEXT.format("parse_expr"),
    "game_of_life": GAMED.format("a board of dead cells scores about 0.9"),
    "game_of_life_halting": GAMED.format("any text scores 1.0"),
    "graph_color": NO_GOLD,
    "gsm_symbolic": RUNS_TEXT.format("eval"),
    "intermediate_integration": RUNS_TEXT.format("parse_expr"),
    "isomorphic_strings": UNSTABLE,
    "knight_swap": UNSTABLE,
    "n_queens": RUNS_TEXT.format("eval"),
    "number_sorting": RUNS_TEXT.format("eval"),
    "polynomial_equations": RUNS_TEXT.format("sympy"),
    "polynomial_multiplication": RUNS_TEXT.format("parse_expr"),
    "propositional_logic": RUNS_TEXT.format("parse_expr"),
    "puzzle24": RUNS_TEXT.format("parse_expr"),
    "ransom_note": UNSTABLE,
    "rearc": NOT_JSON,
    "rubiks_cube": NO_GOLD,
    "rush_hour": NO_GOLD,
    "simple_integration": RUNS_TEXT.format("parse_expr"),
    "spiral_matrix": RUNS_TEXT.format("eval"),
    "string_insertion": RUNS_TEXT.format("eval"),
    "word_ladder": UNSTABLE,
}


def load_gym(name: str, split: str, seed: int, args: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of a reasoning-gym task. args: `count`, and anything the task's own config takes."""
    require_safe(name)
    if split not in DEFAULT_COUNTS:
        raise PromptError(
            f"prompts.split: gym tasks have no split {split!r}{nearest(split, DEFAULT_COUNTS)}; they have train and held_out"
        )
    settings = dict(args)
    count = settings.pop("count", DEFAULT_COUNTS[split])
    if not isinstance(count, int) or count < 1:
        raise PromptError(f"prompts.args.count: give the number of rows, at least 1 (got {count!r})")
    check_settings(name, settings)
    rows: dict[str, dict[str, Any]] = {}
    for tries, entry in enumerate(entries(name, split, seed, settings)):
        if len(rows) == count or tries == count * TRIES_PER_ROW + CHUNK:
            break
        if entry["question"] not in rows and split_of(name, entry["question"]) == split:
            rows[entry["question"]] = make_row(name, entry, settings)
    if not rows:
        raise PromptError(f"prompts.source: gym task {name} has no {split} problem with these arguments; widen prompts.args")
    if len(rows) < count:
        warnings.warn(f"gym task {name}: only {len(rows)} different {split} problems of the {count} asked for", stacklevel=2)
    return list(rows.values())


def make_row(name: str, entry: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "prompt": entry["question"],
        "answer": entry["answer"],
        "entry": dict(entry),
        "task": name,
        # Some verifiers read their config (tolerances, for instance): the one that scores must be the one that asked.
        "gym_args": dict(settings),
    }


def split_of(name: str, question: str) -> str:
    return "held_out" if keyed_share("gym", name, question) < HELD_OUT_SHARE else "train"


def entries(name: str, split: str, seed: int, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """An endless stream of entries, each as plain JSON values."""
    chunk = 0
    while True:
        derived = keyed_hash("gym", name, seed, split, chunk) % 2**31
        dataset = create_dataset(name, {**settings, "size": CHUNK, "seed": derived})
        for index in range(CHUNK):
            yield json.loads(json.dumps(dataset[index]))
        chunk += 1


def require_safe(name: str) -> None:
    if name in SAFE_TASKS:
        return
    if name in REFUSED_TASKS:
        raise PromptError(f"prompts.source: gym task {name!r} is not served: {REFUSED_TASKS[name]}")
    close = nearest(name, [*SAFE_TASKS, *REFUSED_TASKS])
    raise PromptError(
        f"prompts.source: gym task {name!r} is not on the list of tasks whose verifiers are known not to run model text as "
        f"code{close}; others wait for the sandboxed worker. The list is cohort.tasks.gym.SAFE_TASKS ({len(SAFE_TASKS)} tasks)"
    )


def check_settings(name: str, settings: Mapping[str, Any]) -> None:
    fields = [field.name for field in dataclasses.fields(registry()[name][1]) if field.name not in ("seed", "size")]
    for given in settings:
        if given in ("seed", "size"):
            word = "count" if given == "size" else "the recipe's seed"
            raise PromptError(f"prompts.args.{given}: use {word} instead, from which it is derived")
        if given not in fields:
            raise PromptError(
                f"prompts.args: gym task {name} takes no {given!r}{nearest(given, [*fields, 'count'])}; it takes count, {', '.join(fields)}"
            )


def registry() -> dict[str, Any]:
    try:
        from reasoning_gym.factory import DATASETS
    except ImportError as problem:
        raise PromptError(
            'prompts.source: "gym:" needs reasoning-gym; install it with: pip install "cohort-rl[gym]"'
        ) from problem
    import reasoning_gym  # noqa: F401  (registers the tasks)

    return DATASETS


def create_dataset(name: str, settings: Mapping[str, Any]) -> Any:
    dataset_class, config_class = registry()[name]
    try:
        return dataset_class(config=config_class(**settings))
    except (AssertionError, TypeError, ValueError) as problem:
        raise PromptError(
            f"prompts.args: gym task {name} refuses these arguments: {problem or 'a value is out of range'}"
        ) from problem


# ---------------------------------------------------------------------------------------------------------------------
# The reward
# ---------------------------------------------------------------------------------------------------------------------


def gym_verifier(
    completions: Sequence[Any],
    entry: Sequence[Any],
    task: Sequence[str],
    pattern: str = "",
    gym_args: Sequence[Mapping[str, Any]] | None = None,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    **columns: Any,
) -> list[float]:
    """Score of the final answer by the task's own verifier, 0 to 1; many tasks give part marks below 1.

    An answer that makes a verifier raise is a wrong answer: 0.0, and logged in the column `verifier_error`.
    """
    arguments = gym_args if gym_args is not None else [{}] * len(completions)
    scores, errors = [], []
    for completion, one_entry, name, settings in zip(completions, entry, task, arguments, strict=True):
        score, error = score_one(extract_answer(text_of(completion), pattern), one_entry, name, settings)
        scores.append(score)
        errors.append(error)
    if log_extra is not None and any(errors):
        log_extra("verifier_error", errors)
    return scores


def score_one(answer: str, entry: Any, name: str, settings: Mapping[str, Any] | None) -> tuple[float, str]:
    require_safe(name)  # Rows can come from a file, and a file can name any task.
    verifier = cached_verifier(name, json.dumps(settings or {}, sort_keys=True))
    entry = json.loads(entry) if isinstance(entry, str) else entry
    try:
        # Some verifiers print what they think of a wrong answer.
        with contextlib.redirect_stdout(io.StringIO()):
            return float(verifier(answer, entry)), ""
    except Exception as problem:
        return 0.0, type(problem).__name__


@functools.lru_cache(maxsize=64)
def cached_verifier(name: str, settings_json: str) -> Callable[[str, Any], float]:
    return create_dataset(name, {**json.loads(settings_json), "size": 1, "seed": 0}).score_answer


ANSWER_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def extract_answer(completion: str, pattern: str = "") -> str:
    r"""The final answer: the last <answer>..</answer>, else the last match of `pattern` (its first group, where it has
    one), else the last \boxed{..}, else the whole text; without white space around it."""
    tagged = ANSWER_TAG.findall(completion)
    if tagged:
        return tagged[-1].strip()
    if pattern:
        matches = list(re.finditer(pattern, completion, re.DOTALL))
        if matches:
            return (matches[-1].group(1 if matches[-1].re.groups else 0) or "").strip()
    boxed = last_boxed(completion)
    return completion.strip() if boxed is None else boxed.strip()


gym_verifier.extract = extract_answer  # type: ignore[attr-defined]
