"""Programs whose author did not know the jail: the independent half of the hostile set.

Every program is valid Python, aims only at the machine it runs on, and is bounded: a bomb stops at a size that is far over any sane
limit but that a developer's machine survives, a process that outlives its jail ends by itself within two minutes, files it leaves are
new and named `cohort-canary-...`. Some forgeries do not hope to be rewarded but to be *unscored* (the verifier's machinery fails in
the host and the wrong answer is forgiven): an end other than one the program is blamed for is a success of the attack.

A program is a file `b_*.py` in the folder of its category under sources/; its first line says what it aims at. One that is not simply
called is named here, with what it is asked.
"""

from __future__ import annotations

from typing import Any

from .programs import SOURCES, Ask, HostileProgram, read_source

# Only the host knows these; no program computes them. One program tries to read them from this very file.
_UNKNOWN = 8305771946113
_UNKNOWN_LINE = "6174 8305771946113 495\n"

_SOLVE = (Ask("solve", (17,), _UNKNOWN),)
_SOLVE_THRICE = (Ask("solve", (17,), _UNKNOWN), Ask("solve", (18,), _UNKNOWN + 5), Ask("solve", (19,), _UNKNOWN + 11))


def _asks(wanted: Any, *args: Any) -> tuple[Ask, ...]:
    return (Ask("solve", args or (17,), wanted),)


ASKED_THRICE = {
    "b_audit_hook_forbids",
    "b_builtins_gone",
    "b_caller_frames_edited",
    "b_channel_half_shut",
    "b_codec_owned",
    "b_crash_between_answers",
    "b_deep_mixed_value",
    "b_deep_value",
    "b_descriptors_closed",
    "b_descriptors_shuffled",
    "b_endless_generator",
    "b_escape_steal_descriptors",
    "b_exception_text_is_no_text",
    "b_exceptions_nobody_catches",
    "b_fork_at_load_answers_twice",
    "b_hash_collisions_for_the_host",
    "b_import_system_owned",
    "b_interpreter_settings",
    "b_landlock_around_the_runner",
    "b_libc_write_replaced",
    "b_main_guard_and_names",
    "b_memory_error_swallowed",
    "b_output_in_the_reply",
    "b_own_limits_lowered",
    "b_profile_hook_stays",
    "b_read_requests_ahead",
    "b_runner_functions_rewritten",
    "b_shared_descriptors_nonblocking",
    "b_signal_driven_descriptors",
    "b_signal_handler_in_the_runner",
    "b_slots_of_builtin_types",
    "b_small_integers_swapped",
    "b_spray_every_descriptor",
    "b_status_of_a_limit_imitated",
    "b_strict_seccomp_on_myself",
    "b_struct_and_write_rewritten",
    "b_surrogates_and_nulls",
    "b_traceback_reads_host_file",
    "b_value_changes_while_read",
    "b_write_returns_zero_for_ever",
}

ASKED = {
    **dict.fromkeys(ASKED_THRICE, _SOLVE_THRICE),
    "b_bool_for_one": _asks(1),
    "b_tag_confusion": (
        Ask("solve", (17,), (1, 2)),
        Ask("solve_small", (17, "__tuple__", [1, 2]), (1, 2)),
        Ask("solve_small", (17, "tuple", [1, 2]), (1, 2)),
        Ask("solve_small", (17, "t", [1, 2]), (1, 2)),
        Ask("solve_pair", (17,), (1, 2)),
        Ask("solve_letter", (17,), (1, 2)),
        Ask("solve_nested", (17,), (1, 2)),
    ),
    "b_json_key_collision": (
        Ask("solve", (17,), {"1": "b", "null": "d", "1.5": "g", "true": "h"}),
        Ask("narrow", (17,), {1: "a"}),
    ),
    "b_function_is_the_interpreter_own": (
        Ask("first", ("17",), "18"),
        Ask("fourth", (), _UNKNOWN),
        Ask("third", (0,), _UNKNOWN),
        Ask("second", (), _UNKNOWN),
    ),
    "b_reply_lottery_by_fork": (Ask("solve", (17,), 37), Ask("solve", (18,), 23), Ask("solve", (19,), 11)),
    "b_output_each_call_a_little": tuple(Ask("solve", (i,), _UNKNOWN + i) for i in range(60)),
    "b_loaded_halfway": _asks(17),
    "b_arguments_rewritten": (Ask("solve", ([3, 1, 2], {"a": 1}), [1, 2, 3]), Ask("solve", ([], {}), None)),
}
"""What a program is asked, where it is not _SOLVE."""

SCRIPTS = {
    **dict.fromkeys(
        (
            "b_compiler_takes_for_ever",
            "b_escape_terminal_injection",
            "b_output_by_many_children",
            "b_output_by_splice",
            "b_output_endless_small_lines",
            "b_output_only_on_standard_error",
            "b_output_to_kernel_and_system_logs",
            "b_script_answers_from_standard_error",
            "b_script_closes_output_and_stays",
            "b_script_exit_handler_spins",
            "b_script_exit_status_125",
            "b_script_expected_next_to_input",
            "b_script_imports_the_grader",
            "b_script_killed_like_the_kernel_would",
            "b_script_oom_chooses_another",
            "b_script_reads_input_for_ever",
            "b_script_stdout_is_a_file_perhaps",
            "b_script_terminal_tricks",
            "b_script_warnings_without_end",
            "b_secret_script_error_shows_source",
            "b_survivor_holds_the_output",
            "b_survivor_stopped_and_named_like_the_kernel",
        ),
        "17\n",
    ),
    "b_script_never_reads_a_large_input": "17 " * 700000,
    "b_script_closes_a_large_input": "17 " * 700000,
}
"""Programs that run as scripts, and their input."""


def _read(category: str, name: str) -> HostileProgram:
    source = read_source(category, name)
    aims_at = source.partition("\n")[0].removeprefix("# ")
    if name in SCRIPTS:
        return HostileProgram(name, category, source, stdin=SCRIPTS[name], wanted_stdout=_UNKNOWN_LINE, aims_at=aims_at)
    return HostileProgram(name, category, source, calls=ASKED.get(name, _SOLVE), aims_at=aims_at)


HOSTILE = [_read(file.parent.name, file.stem) for file in sorted(SOURCES.glob("*/b_*.py"))]
# Texts that Python itself refuses: the host must still end with a verdict that blames the program.
NOT_PYTHON: list[HostileProgram] = []

# ------------------------------------------------------------------------------------------------------- texts Python itself refuses


def _refused(name: str, aims_at: str, source: str) -> None:
    NOT_PYTHON.append(HostileProgram(name, "forgery", source, calls=_SOLVE, aims_at=aims_at))


_refused(
    "b_source_lone_surrogate", "text that cannot be encoded: the host's own write of the program may raise", "x = '\ud800'\n"
)
_refused(
    "b_source_null_byte",
    "a zero byte in the program: a file, an argument or a C string ends there",
    "def solve(n):\n    return 1\n\x00\n",
)
_refused("b_source_too_deep", "parentheses too deep for the parser", "x = " + "(" * 100_000 + ")" * 100_000 + "\n")
_refused("b_source_unary_tower", "an expression so deep that the compiler itself may crash", "x = " + "-" * 1_000_000 + "1\n")
_refused("b_source_bad_cookie", "an encoding nobody knows, in a file", "# coding: cohort-unknown\ndef solve(n) return 1\n")
_refused("b_source_empty", "no program at all (Python takes it, but nothing in it can be called)", "")
