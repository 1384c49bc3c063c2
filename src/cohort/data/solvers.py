"""Solvers of some reasoning-gym tasks: each writes a problem in a few characters, and its solution step by step.

    gcd  entry -> ("gcd 48,18=", "48 18 12 6 0")         the answer follows behind ">" in a demonstration

A solver reads the entry's data and never its stored answer, which the row keeps for the check: a demonstration is right because
the task's own verifier says so (tests/data/test_skills.py), and not because it was copied. The steps are as short as they can be while each
follows from what stands before it: a small model of characters has a few dozen tokens for a whole solution.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Solution:
    prompt: str
    steps: str
    answer: str

    @property
    def demonstration(self) -> str:
        return f"{self.steps}>{self.answer}"


def solve_chain_sum(entry: Entry) -> Solution:
    """sum 4-1-7=    3 -4>-4: the running totals."""
    expression = entry["metadata"]["expression"].replace(" ", "")
    totals: list[int] = []
    for term in re.findall(r"[+-]?\d+", expression):
        totals.append((totals[-1] if totals else 0) + int(term))
    return Solution(f"sum {expression}=", " ".join(map(str, totals[1:])), str(totals[-1]))


def solve_gcd(entry: Entry) -> Solution:
    """gcd 18,48=    18 48 18 12 6 0>6: Euclid's remainders."""
    first, second = entry["metadata"]["numbers"]
    remainders = list_remainders(first, second)
    return Solution(f"gcd {first},{second}=", " ".join(map(str, remainders)), str(remainders[-2]))


def list_remainders(first: int, second: int) -> list[int]:
    remainders = [first, second]
    while remainders[-1]:
        remainders.append(remainders[-2] % remainders[-1])
    return remainders


def solve_prime_factorization(entry: Entry) -> Solution:
    """factor 84=    2*42 2*21 3*7>2 × 2 × 3 × 7: the smallest factor, and what is left."""
    number = left = entry["metadata"]["number"]
    factors: list[int] = []
    steps: list[str] = []
    while True:
        factor = next((one for one in range(2, int(left**0.5) + 1) if left % one == 0), left)
        factors.append(factor)
        left //= factor
        if left == 1:
            return Solution(f"factor {number}=", " ".join(steps), " × ".join(map(str, factors)))
        steps.append(f"{factor}*{left}")


def solve_count_bits(entry: Entry) -> Solution:
    """bits 37=    37:1 18:0 9:1 4:0 2:0 1:1>3: halves, each with its lowest bit."""
    number = left = entry["metadata"]["number"]
    halves: list[int] = []
    while left:
        halves.append(left)
        left //= 2
    return Solution(f"bits {number}=", " ".join(f"{half}:{half % 2}" for half in halves), str(sum(half % 2 for half in halves)))


def solve_count_primes(entry: Entry) -> Solution:
    """primes 12,29=    13 17 19 23 29>5."""
    start, end = entry["metadata"]["start"], entry["metadata"]["end"]
    primes = [number for number in range(max(2, start), end + 1) if all(number % one for one in range(2, int(number**0.5) + 1))]
    return Solution(f"primes {start},{end}=", " ".join(map(str, primes)), str(len(primes)))


def solve_spell_backward(entry: Entry) -> Solution:
    """back sun=    >nus."""
    word = entry["metadata"]["word"]
    return Solution(f"back {word}=", "", word[::-1])


def solve_palindrome_generation(entry: Entry) -> Solution:
    """mirror couou=    oo uu c>oucuo: pairs in the order of the alphabet, then the letter that is left."""
    letters = "".join(entry["metadata"]["letters"])
    half = "".join(letter * (letters.count(letter) // 2) for letter in sorted(set(letters)))
    middle = "".join(letter for letter in sorted(set(letters)) if letters.count(letter) % 2)
    steps = [2 * letter for letter in half] + [middle] * bool(middle)
    return Solution(f"mirror {letters}=", " ".join(steps), half + middle + half[::-1])


TOKENS = {"A#": "a", "#A": "c", "B#": "b", "#B": "d"}
REWRITTEN = {"ac": "", "ad": "da", "bc": "cb", "bd": ""}


def solve_ab(entry: Entry) -> Solution:
    """ab B# #A A#=    bca cba>#A B# A#: one rewriting of the leftmost pair after another, a letter for each token."""
    program = re.findall(r"[AB]#|#[AB]", entry["question"].rpartition("program:")[2])
    states = ["".join(TOKENS[token] for token in program)]
    while found := re.search("ac|ad|bc|bd", states[-1]):
        states.append(states[-1][: found.start()] + REWRITTEN[found[0]] + states[-1][found.end() :])
    names = {letter: token for token, letter in TOKENS.items()}
    return Solution(f"ab {' '.join(program)}=", " ".join(states), " ".join(names[letter] for letter in states[-1]))


def solve_fraction_simplification(entry: Entry) -> Solution:
    """frac 12/18=    12 18 12 6 0>2/3: Euclid's remainders, as in solve_gcd."""
    above, below = entry["metadata"]["numerator"], entry["metadata"]["denominator"]
    remainders = list_remainders(above, below)
    return Solution(
        f"frac {above}/{below}=", " ".join(map(str, remainders)), f"{above // remainders[-2]}/{below // remainders[-2]}"
    )


def solve_binary_alternation(entry: Entry) -> Solution:
    """swaps 0110=    2,2 2,2>1: zeros and ones; places that differ from 0101.. and from 1010..; half of the fewer that are even."""
    text = entry["metadata"]["string"]
    zeros, ones = text.count("0"), text.count("1")
    differ = sum(int(mark) != place % 2 for place, mark in enumerate(text))
    other = len(text) - differ
    possible = [number // 2 for number in (differ, other) if number % 2 == 0]
    answer = min(possible) if abs(zeros - ones) <= 1 else -1
    return Solution(f"swaps {text}=", f"{zeros},{ones} {differ},{other}", str(answer))


def pose_lcm(entry: Entry) -> Solution:
    """lcm 12,18=: the problem alone; nobody is shown how."""
    return Solution(f"lcm {','.join(map(str, entry['metadata']['numbers']))}=", "", "")


def pose_decimal_chain_sum(entry: Entry) -> Solution:
    """sum 1.2+3.4=: the problem alone."""
    return Solution(f"sum {entry['metadata']['expression'].replace(' ', '')}=", "", "")


SOLVERS: dict[str, Callable[[Entry], Solution]] = {
    "chain_sum": solve_chain_sum,
    "gcd": solve_gcd,
    "prime_factorization": solve_prime_factorization,
    "count_bits": solve_count_bits,
    "count_primes": solve_count_primes,
    "spell_backward": solve_spell_backward,
    "palindrome_generation": solve_palindrome_generation,
    "ab": solve_ab,
    "fraction_simplification": solve_fraction_simplification,
    "binary_alternation": solve_binary_alternation,
}
POSED: dict[str, Callable[[Entry], Solution]] = {"lcm": pose_lcm, "decimal_chain_sum": pose_decimal_chain_sum}
"""Tasks without a demonstration: what a policy does on them nobody taught it."""
