"""Tool calls in what the policy wrote, in the format of its chat template.

    hermes   <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>      Hermes, Qwen 2.5 and 3
    llama    {"name": "add", "parameters": {"a": 1, "b": 2}}                            Llama 3, as the whole turn
    plain    @add(1, b=2)                                                               any model, as the last line of the turn

Model output is untrusted: a call that cannot be read is a call with a mistake, which the policy is told.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal

Format = Literal["hermes", "llama", "plain"]

BLOCK = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
PYTHON_TAG = "<|python_tag|>"
PLAIN = re.compile(r"@\s*([A-Za-z_]\w*)\s*\((.*)\)\s*", re.DOTALL)
NAMED = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)")


@dataclass(frozen=True)
class ToolCall:
    name: str
    arguments: Any
    problem: str = ""
    """Why it cannot be read, as text for the policy."""


def find_calls(text: str, form: Format) -> tuple[str, list[ToolCall]]:
    """(what the turn says besides its calls, the calls in their order). No calls: the turn is an answer."""
    if form == "hermes":
        calls = [read_object(block.strip(), "arguments") for block in BLOCK.findall(text)]
        return (text.partition("<tool_call>")[0].strip() if calls else text), calls
    if form == "llama":
        body = text.strip()
        tagged = body.startswith(PYTHON_TAG)
        body = body.removeprefix(PYTHON_TAG).strip()
        if tagged or (body.startswith("{") and '"name"' in body):
            return "", [read_object(body, "parameters")]
        return text, []
    said, _, last = text.rstrip().rpartition("\n")
    return (said, [read_plain(last.strip())]) if last.strip().startswith("@") else (text, [])


def read_object(body: str, key: str) -> ToolCall:
    try:
        found = json.loads(body)
        if isinstance(found, dict) and "function" in found and isinstance(found["function"], dict):
            found = found["function"]
        arguments = found.get(key, found.get("arguments", found.get("parameters", {})))
        name = found["name"]
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
    except (ValueError, RecursionError) as problem:
        return ToolCall("", {}, f"the call is not valid JSON ({str(problem)[:80]})")
    except (AttributeError, KeyError, TypeError):
        return ToolCall("", {}, f'the call is not an object with "name" and "{key}"')
    return ToolCall(name, arguments) if isinstance(name, str) else ToolCall("", {}, '"name" is not text')


def read_plain(line: str) -> ToolCall:
    """A call as `@name(1, key="text")`: values in JSON."""
    if not (match := PLAIN.fullmatch(line)):
        return ToolCall("", {}, "a call is written @name(arguments), with values in JSON")
    name, body = match[1], match[2].strip()
    values: list[Any] = []
    named: dict[str, Any] = {}
    decoder, place = json.JSONDecoder(), 0
    try:
        while place < len(body):
            key = NAMED.match(body, place)
            place = skip_space(body, key.end() if key else place)
            value, place = decoder.raw_decode(body, place)
            if key:
                named[key[1]] = value
            elif named:
                raise ValueError("a value without a name follows one with a name")
            else:
                values.append(value)
            place = skip_space(body, place)
            if place < len(body):
                if body[place] != ",":
                    raise ValueError("values are separated by commas")
                place = skip_space(body, place + 1)
    except (ValueError, RecursionError) as problem:
        return ToolCall(name, {}, f"the arguments cannot be read ({str(problem)[:80]})")
    if named and values:
        return ToolCall(name, {}, "give all arguments by name, or none")
    return ToolCall(name, named or values)


def skip_space(text: str, place: int) -> int:
    while place < len(text) and text[place].isspace():
        place += 1
    return place
