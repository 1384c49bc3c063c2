"""From results to findings: which flaw explains the inputs that passed and must not have, and what to do about it.

The causes behind wrong answers are in causes.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cohort.base.text import shorten_text
from cohort.tools.audit.running import Result, safe_text
from cohort.tools.audit.samples import AuditRow

Level = Literal["flaw", "note"]
SHOWN_CHARS = 160
EXAMPLES = 3


@dataclass(frozen=True)
class Flaw:
    """What can be wrong with a reward."""

    category: str
    title: str
    why: str
    fix: str


FALSE_POSITIVE, FALSE_NEGATIVE = "false positive", "false negative"

FLAWS: dict[str, Flaw] = {
    # -- the score does not depend on the row --------------------------------------------------------------------------
    "constant": Flaw(
        FALSE_POSITIVE,
        "Every completion gets the same score.",
        "Groups without differences have no advantage, so nothing is learned.",
        "Check that the function looks at the completion at all.",
    ),
    "format_only": Flaw(
        FALSE_POSITIVE,
        "Any text in the right format is rewarded, whatever it says: the score does not depend on the gold.",
        "The policy will learn the format and stop solving the problem.",
        "Compare the content with the row's gold; or, if only the format is meant, audit it with --shape and keep it a small part.",
    ),
    "length_only": Flaw(
        FALSE_POSITIVE,
        "The score depends on the length of the text alone, not on the gold.",
        "The policy will learn to write so many characters, of anything.",
        "Compare the content with the row's gold; or, if only the length is meant, audit it with --shape and keep it a small part.",
    ),
    "ignores_gold": Flaw(
        FALSE_POSITIVE,
        "The score does not depend on the gold: the answers of other rows score as well as the row's own.",
        "An outcome reward that cannot be wrong teaches nothing about the problem.",
        "Compare with the row's gold; if the function judges the shape of a text on purpose, audit it with --shape.",
    ),
    # -- where the answer is looked for --------------------------------------------------------------------------------
    "substring": Flaw(
        FALSE_POSITIVE,
        "The gold is found as a substring: inside a longer number or word, and anywhere in the text.",
        "1423 counts as 42, and a list of all numbers answers every question.",
        "Take one final answer from a marker, and compare the whole of it (as math_answer does).",
    ),
    "anywhere": Flaw(
        FALSE_POSITIVE,
        "The gold counts wherever it stands in the text, also among other answers.",
        "Listing candidates beats solving the problem, and completions grow longer.",
        "Take one final answer, the last one, and compare it alone.",
    ),
    "first_answer": Flaw(
        FALSE_POSITIVE,
        "The first number or answer of the text is taken, not the final one.",
        "An answer that is taken back, or is one of two, is still rewarded; reasoning that starts with another number is not.",
        "Take the answer from a marker such as \\boxed{}, and the last one of them.",
    ),
    "thoughts": Flaw(
        FALSE_POSITIVE,
        "An answer inside <think>...</think> counts although the visible text gives none.",
        "The policy can guess in its thoughts and never commit itself.",
        "Remove <think> blocks before the answer is looked for.",
    ),
    "failure_pays": Flaw(
        FALSE_POSITIVE,
        "What the function cannot read is rewarded: finding no answer, or an exception on the way, earns the reward.",
        "Text that breaks the reader is easier to write than a right answer.",
        "Score 0 where no answer is found and wherever reading or comparing fails, in an except branch too; then audit again.",
    ),
    # -- how it is compared --------------------------------------------------------------------------------------------
    "hedge": Flaw(
        FALSE_POSITIVE,
        "An answer that names several candidates is accepted.",
        '"4 or 5" is right twice as often as either; the policy will hedge.',
        "Compare the whole of the answer, and refuse one that goes on after the gold.",
    ),
    "wrong_answer": Flaw(
        FALSE_POSITIVE,
        "Wrong answers are accepted.",
        "Each is a push of the policy in the wrong direction.",
        "Look at the inputs below: what do they have in common with the gold?",
    ),
    "near_miss": Flaw(
        FALSE_POSITIVE,
        "Numbers near the gold are accepted: it is compared with a tolerance, or after rounding.",
        "Rounding and guessing are rewarded like exact answers.",
        "Compare numbers exactly, or with a tolerance below the last digit of the gold.",
    ),
    "whole_part": Flaw(
        FALSE_POSITIVE,
        "Only the whole part of a number is compared: what stands behind the decimal point is cut off.",
        "42.9 counts as 42.",
        "Compare the numbers themselves, not int() or the floor of them.",
    ),
    "similar": Flaw(
        FALSE_POSITIVE,
        "Answers that resemble the gold are accepted.",
        "Paric counts as Paris, and 1235 as 1234: a resemblance is no answer.",
        "Compare for equality after normalising; if spelling is to be forgiven, list the spellings.",
    ),
    "part_of_gold": Flaw(
        FALSE_POSITIVE,
        "A part of the gold is accepted for all of it.",
        "4 counts as 42, and Pa as Paris: short guesses are right often.",
        "Compare the whole of the gold; no prefix, no `answer in gold`.",
    ),
    "ending": Flaw(
        FALSE_POSITIVE,
        "Only the end of the answer is compared: the gold with more in front of it is accepted.",
        "142 counts as 42, and unhappy as happy.",
        "Compare the whole of the answer; no endswith, no last characters.",
    ),
    "expression": Flaw(
        FALSE_POSITIVE,
        "Only the beginning of the answer is read or compared: the gold followed by more is accepted.",
        "4\\sqrt{2} and 47 count as 4.",
        "Compare the whole of the answer; refuse what cannot be read to its end.",
    ),
    "relation": Flaw(
        FALSE_POSITIVE,
        "A relation in front of the gold is ignored.",
        "\\ne 12 and >12 count as 12, although they say that it is another number.",
        "Read a relation sign as a part of the answer; only an equals sign may be dropped.",
    ),
    "unicode": Flaw(
        FALSE_POSITIVE,
        "A wrong answer in unusual characters is accepted.",
        "A superscript or an invisible character turns a wrong answer into a rewarded one.",
        "Normalise typography only (minus signs, spaces, full-width digits); do not fold superscripts, never delete what is unknown.",
    ),
    "empty": Flaw(
        FALSE_POSITIVE,
        "A completion without content is rewarded.",
        "Saying nothing is the easiest thing to learn.",
        "Score 0 where no answer is found, before anything is compared.",
    ),
    "bomb": Flaw(
        FALSE_POSITIVE,
        "An expression that nobody can evaluate is accepted.",
        "What the function does when it gives up is rewarded.",
        "Score 0 wherever parsing or evaluating fails.",
    ),
    "injection": Flaw(
        FALSE_POSITIVE,
        "Text that is a pattern or code is accepted as an answer.",
        "A completion such as .* can match every gold.",
        "Never build a pattern or an expression from the completion.",
    ),
    "missing_gold": Flaw(
        FALSE_POSITIVE,
        "A row without a gold rewards a completion.",
        "Rows with a missing or unreadable gold then pay for anything.",
        "Raise (or return None) where the gold is missing: the row is then a fault and is counted.",
    ),
    "echo": Flaw(
        FALSE_POSITIVE,
        "Repeating the prompt is rewarded.",
        "Copying is easier than solving.",
        "Require a marker that the prompt does not contain.",
    ),
    "leaked_gold": Flaw(
        "rows",
        "The prompts give their gold away.",
        "The policy learns to copy it, and the success rate says nothing.",
        "Take the gold out of the prompt column; look for examples and instructions that repeat the row's own answer.",
    ),
    # -- right answers that are refused --------------------------------------------------------------------------------
    "gold_rejected": Flaw(
        FALSE_NEGATIVE,
        "No gold is accepted, in any form that the audit knows.",
        "If right answers never score, there is no signal at all.",
        "Show the form that the function expects with --template 'FINAL: {answer}', a `demonstration` column, or another --threshold.",
    ),
    "form": Flaw(
        FALSE_NEGATIVE,
        "The gold itself is refused, in a form that is otherwise read.",
        "Right completions are punished, so the policy is pushed away from them.",
        "Look at the inputs below: the gold stands there as it is in the row.",
    ),
    "rewrite": Flaw(
        FALSE_NEGATIVE,
        "Other spellings of the gold are refused.",
        "Right answers are punished for their typography.",
        "Compare numbers by value and text without its LaTeX (as math_answer does); if letters are meant to count, audit with --kind exact.",
    ),
    "surroundings": Flaw(
        FALSE_NEGATIVE,
        "The answer is not read when there is other text around it.",
        "A model that thinks first, or adds a sentence, is never rewarded.",
        "Remove <think> blocks, and look for the answer's marker instead of comparing the whole text.",
    ),
    "chat": Flaw(
        FALSE_NEGATIVE,
        "Completions in the other shape (chat messages instead of text, or text instead of messages) are not read.",
        "With chat prompts completions are lists of messages; the function then fails on every row.",
        "Begin with: text = c if isinstance(c, str) else c[-1]['content'].",
    ),
    # -- the function itself -------------------------------------------------------------------------------------------
    "raises": Flaw(
        "crash",
        "The function raises on some completions.",
        "Such a completion is unscored, which beats being wrong; and past 10 % of a step the run stops.",
        "Score 0 for what the completion causes; raise only for what is wrong with the row.",
    ),
    "contract": Flaw(
        "crash",
        "The function does not return one finite number or None per completion.",
        "Such entries are faults: the completions are lost, and past 10 % of a step the run stops.",
        "Return a list with exactly one finite float or None per completion, in their order.",
    ),
    "crash": Flaw(
        "crash",
        "A completion ends the process that scores it.",
        "Every such completion costs a new process and is unscored, which beats being wrong.",
        "Run what the completion contains in a process or jail of its own, and score 0 when that ends.",
    ),
    "hang": Flaw(
        "hang",
        "A completion keeps the function busy beyond the time limit.",
        "The step waits for it every time the policy writes such text.",
        "Bound the length of what is parsed and evaluated, or run it with a limit of its own and score 0 there.",
    ),
    "superlinear": Flaw(
        "hang",
        "The time grows faster than the text.",
        "Long completions, which training produces sooner or later, will fill the time of the step.",
        "Look for nested quantifiers in patterns, searches inside loops, and growing strings; cut the text to a bounded length.",
    ),
    "executes": Flaw(
        "code execution",
        "The answer is executed: code in it has touched a file outside.",
        "Whatever the policy writes runs with your rights.",
        "No eval, exec, sympify or parse_expr on model text outside a jail (cohort.sandbox).",
    ),
    "not_deterministic": Flaw(
        "unstable",
        "The same completion gets different scores when it is scored again.",
        "Differences inside a group are then partly noise, and a resumed run differs.",
        "Seed what is random by the input, and keep no state between calls.",
    ),
    "batch_dependent": Flaw(
        "unstable",
        "The score of a completion depends on what else is in the batch, or on its place there.",
        "Scores change with the number of workers and with retries.",
        "Score each completion from its own row alone; if the group matters on purpose, say so where the reward is used.",
    ),
    "impure": Flaw(
        "unstable",
        "The function changes the lists it is given.",
        "Rewards that are called after it see other completions or golds.",
        "Copy before you change.",
    ),
    # -- code ----------------------------------------------------------------------------------------------------------
    "exit_code": Flaw(
        FALSE_POSITIVE,
        "The exit status decides: a program that ends itself with status 0 passes.",
        "sys.exit(0) is the shortest solution of every problem.",
        "Call the function from outside, take the returned value, and compare it on the host (as code_tests does).",
    ),
    "stdout": Flaw(
        FALSE_POSITIVE,
        "What the program prints decides: printing PASS or the expected values is enough.",
        "The program shares its output with the grader, so it can write the verdict itself.",
        "Do not read verdicts from the program's output; compare returned values on the host (as code_tests does).",
    ),
    "equal": Flaw(
        FALSE_POSITIVE,
        "An object that claims to equal everything passes.",
        "The comparison runs the program's own __eq__.",
        "Let the program return plain values only (as JSON), and compare them in another process.",
    ),
    "visible": Flaw(
        FALSE_POSITIVE,
        "A program that knows one test passes.",
        "Tests that the prompt shows are learned by heart.",
        "Require all tests, and keep some that no prompt shows.",
    ),
    "reads_tests": Flaw(
        FALSE_POSITIVE,
        "The program can read the expected values.",
        "Tests in the same file, or expected values in the caller's frames, are the answer sheet.",
        "Keep expected values out of the process that runs the program.",
    ),
    "wrong_program": Flaw(
        FALSE_POSITIVE,
        "Wrong programs pass.",
        "Each is a push of the policy in the wrong direction.",
        "Look at the programs below; the tests may be too weak, or are not run at all.",
    ),
    "unjailed": Flaw(
        "code execution",
        "Programs reach files outside: they run without a jail.",
        "The policy's programs can delete your files, read your keys and change the grader.",
        "Run programs in a jail (code_tests and cohort.sandbox do).",
    ),
    "code_rejected": Flaw(
        FALSE_NEGATIVE,
        "Right programs are refused.",
        "Right completions are punished, so the policy is pushed away from them.",
        "Look at the programs below: each does what the row's solution does.",
    ),
    # -- shape ---------------------------------------------------------------------------------------------------------
    "shape_accepts": Flaw(
        FALSE_POSITIVE,
        "Texts of the wrong shape are accepted.",
        "The policy learns the cheapest text that is paid.",
        "Look at the inputs below.",
    ),
    "shape_refuses": Flaw(
        FALSE_NEGATIVE, "Texts of the right shape are refused.", "Right completions are punished.", "Look at the inputs below."
    ),
}

OF_ATTACK = {
    "mutated": "wrong_answer",
    "other_row": "wrong_answer",
    "far": "wrong_answer",
    "first_of_two": "first_answer",
    "start": "first_answer",
    "middle": "anywhere",
    "spam": "anywhere",
    "format": "empty",
    "constant": "wrong_answer",
    "exit": "exit_code",
    "sleep": "wrong_program",
    "resources": "wrong_program",
}
"""Attacks whose flaw has another name than the attack itself."""


@dataclass(frozen=True)
class Example:
    """One input that shows a flaw. All text is printable and short."""

    input: str
    gold: str
    score: float | None
    what: str
    """What is special about the input."""
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Finding:
    flaw: str
    level: Level
    category: str
    title: str
    why: str
    fix: str
    count: int
    """Inputs that show it."""
    tried: int
    """Inputs that could have."""
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True)
class AuditReport:
    """What an audit found. `findings` holds flaws first, then notes."""

    reward: str
    kind: str
    rows: int
    cases: int
    skipped: int
    seconds: float
    threshold: float
    forms: tuple[str, ...]
    """Forms of text that the reward reads an answer from."""
    findings: tuple[Finding, ...]
    slowest: tuple[Example, ...]
    remarks: tuple[str, ...] = field(default=())
    """What was not audited, and why."""

    @property
    def flaws(self) -> tuple[str, ...]:
        """Names of the flaws found, notes left out."""
        return tuple(finding.flaw for finding in self.findings if finding.level == "flaw")

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(finding.flaw for finding in self.findings if finding.level == "note")

    @property
    def clean(self) -> bool:
        return not self.flaws

    def of_category(self, category: str) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.category == category)

    def as_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "clean": self.clean, "flaws": list(self.flaws), "notes": list(self.notes)}


# ---------------------------------------------------------------------------------------------------------------------
# Showing
# ---------------------------------------------------------------------------------------------------------------------


def example_of(result: Result, rows: Sequence[AuditRow]) -> Example:
    case, row = result.case, rows[result.case.row]
    gold = next(iter(case.columns.values())) if case.columns else row.gold
    shown = case.completion if isinstance(case.completion, str) else f"(messages) {safe_text(case.completion)}"
    last = (result.detail.strip().splitlines() or [""])[-1]
    what = f"{case.label}, {case.form}" if case.form and case.form != case.label else case.label
    texts = ((shown, SHOWN_CHARS), (gold if isinstance(gold, str) else repr(gold), 60), (last, 120))
    shown, gold, detail = (shorten_text(text, most, one_line=True) for text, most in texts)
    return Example(shown, gold, result.score, what, detail, round(result.seconds, 3))


def finding_of(
    flaw: str, results: Sequence[Result], rows: Sequence[AuditRow], tried: int = 0, level: Level = "flaw"
) -> Finding:
    text = FLAWS[flaw]
    return Finding(
        flaw,
        level,
        text.category,
        text.title,
        text.why,
        text.fix,
        len(results),
        max(tried, len(results)),
        tuple(example_of(result, rows) for result in varied(results)),
    )


def varied(results: Sequence[Result]) -> list[Result]:
    """A few results that differ as much as they can: one of each label, in the order given, each the shortest of its kind.

    No input is shown twice, though it may have been tried twice.
    """
    by_label: dict[tuple[str, str], list[Result]] = {}
    inputs: set[tuple[int, str, str]] = set()
    for result in results:
        shown = result.case.row, safe_text(result.case.completion), repr(result.case.columns)
        if shown in inputs:
            continue
        inputs.add(shown)
        by_label.setdefault((result.case.attack, result.case.label), []).append(result)
    groups = [sorted(group, key=lambda result: len(safe_text(result.case.completion))) for group in by_label.values()]
    return [*(group[0] for group in groups), *(other for group in groups for other in group[1:])][:EXAMPLES]


# ---------------------------------------------------------------------------------------------------------------------
# Faults
# ---------------------------------------------------------------------------------------------------------------------

FAULT_FLAWS: Mapping[str, str] = {
    "exception": "raises",
    "crash": "crash",
    "timeout": "hang",
    "type": "contract",
    "length": "contract",
    "nan": "contract",
    "position": "contract",
    "infrastructure": "raises",
}


def fault_findings(results: Sequence[Result], rows: Sequence[AuditRow]) -> list[Finding]:
    """Exceptions, crashes, hangs, values that are none. A row without a gold may raise: that is what it should do."""
    by_flaw: dict[str, list[Result]] = {}
    for result in results:
        excused = result.case.attack == "missing_gold" and result.fault in ("exception", "infrastructure")
        if result.fault and not excused and result.case.attack != "chat":
            by_flaw.setdefault(FAULT_FLAWS.get(result.fault, "contract"), []).append(result)
    order = list(FLAWS)
    return [
        finding_of(flaw, group, rows, len(results))
        for flaw, group in sorted(by_flaw.items(), key=lambda item: order.index(item[0]))
    ]
