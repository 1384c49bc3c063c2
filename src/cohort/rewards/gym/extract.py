r"""The final answer of a completion. Also runs in a jail: a pattern of the user's own on a hostile text may never end.

The rule, outside of thoughts: the last <answer>..</answer>, else the last match of the pattern, else the last \boxed{..},
else the whole text.
"""

from __future__ import annotations

import collections
import re
from typing import Any

from cohort_verify.text import find_last_box, find_last_tag, read_visible


def extract_answer(completion: str, pattern: str = "") -> str:
    r"""The final answer: the last <answer>..</answer>, else the last match of `pattern` (its first group, where it has
    one), else the last \boxed{..}, else the whole text; without white space around it."""
    completion = read_visible(completion)
    answer = find_last_tag(completion)
    if answer is None and pattern:
        answer = last_match(completion, pattern)
    if answer is None:
        answer = find_last_box(completion)
    return (completion if answer is None else answer).strip()


def last_match(text: str, pattern: str) -> str | None:
    matches = collections.deque(re.finditer(pattern, text, re.DOTALL), maxlen=1)
    return (matches[0].group(1 if matches[0].re.groups else 0) or "") if matches else None


def find_answer(message: Any) -> str:
    """The worker's side of `extract_answer`."""
    return extract_answer(str(message["completion"]), str(message["pattern"]))
