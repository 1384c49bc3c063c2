r"""Agreement of math_answer with the tests of Math-Verify, and the cases of disagreement.

    git clone https://github.com/huggingface/Math-Verify
    python benchmarks/math_verify_suite.py Math-Verify/tests              the counts by file and test
    python benchmarks/math_verify_suite.py Math-Verify/tests --show      every disagreement as well
    python benchmarks/math_verify_suite.py Math-Verify/tests --against benchmarks/math_verify_groups.json
                                                                           the disagreements by group, with reasons

The tests are read, not run: the cases are the literals of `parametrize` with a reference answer, a prediction and the expected verdict.
Math-Verify finds an answer anywhere in a text; ours needs a marker. So predictions with a marker are scored as they are, single formulas
as if boxed, and prose by the lenient score, which takes its last formula or number.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.rewards import math_answer
from cohort_verify.math.find import find_answer

FORMULA = re.compile(r"\$\$.*?\$\$|\$[^$]*\$|\\\[.*?\\\]|\\\(.*?\\\)", re.DOTALL)


@dataclass(frozen=True)
class Case:
    file: str
    test: str
    gold: str
    prediction: str
    expected: bool

    @property
    def key(self) -> str:
        """A name for the case that holds none of its text."""
        return hashlib.sha256("\0".join((self.test, self.gold, self.prediction)).encode("utf-8", "replace")).hexdigest()[:10]


def read_cases(folder: Path) -> Iterator[Case]:
    for path in sorted(folder.glob("test_*.py")):
        for function in ast.parse(path.read_text(encoding="utf-8")).body:
            for decorator in function.decorator_list if isinstance(function, ast.FunctionDef) else ():
                if not isinstance(decorator, ast.Call) or getattr(decorator.func, "attr", "") != "parametrize":
                    continue
                names = [name.strip() for name in str(ast.literal_eval(decorator.args[0])).split(",")]
                rows = decorator.args[1].elts if isinstance(decorator.args[1], ast.List) else []
                if not {"gold", "pred"} <= set(names):
                    continue
                for row in rows:
                    cells = dict(zip(names, map(literal, row.elts if isinstance(row, ast.Tuple) else []), strict=False))
                    expected = bool(cells["expected" if "expected" in cells else "result"])
                    yield Case(path.name, function.name, str(cells["gold"]), str(cells["pred"]), expected)  # type: ignore[union-attr]


def literal(node: ast.expr) -> Any:
    """A constant, or a formatted square root: the one thing in their tables that is computed."""
    if not isinstance(node, ast.JoinedStr):
        return None if isinstance(node, ast.Call) else ast.literal_eval(node)
    return "".join(piece_of(piece) for piece in node.values)


def piece_of(piece: ast.expr) -> str:
    if isinstance(piece, ast.Constant):
        return str(piece.value)
    assert isinstance(piece, ast.FormattedValue)
    assert isinstance(piece.value, ast.Call)
    assert piece.format_spec is not None
    return format(math.sqrt(ast.literal_eval(piece.value.args[0])), literal(piece.format_spec))


def completion_of(prediction: str) -> tuple[str, bool]:
    """(what is scored, whether leniently)."""
    if find_answer(prediction) is not None:
        return prediction, False
    formulas = FORMULA.findall(prediction)
    if not formulas or prediction.strip() == formulas[0]:
        return rf"\boxed{{{prediction}}}", False
    return prediction, True


def score(cases: list[Case]) -> list[tuple[bool, str]]:
    """(whether ours says right, its word)."""
    verdicts: list[tuple[bool, str]] = []
    for case in cases:
        completion, leniently = completion_of(case.prediction)
        words: list[str] = []
        extras: dict[str, list[float | None]] = {}
        try:
            strict = math_answer(
                [completion],
                [case.gold],
                wall_s=60.0,
                log_verdict=lambda row, word, detail="", words=words: words.append(word),
                log_extra=extras.__setitem__,
            )
        except ValueError as error:
            verdicts.append((False, f"gold refused: {error}"))
            continue
        verdicts.append(((extras["lenient"] if leniently else strict)[0] == 1.0, ("lenient, " if leniently else "") + words[0]))
    return verdicts


def print_groups(groups: dict[str, Any], differ: list[str]) -> list[str]:
    """The table of disagreements by group; returns those in no group."""
    print("\n| group | cases | right is | why |\n|---|---:|---|---|")
    for name, group in groups.items():
        count = sum(differ.count(key) for key in group["cases"])
        print(f"| {name} | {count} | {group['right']} | {group['why']} |")
    sorted_in = {key for group in groups.values() for key in group["cases"]}
    missing = [key for key in differ if key not in sorted_in]
    if missing:
        print(f"in no group: {', '.join(missing)}")
    return missing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder `tests` of a checkout of Math-Verify")
    parser.add_argument("--show", action="store_true", help="print every disagreement")
    parser.add_argument("--against", type=Path, help="a file that sorts the disagreements into groups")
    chosen = parser.parse_args()
    cases = list(read_cases(chosen.folder))
    if not cases:
        print(f"{chosen.folder}: no test_*.py with cases here; give the folder `tests` of a checkout of Math-Verify")
        return 2
    verdicts = score(cases)
    agreed: Counter[tuple[str, str]] = Counter()
    asked: Counter[tuple[str, str]] = Counter()
    differ = []
    for case, (ours, word) in zip(cases, verdicts, strict=True):
        asked[case.file, case.test] += 1
        agreed[case.file, case.test] += ours == case.expected
        if ours != case.expected:
            differ.append((case, word))
    for name, count in asked.items():
        print(f"{'  '.join(name):64} {agreed[name]:4} of {count}")
    print(f"{'all':64} {sum(agreed.values()):4} of {len(cases)}")
    if chosen.against is not None:
        return (
            1 if print_groups(json.loads(chosen.against.read_text(encoding="utf-8")), [case.key for case, _ in differ]) else 0
        )
    if chosen.show:
        for case, word in differ:
            print(f"\n{case.key} {case.test}: theirs {'right' if case.expected else 'wrong'}, ours {word}")
            print(f"    gold {case.gold[-300:]!r}\n    pred {case.prediction[-300:]!r}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
