"""Rewards that run in the trainer and change what they are given: every completion and every call has its own copy of the row."""

from __future__ import annotations

import array
import asyncio
import collections
import copy
import dataclasses
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cohort.data.rows import load_rows
from cohort.errors import PromptError
from cohort.observe.monitors.base import Monitors
from cohort.recipe.schema import PromptsConfig
from cohort.rewards.contract import RewardPart
from cohort.rewards.runner import RewardRunner
from cohort.types import Completion, Prompt


@dataclasses.dataclass
class Case:
    tests: list


class Slotted:
    __slots__ = ("tests",)

    def __init__(self, tests):
        self.tests = tests


class Words(list):
    pass


def cyclic():
    tests = [1, 2, 3]
    tests.append(tests)
    return tests


def aliased():
    inner = [1, 2, 3]
    return {"first": inner, "second": inner}


CHANGES = {
    "list.pop": ([1, 2, 3], lambda v: v.pop()),
    "list.clear": ([1, 2, 3], lambda v: v.clear()),
    "list.sort": ([3, 1, 2], lambda v: v.sort()),
    "list.append": ([], lambda v: v.append(1)),
    "list of lists": ([[1, 2], [3]], lambda v: v[0].pop()),
    "dict.pop": ({"tests": [1]}, lambda v: v.pop("tests")),
    "dict in dict": ({"a": {"b": 1}}, lambda v: v["a"].update(b=2)),
    "dict counts": ({"seen": 0}, lambda v: v.update(seen=v["seen"] + 1)),
    "dict of lists": ({"tests": [1, 2]}, lambda v: v["tests"].clear()),
    "list of dicts": ([{"in": 1}], lambda v: v[0].clear()),
    "tuple with a list": ((1, [2, 3]), lambda v: v[1].pop()),
    "tuple with a dict": (("x", {"y": 1}), lambda v: v[1].clear()),
    "set": ({1, 2, 3}, lambda v: v.discard(1)),
    "bytearray": (bytearray(b"abc"), lambda v: v.reverse()),
    "numpy in place": (np.arange(4), lambda v: v.__iadd__(1)),
    "numpy of objects": (np.array([[1], [2, 3]], dtype=object), lambda v: v[0].append(9)),
    "numpy slice": (np.zeros((2, 2)), lambda v: v[0].fill(7)),
    "tensor": (torch.zeros(3), lambda v: v.add_(1)),
    "deque": (collections.deque([1, 2]), lambda v: v.popleft()),
    "defaultdict": (collections.defaultdict(list, a=[1]), lambda v: v["a"].append(2)),
    "Counter": (collections.Counter("aab"), lambda v: v.update("a")),
    "OrderedDict": (collections.OrderedDict(a=1, b=2), lambda v: v.move_to_end("a")),
    "array": (array.array("i", [1, 2]), lambda v: v.append(3)),
    "dataclass": (Case([1, 2]), lambda v: v.tests.pop()),
    "slots": (Slotted([1, 2]), lambda v: v.tests.pop()),
    "namespace": (SimpleNamespace(tests=[1]), lambda v: v.tests.pop()),
    "subclass of list": (Words([1, 2]), lambda v: v.pop()),
    "list within itself": (cyclic(), lambda v: v.pop(0)),
    "one list twice": (aliased(), lambda v: v["first"].pop()),
    "deep": ([[[[[[[1]]]]]]], lambda v: v[0][0][0][0][0][0].pop()),
}


def show(value):
    if isinstance(value, Slotted | Case | SimpleNamespace):
        return repr(value.tests)
    return repr(value)


def ask(reward, value, *, prompt="q", completions=4, calls=2, **part):
    """Score a group of completions of one row several times; gives the row and what was scored."""
    row = Prompt(0, prompt, {"info": value}, (1,))
    texts = [Completion((1, 2), (0.0, 0.0), "stop", "a") for _ in range(completions)]
    with RewardRunner([RewardPart("f", reward, **part)], workers=1) as runner:
        scored = [runner.score([row] * completions, texts, step=1 + call, num_steps=10) for call in range(calls)]
    return row, [outcome.reward for one in scored for outcome in one.outcomes]


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_reaches_no_other_completion(name):
    """Each call and completion finds what the row had at first, and the row still has it afterwards."""
    value, change = CHANGES[name]
    before = show(value)

    def reward(completions, info, **columns):
        found = []
        for one in info:
            found.append(float(show(one) == before))
            change(one)
            assert show(one) != before
        return found

    row, rewards = ask(reward, value)
    assert rewards == [1.0] * 8
    assert show(row.columns["info"]) == before


def sort_of(kind):
    def plain(completions, info, **columns):
        return [float(len(one["tests"])) for one in info if one["tests"].pop()]

    async def waiting(completions, info, **columns):
        await asyncio.sleep(0)
        return [float(len(one["tests"])) for one in info if one["tests"].pop()]

    def threaded(completions, info, **columns):
        threads = [threading.Thread(target=one["tests"].pop) for one in info]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [float(len(one["tests"])) for one in info]

    def failing(completions, info, **columns):  # the call for all of them fails after the change, and is repeated one by one
        left = [float(len(one["tests"])) for one in info if one["tests"].pop()]
        if len(completions) > 1:
            raise ValueError("one at a time")
        return left

    def swapping(completions, info, **columns):
        info.reverse()
        return [float(len(info.pop()["tests"]) - 1) for _ in completions]

    def through_kwargs(completions, **columns):
        return [float(len(one["tests"])) for one in columns["info"] if one["tests"].pop()]

    class Called:
        def __call__(self, completions, info, **columns):
            return plain(completions, info)

    def alone(completions, info, **columns):
        return plain(completions, info)

    alone.per_completion = True
    return {"plain": plain, "async": waiting, "threads": threaded, "retried": failing, "list itself": swapping, "kwargs": through_kwargs,
            "object": Called(), "per completion": alone}[kind]  # fmt: skip


@pytest.mark.parametrize("kind", ["plain", "async", "threads", "retried", "list itself", "kwargs", "object", "per completion"])
def test_every_kind_of_function_gets_its_own(kind):
    """Eight tests each, one taken away: seven are left for every completion of every call."""
    row, rewards = ask(sort_of(kind), {"tests": list(range(8))})
    assert rewards == [7.0] * 8
    assert row.columns["info"] == {"tests": list(range(8))}


def test_messages_and_token_ids_are_its_own_too():
    chat = [{"role": "user", "content": "q", "tool_calls": [{"name": "add"}]}]

    def reward(prompts, completions, completion_ids, **columns):
        found = [
            float(len(p) == 1 and len(p[0]["tool_calls"]) == 1 and len(c) == 1 and len(ids) == 2)
            for p, c, ids in zip(prompts, completions, completion_ids, strict=True)
        ]
        for p, c, ids in zip(prompts, completions, completion_ids, strict=True):
            p[0]["tool_calls"].clear()
            p.clear()
            c[0].clear()
            ids.clear()
        return found

    def second(prompts, completions, completion_ids, **columns):
        return reward(prompts, completions, completion_ids)

    row = Prompt(0, chat, {}, (1,))
    completions = [Completion((1, 2), (0.0, 0.0), "stop", "a")] * 4
    with RewardRunner([RewardPart("f", reward), RewardPart("g", second)], workers=1) as runner:
        for step in (1, 2):
            scored = runner.score([row] * 4, completions, step=step, num_steps=2)
            assert [outcome.reward for outcome in scored.outcomes] == [2.0] * 4
    assert chat == [{"role": "user", "content": "q", "tool_calls": [{"name": "add"}]}]


def test_arguments_of_the_recipe_are_its_own():
    def reward(completions, table, **columns):
        return [float(len(table["words"].append(1) or table["words"])) for _ in completions[:1]] * len(completions)

    args = {"table": {"words": []}}
    assert ask(reward, 0, args=args)[1] == [1.0] * 8
    assert args == {"table": {"words": []}}


def test_extract_and_unusable_change_no_other_row():
    def reward(completions, info, tags, **columns):
        return [float(len(one) + len(tags)) for one in info]

    def unusable(info, tags):
        for one in [*info, tags]:
            one.clear()
        return [None] * len(info)

    def extract(text, tags):
        tags.clear()
        return text

    reward.unusable, reward.extract = unusable, extract
    row = Prompt(0, "q", {"info": [1, 2]}, (1,))
    completions = [Completion((1,), (0.0,), "stop", "a")] * 2
    with RewardRunner([RewardPart("f", reward, args={"tags": ["x"]})], workers=1) as runner:
        assert runner.find_unusable([row]) == {}
        for step in (1, 2):
            scored = runner.score([row] * 2, completions, step=step, num_steps=2)
            assert [outcome.reward for outcome in scored.outcomes] == [3.0, 3.0]


def test_text_and_numbers_are_not_copied():
    text = "".join(["long ", "text"])
    seen = []
    ask(lambda completions, info, **columns: [float(seen.append(info[0]) is None)] * len(info), text)
    assert all(one is text for one in seen)


def test_what_is_logged_stays_as_it_was_logged():
    buffer = []

    def reward(completions, log_extra, **columns):
        for number in range(len(completions)):
            buffer[:] = [number]
            log_extra("buffer", [buffer])
        buffer[:] = ["changed"]
        return [0.0] * len(completions)

    row, completions = Prompt(0, "q", {}, (1,)), [Completion((1,), (0.0,), "stop", "a")] * 3
    with RewardRunner([RewardPart("f", reward)], workers=1) as runner:
        scored = runner.score([row] * 3, completions, step=1, num_steps=1)
    assert [outcome.extras["buffer"] for outcome in scored.outcomes] == [[0], [1], [2]]


# -- rows that are handed in ---------------------------------------------------------------------------------------------

HANDED = PromptsConfig(source="python:rows")


def test_a_generator_may_use_one_list_for_all_rows():
    def rows():
        tests, row = [], {}
        for number in range(3):
            tests[:] = [number]
            row.update(prompt=f"{number}?", tests=tests)
            yield row

    assert [row["tests"] for row in load_rows(HANDED, 0, rows())] == [[0], [1], [2]]


def test_rows_belong_to_the_run_and_not_to_the_caller():
    row = {"prompt": "q", "tests": [[1], {"a": [2]}]}
    given, expected = [row] * 3, copy.deepcopy(row)
    loaded = load_rows(HANDED, 0, given)
    row["tests"][1]["a"].clear()
    loaded[0]["tests"].pop()
    assert loaded[1:] == [expected] * 2


def test_a_function_of_prompts_that_keeps_its_rows_and_arguments(tmp_path, monkeypatch):
    (tmp_path / "kept_rows.py").write_text(
        "ROWS = [{'prompt': 'q', 'tests': [1, 2]}]\n"
        "def rows(words):\n    words.append('more')\n    assert words == ['one', 'more']\n    return ROWS\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = PromptsConfig(source="kept_rows:rows", args={"words": ["one"]})
    first = load_rows(config, 0)
    first[0]["tests"].clear()
    assert load_rows(config, 0) == [{"prompt": "q", "tests": [1, 2]}]


def test_a_value_that_cannot_be_copied_is_named():
    rows = [{"prompt": "q"}, {"prompt": "q", "client": {"lock": threading.Lock()}}]
    with pytest.raises(
        PromptError, match=r"prompts, row 1: column 'client' has a value of type dict that cannot be copied \(cannot pickle"
    ):
        load_rows(HANDED, 0, rows)


# -- monitors ------------------------------------------------------------------------------------------------------------


class Breaking:
    """Takes apart whatever it is told."""

    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        if not name.startswith("on_"):
            raise AttributeError(name)

        def hear(*arguments):
            self.told.append(copy.deepcopy(arguments))
            for value in arguments:
                self.break_up(value)

        return hear

    def break_up(self, value):
        if isinstance(value, dict | list):
            for inner in list(value.values() if isinstance(value, dict) else value):
                self.break_up(inner)
            value.clear()


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("on_metrics", [{"step": 1, "evidence": [["a", 1], {"rows": [1, 2]}]}]),
        ("on_rollouts", [1, [{"prompt": "q", "gold": [1, {"a": 2}]}]]),
        ("on_evaluation", [{"label": "after", "sets": {"held_out": {"reward": {"value": 0.5}}}}]),
        ("on_ranks", [1, [{"rank": 0, "seconds": {"rollout": 1.0}}]]),
        ("on_finding", [1, {"name": "x", "evidence": ["a"], "rows": [[1, 2]]}]),
        ("on_progress", [1, {"loss": 1.0}]),
        ("on_finish", [{"status": "finished", "eval": {"after": {"pass@1": {"value": 1.0}}}}]),
    ],
)
def test_a_monitor_takes_nothing_from_the_run_or_the_others(method, arguments):
    first, second = Breaking(), Breaking()
    kept = copy.deepcopy(arguments)
    getattr(Monitors([first, second]), method)(*arguments)
    assert arguments == kept
    assert [list(told) for told in second.told] == [kept]
