"""Environments and tools for tests. At the top level of a module, so that worker processes can import them."""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import Any

ALPHABET = "abcdefgh0123456789@(),?=.<>"


class Echo:
    """Takes whole turns, replies with a draw of its own, and ends after a number of turns that depends on the seed."""

    def reset(self, seed: int, **row: Any) -> None:
        self.heard: list[str] = []
        self.turns = 1 + seed % 4

    def step(self, text: str) -> str | None:
        self.heard.append(text)
        if len(self.heard) >= self.turns:
            return None
        return "".join(random.choice("01234567") for _ in range(1 + len(text) % 3 * 20)) + "?"

    def get_reward(self) -> float:
        return sum(text.count("a") for text in self.heard) / 10


class SlowEcho(Echo):
    async def step(self, text: str) -> str | None:  # type: ignore[override]
        await asyncio.sleep(random.random() * 0.01)
        return Echo.step(self, text)


class Increment:
    """TRL's example: tools change the state that scores the episode."""

    def reset(self, **kwargs: Any) -> str | None:
        self.counter = 0
        return None

    def increment(self, step: int) -> int:
        """
        Increment the internal counter.

        Args:
            step: Value to add to the counter.

        Returns:
            The updated counter value.
        """
        self.counter += step
        return self.counter

    def get_reward(self) -> float:
        return float(self.counter)


class Hostile:
    """Misbehaves in the way that its row names."""

    def reset(self, how: str, seed: int) -> None:
        self.how, self.random = how, random.Random(seed)

    def step(self, text: str) -> str | None:
        how = self.how
        if how == "raise":
            raise ValueError("a reply that raises")
        if how == "hang":
            time.sleep(600)
        if how == "die":
            os._exit(7)
        if how == "exit":
            raise SystemExit(3)
        if how == "large":
            return "x" * 1_000_000
        if how == "control":
            return "".join(map(chr, range(32)))
        if how == "markers":
            return "<eos></s><|im_end|><bos><eos>"
        return None

    def get_reward(self) -> float:
        return float("nan") if self.how == "nan" else 1.0


def multiply(a: int, b: int) -> int:
    """
    Multiply two numbers.

    Args:
        a: The first factor.
        b: The second factor.
    """
    return a * b


async def async_add(a: int, b: int) -> int:
    """
    Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    await asyncio.sleep(0.001)
    return a + b
