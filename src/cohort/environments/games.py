"""The environments of the recipes `bisection` and `calculator`, and the demonstrations of their cold starts."""

from __future__ import annotations

import random
from typing import Any

from cohort.base.keyed import keyed_hash

LARGEST = 31
"""Five guesses find any number from 1 to 31, if each halves what is left."""
EASY, HARD = "easy", "hard"


class Bisection:
    """Find a hidden number. Each guess is answered with < (it is smaller), > (it is larger), or ends the episode."""

    def reset(self, seed: int) -> str:
        self.secret, self.guesses, self.found = draw_secret(seed), [], False
        return "?"

    def step(self, text: str) -> str | None:
        self.guesses.append(text)
        guess = int(text) if text.isascii() and text.isdigit() and len(text) <= 2 else 0
        if not 1 <= guess <= LARGEST:
            return "!"
        self.found = guess == self.secret
        return None if self.found else "<" if self.secret < guess else ">"

    def get_reward(self) -> float:
        return float(self.found)


def draw_secret(seed: int) -> int:
    return 1 + keyed_hash("bisection", seed) % LARGEST


def play_bisection(split: str = "train", seed: int = 0) -> list[dict[str, Any]]:
    """Games that keep the rules but play badly: every guess is any number that the answers so far allow."""
    rows = []
    for number in range(512):
        draws, secret = random.Random(keyed_hash("demonstration", seed, number)), draw_secret(-1 - number)
        low, high, turns = 1, LARGEST, []
        while len(turns) < 9:
            guess = draws.randint(low, high)
            turns.append(str(guess))
            if guess == secret or len(turns) == 9:
                break
            low, high = (low, guess - 1) if secret < guess else (guess + 1, high)
            turns.append("<" if secret < guess else ">")
        rows.append({"prompt": "?", "seed": -1 - number, "demonstration": turns})
    return rows


class Calculator:
    """A calculator; every call costs a tenth of a right answer."""

    def reset(self) -> None:
        self.calls = 0

    def times(self, a: int, b: int) -> int:
        """
        Multiply two numbers.

        Args:
            a: The first factor.
            b: The second factor.
        """
        self.calls += 1
        return a * b

    def get_reward(self) -> float:
        return -0.1 * self.calls


def multiplications(split: str = "train", seed: int = 0) -> list[dict[str, Any]]:
    """Products of two digits, which a small model learns by heart, and of three and two digits, which it does not."""
    rows: list[dict[str, Any]] = []
    for number in range(1536 if split == "train" else 256):
        draws = random.Random(keyed_hash("multiplication", split, seed, number))
        kind = EASY if number % 2 else HARD
        a, b = (draws.randint(2, 9), draws.randint(2, 9)) if kind == EASY else (draws.randint(101, 999), draws.randint(12, 99))
        product = str(a * b)
        asks = draws.random() < 0.5
        rows.append(
            {
                "prompt": f"{a}*{b}=",
                "answer": product,
                "kind": kind,
                "number": f"{split}-{number}",
                "demonstration": [f"@times({a},{b})", product, product] if asks else product,
            }
        )
    return rows
