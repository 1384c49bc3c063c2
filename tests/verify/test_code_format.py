"""code_tests: finding the program in a completion."""

from __future__ import annotations

import time

import pytest

from cohort_verify.code.format import (
    ProgramText,
    defines_name,
    find_callable_name,
    find_prefix_head,
    find_program,
    strip_solution,
)

BODY = "def f():\n    return 1\n"
OTHER = "def f():\n    return 2\n"


def fenced(code: str, tag: str = "python") -> str:
    return f"```{tag}\n{code}```"


def text(completion: str, **options) -> str | None:
    found = find_program(completion, **options)
    return None if found is None else found.text


@pytest.mark.parametrize(
    "completion",
    [
        fenced(BODY),
        f"Here it is:\n\n{fenced(BODY)}\nDone.",
        fenced(BODY, "Python"),
        fenced(BODY, "py"),
        fenced(BODY, "python3"),
        fenced(BODY, "python title=a.py"),
        fenced(BODY, ""),
        fenced(OTHER) + "\nno:\n" + fenced(BODY),
        fenced(OTHER, "") + "\n" + fenced(BODY),
        fenced(BODY) + "\nIt prints\n" + fenced("1\n", ""),  # a block of output is no program where one is marked
        fenced(BODY) + "\nIt prints\n" + fenced("1\n", "text"),
        fenced("pip install x\n", "bash") + "\n" + fenced(BODY),
        f"~~~python\n{BODY}~~~",
        f"````python\n{BODY}````",
        f"```python\n{BODY}",  # a stop string has taken the closing fence
        "1. First\n   ```python\n   def f():\n       return 1\n   ```",
        f"```python\r\n{BODY}```".replace("\n", "\r\n").replace("\r\r", "\r"),
        f"<think>{fenced(OTHER)}</think>\n{fenced(BODY)}",
        f"hm, {fenced(OTHER)}\n</think>{fenced(BODY)}",
    ],
)
def test_the_block_that_is_taken(completion) -> None:
    assert find_program(completion) == ProgramText(BODY, fenced=True)


def test_without_a_fence_the_whole_answer_is_taken() -> None:
    assert find_program(BODY) == ProgramText(BODY, fenced=False)
    assert find_program("<think>hm</think>" + BODY) == ProgramText(BODY, fenced=False)
    assert find_program("I do not know") == ProgramText("I do not know", fenced=False)  # the jail will say that it is no Python


@pytest.mark.parametrize(
    "completion",
    [
        "",
        "  \n",
        "```python\n```",
        fenced("ls\n", "bash"),
        "<think>" + fenced(BODY),  # a draft is no answer
        "<think>" + fenced(BODY) + "</think>",
        "<think>" + fenced(BODY) + "</think>\n ",
    ],
)
def test_no_program(completion) -> None:
    assert find_program(completion) is None


def test_tags_can_be_chosen() -> None:
    completion = fenced(BODY, "solution") + "\n" + fenced(OTHER)
    assert text(completion) == OTHER
    assert text(completion, tags=("solution",)) == BODY


def test_a_thought_that_the_prompt_opened() -> None:
    assert find_program(fenced(BODY), inside_thought=True) is None
    assert text("hm</think>" + fenced(BODY), inside_thought=True) == BODY


def test_a_fence_that_the_prompt_opened() -> None:
    prompt = "Write f.\n```python\n"
    assert find_program(BODY + "```\nThat is it.", prompt=prompt) == ProgramText(BODY, fenced=True)
    assert text(BODY + "```\n", prompt=[{"role": "user", "content": "x"}, {"role": "assistant", "content": prompt}]) == BODY
    # not the assistant's own words, or closed again, or opened again by the completion
    assert text(BODY + "```\n", prompt=[{"role": "user", "content": prompt}]) != BODY
    assert text(BODY, prompt=prompt + "x\n```\n") == BODY
    assert text(fenced(BODY), prompt=prompt) == BODY


PREFIX = 'import math\n\ndef helper(x):\n    return x\n\ndef area(r):\n    """Area of a circle."""\n'


def test_a_completion_that_continues_the_prompt() -> None:
    options = {"entry_point": "area", "prefix": PREFIX}
    body = "    return math.pi * r * r\n"
    assert text(body, **options) == PREFIX + body
    assert text(fenced(body), **options) == PREFIX + body
    assert text(body + "```\n", prompt="Complete:\n```python\n" + PREFIX, **options) == PREFIX + body
    whole = "def area(r):\n    return math.pi * r * r\n"
    assert text(fenced(whole), **options) == "import math\n\ndef helper(x):\n    return x\n\n" + whole
    assert text(fenced("from __future__ import annotations\n" + whole), **options).startswith("from __future__")
    assert text(whole) == whole


def test_names() -> None:
    assert defines_name("x = 1\ndef area(r): ...", "area")
    assert defines_name("async def area(r): ...", "area")
    assert defines_name("area = lambda r: r", "area")
    assert defines_name("from shapes import area", "area")
    assert defines_name("class area: ...", "area")
    assert not defines_name("def area_of(r): ...", "area")
    assert not defines_name("class A:\n    def area(self): ...", "area")
    assert not defines_name("print(area(3))", "area")
    assert find_prefix_head("def g(): ...\n", "f") == ""
    assert strip_solution("Solution().two_sum") == "two_sum"
    assert strip_solution("two_sum") == "two_sum"
    assert find_callable_name("class Solution:\n    def f(self): ...", "f") == "Solution.f"
    assert find_callable_name("class Solution:\n    def f(self): ...\ndef f(): ...", "f") == "f"
    assert find_callable_name("x = 1", "f") == "f"


@pytest.mark.parametrize(
    "hostile",
    ["`" * 300_000, "```" + "a" * 300_000 + "`", "```\n" * 100_000, " " * 300_000 + "```", "</think>" * 50_000,
     "from " + "x " * 150_000, "def " * 100_000, "\n" * 300_000],
)  # fmt: skip
def test_no_text_is_slow(hostile) -> None:
    started = time.process_time()
    find_program(hostile, entry_point="f", prefix=PREFIX, prompt=hostile)
    assert time.process_time() - started < 1.5
