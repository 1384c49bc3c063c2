"""Calls in the formats of chat templates and in plain text; model output is untrusted."""

import pytest

from cohort.environments.tool_calls import ToolCall, find_calls


@pytest.mark.parametrize(
    ("form", "text", "said", "calls"),
    [
        ("hermes", "It is 4.", "It is 4.", []),
        (
            "hermes",
            'I ask.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><tool_call>{"name": "b", "arguments": {}}</tool_call>',
            "I ask.",
            [("add", {"a": 1}), ("b", {})],
        ),
        ("hermes", '<tool_call>{"name": "add", "arguments": "{\\"a\\": 2}"}', "", [("add", {"a": 2})]),
        ("llama", '{"name": "add", "parameters": {"a": 1}}', "", [("add", {"a": 1})]),
        ("llama", '<|python_tag|>{"name": "add", "parameters": {}}', "", [("add", {})]),
        ("llama", '{"answer": 4}', '{"answer": 4}', []),
        ("plain", "first\n@add(1, [2, 3])  ", "first", [("add", [1, [2, 3]])]),
        ("plain", '@add(a=1, b="x, y)")', "", [("add", {"a": 1, "b": "x, y)"})]),
        ("plain", "@now()", "", [("now", [])]),
        ("plain", "f(2) = 4", "f(2) = 4", []),
    ],
)
def test_calls_are_read(form, text, said, calls):
    assert find_calls(text, form) == (said, [ToolCall(name, arguments) for name, arguments in calls])


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", "<tool_call>{not json}</tool_call>"),
        ("hermes", "<tool_call>[1, 2]</tool_call>"),
        ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "add", "arguments": ' + "[" * 100_000 + "</tool_call>"),
        ("llama", '{"name": "add", "parameters": '),
        ("llama", "<|python_tag|>print(1)"),
        ("plain", "@add(1, oops)"),
        ("plain", "@add(1 2)"),
        ("plain", "@add(1, b=2)"),
        ("plain", "@add(b=2, 1)"),
        ("plain", "@"),
        ("plain", "@add(" + "[" * 100_000 + ")"),
    ],
)
def test_a_call_that_cannot_be_read_is_a_call_with_a_problem(form, text):
    _, calls = find_calls(text, form)
    assert len(calls) == 1
    assert calls[0].problem
