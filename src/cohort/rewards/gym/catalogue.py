"""Which tasks of the reasoning-gym package are served, under which conditions, and why the others are not.

Three questions decide, and the tests ask them again of the installed package:
  - Can the task's verifier, or a module below it, run text as code? Then it is in JAILED_TASKS: its answers pass a
    grammar in the trusted process (guards.py) and are scored in a jail, or not at all.
  - Do its rows depend on the seed alone? Those in FIXED_HASH_TASKS iterate over sets; their rows are made in a process
    with a fixed hash seed, for a resumed run must meet the same prompts.
  - Is the verdict right? Where the package's verifier can be had for less than the right answer, a guard closes the
    hole; where that cannot be done, the task is in REFUSED_TASKS, with the reason.
"""

from __future__ import annotations

from cohort.errors import PromptError
from cohort.recipe.sections import suggest_nearest
from cohort_verify.sandbox import JailUnavailable, find_tier

SAFE_TASKS: tuple[str, ...] = (
    "ab",
    "acre",
    "aiw",
    "arc_1d",
    "arc_agi",
    "base_conversion",
    "binary_alternation",
    "boxnet",
    "caesar_cipher",
    "calendar_arithmetic",
    "chain_sum",
    "circuit_logic",
    "coin_flip",
    "color_cube_rotation",
    "complex_arithmetic",
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
    "game_of_life",
    "game_of_life_halting",
    "gcd",
    "graph_color",
    "group_anagrams",
    "isomorphic_strings",
    "jugs",
    "kakurasu",
    "knight_swap",
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
    "ransom_note",
    "rearc",
    "rectangle_count",
    "rotate_matrix",
    "rotten_oranges",
    "rubiks_cube",
    "rush_hour",
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
    "word_ladder",
    "word_sequence_reversal",
    "word_sorting",
    "zebra_puzzles",
)
"""No module of theirs can run text: where the machine has no jail, they are scored in ordinary worker processes."""

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
"""What their modules can run text with. They have a grammar of answers each, and are served only where there is a jail."""

REFUSED_TASKS: dict[str, str] = {
    "composite": "it is a mixture; name its tasks one by one",
    "propositional_logic": (
        "its verifier is gamed, and no condition on the answer can help: it asks for any statement that follows from the "
        "premises, and their conjunction, copied from the question, always does"
    ),
}

SERVED_TASKS: tuple[str, ...] = tuple(sorted([*SAFE_TASKS, *JAILED_TASKS]))

FIXED_HASH_TASKS = frozenset(
    {
        "advanced_geometry",
        "codeio",
        "countdown",
        "intermediate_integration",
        "isomorphic_strings",
        "knight_swap",
        "polynomial_equations",
        "polynomial_multiplication",
        "puzzle24",
        "ransom_note",
        "simple_integration",
        "word_ladder",
    }
)
"""Tasks that draw from sets of text, and all that generate with sympy, whose order of terms follows the hash as well."""


def require_served(name: str) -> None:
    """Raise PromptError, with the reason, for a task that is not served here. Whether there is a jail is asked last."""
    if name in REFUSED_TASKS:
        raise PromptError(f"prompts.source: gym task {name!r} is not served: {REFUSED_TASKS[name]}")
    if name in SAFE_TASKS:
        return
    if name not in JAILED_TASKS:
        close = suggest_nearest(name, [*SERVED_TASKS, *REFUSED_TASKS])
        raise PromptError(
            f"prompts.source: there is no gym task {name!r}{close}; docs/gym-tasks.md lists the {len(SERVED_TASKS)} that are served"
        )
    try:
        find_tier()
    except JailUnavailable as problem:
        raise PromptError(
            f"prompts.source: gym task {name!r} is not served on this machine: its modules can run text as code "
            f"({JAILED_TASKS[name]}), so its answers are scored in a jail only, and {problem}"
        ) from problem
