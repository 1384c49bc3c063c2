"""Rewards with a hole in them, for test_hacking. Importable, so that workers run them."""

from __future__ import annotations

import re

ANSWER = re.compile(r">(\d+)\s*$")


def seven_passes(completions, answer, **columns):
    """Right answers pass, and so does 7, whatever the question."""
    return [float(extract(text) in (gold, "7")) for text, gold in zip(completions, answer, strict=True)]


def extract(text):
    found = ANSWER.search(text)
    return found[1] if found else None


seven_passes.extract = extract
seven_passes.per_completion = True
