"""The reward contract: what each kind of answer, fault, hang and crash does to scores, metrics and the run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import test_rewards_zoo as zoo

from cohort.base.threads import split_evenly, start_thread
from cohort.errors import RewardError
from cohort.recipe.schema import RewardConfig
from cohort.rewards import retry_one_by_one
from cohort.rewards.call import Answered, RewardEntry, from_message, to_message
from cohort.rewards.contract import RewardPart, Scored, importable_name
from cohort.rewards.pool import Worker
from cohort.rewards.retry_one_by_one import spread_rows
from cohort.rewards.runner import RewardRunner
from cohort.types import Completion, Prompt


def prompt(index: int = 0, content="q", **columns) -> Prompt:
    return Prompt(index=index, content=content, columns=columns, token_ids=(1,))


def completion(text: str, ids=(1, 2)) -> Completion:
    return Completion(token_ids=tuple(ids), sampling_logprobs=(0.0,) * len(ids), end="stop", text=text)


def score(function, texts, *, columns=None, workers=1, max_fault_share=0.1, **part) -> Scored:
    """Score texts with one function, called "f"."""
    columns = columns or {}
    prompts = [prompt(i, **{name: values[i] for name, values in columns.items()}) for i in range(len(texts))]
    with RewardRunner([RewardPart("f", function, **part)], workers=workers, max_fault_share=max_fault_share) as runner:
        return runner.score(prompts, [completion(text) for text in texts], step=1, num_steps=10)


def rewards(scored: Scored) -> list[float | None]:
    return [outcome.reward for outcome in scored.outcomes]


def is_gone(pid: int, within_s: float = 30.0) -> bool:
    """Whether a process we started has ended (a zombie whose parent was killed counts as ended)."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


ONE_BAD = ["fine"] * 7 + ["bad"] + ["fine"] * 12
WITHOUT_BAD = [1.0] * 7 + [None] + [1.0] * 12

# ---------------------------------------------------------------------------------------------------------------------
# What a function returns
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (zoo.nan_on_bad, "nan"),
        (zoo.inf_on_bad, "nan"),
        (zoo.huge_int_on_bad, "nan"),
        (zoo.str_on_bad, "type"),
        (zoo.nested_on_bad, "type"),
        (zoo.raise_on_bad, "exception"),
        (zoo.exit_on_bad, "exception"),
    ],
)
def test_one_bad_row_is_one_fault_and_unscored(function, kind):
    scored = score(function, ONE_BAD)
    assert rewards(scored) == WITHOUT_BAD
    assert [outcome.faults for outcome in scored.outcomes] == [()] * 7 + [(f"f:{kind}",)] + [()] * 12
    assert scored.outcomes[7].success is None
    assert scored.outcomes[7].parts == {"f": None}
    assert scored.metrics["reward/faults"] == scored.metrics["reward/unscored"] == scored.metrics["reward/f/faults"] == 1
    assert scored.metrics["reward/timeouts"] == scored.metrics["reward/f/none"] == 0
    assert scored.metrics["reward/mean"] == scored.metrics["reward/success"] == 1.0


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (zoo.one_for_all, "float 1.0"),
        (zoo.text_for_all, "str"),
        (zoo.dict_for_all, "dict"),
        (zoo.nested_for_all, "list [1.0]"),
        (zoo.too_many, "13 values for 12 completions; return a list with one float or None per completion"),
        (zoo.always_raises, "KeyError: 'no such thing'"),
        (lambda completions, **_: None, "NoneType"),
        (lambda completions, **_: np.float64(1.0), "float64"),
        (lambda completions, **_: {1.0}, "set"),
        (zoo.short_with_bad, "11 values for 12 completions"),
        (zoo.right_only_for_one, "float 1.0 for 12 completions; return a list with one float or None per completion"),
        (zoo.raises_type_error_on_the_way, "TypeError: cannot score"),
    ],
)
def test_a_malformed_reply_for_the_whole_batch_stops_the_run(function, said):
    with pytest.raises(RewardError) as caught:
        score(function, ["bad"] + ["fine"] * 11)
    message = str(caught.value)
    assert "reward 'f' failed on 12 of 12 completions" in message
    assert said in message


@pytest.mark.parametrize(("function", "kind"), [(zoo.right_only_for_one, "type"), (zoo.right_length_only_for_one, "length")])
def test_a_wrong_form_is_a_fault_of_every_row_and_not_retried_into_acceptance(function, kind):
    """Completion by completion these functions would pass: the mistake would cost a call per completion and never be seen."""
    for form in (function, hidden(function)):
        scored = score(form, ["x"] * 4, max_fault_share=1.0)
        assert rewards(scored) == [None] * 4
        assert [outcome.faults for outcome in scored.outcomes] == [(f"f:{kind}",)] * 4
        assert scored.metrics["reward/f/retried"] == 0
        assert scored.metrics["reward/f/faults"] == 4


def test_a_chunk_of_the_wrong_length_is_that_chunk():
    scored = score(zoo.short_with_bad_split, ["bad"] + ["fine"] * 5, workers=2, max_fault_share=0.5)
    assert rewards(scored) == [None] * 3 + [1.0] * 3
    assert [outcome.faults for outcome in scored.outcomes] == [("f:length",)] * 3 + [()] * 3
    assert scored.metrics["reward/f/retried"] == 0


def test_a_call_that_raised_is_still_retried_and_a_wrong_form_then_is_a_fault_of_its_row():
    scored = score(zoo.raises_then_returns_text_on_bad, ONE_BAD)
    assert rewards(scored) == WITHOUT_BAD
    assert scored.outcomes[7].faults == ("f:type",)
    assert scored.metrics["reward/f/retried"] == 20


def test_control_characters_of_foreign_text_do_not_reach_messages():
    """Escape sequences in a completion end up in exceptions: they must not colour, clear or rename a terminal."""
    for function in (zoo.raise_with_text, hidden(zoo.raise_with_text), zoo.odd_repr, hidden(zoo.odd_repr)):
        with pytest.raises(RewardError) as caught:
            score(function, ["\x1b]0;owned\x07 \x9b2J \r \u202e"])
        message = str(caught.value)
        assert [c for c in message if not c.isprintable() and c != "\n"] == []
        assert r"\x1b]0;owned\x07 \x9b2J \r \u202e" in message
        assert "\n" in message  # a traceback keeps its lines


def test_the_first_traceback_is_shown():
    with pytest.raises(RewardError, match=r"exception 12(.|\n)*Traceback(.|\n)*in always_raises(.|\n)*KeyError"):
        score(zoo.always_raises, ["fine"] * 12)


def test_fault_share_is_a_limit_not_a_count():
    texts = ["bad"] * 2 + ["fine"] * 18
    assert rewards(score(zoo.raise_on_bad, texts)) == [None] * 2 + [1.0] * 18  # exactly 10 %
    with pytest.raises(RewardError, match="failed on 3 of 20"):
        score(zoo.raise_on_bad, ["bad", *texts[:-1]])
    assert rewards(score(zoo.raise_on_bad, ["bad", *texts[:-1]], max_fault_share=0.2))[:3] == [None] * 3


def accepted_forms():
    import torch

    return [
        [1, 0, None],
        [True, False, None],
        (1.0, 0.0, None),
        [np.float32(1), np.int64(0), None],
        [np.bool_(True), np.array(0.0), None],
        [torch.tensor(1.0), torch.tensor(0, dtype=torch.int64), None],
        (value for value in [1.0, 0.0, None]),
    ]


@pytest.mark.parametrize("index", range(7))
def test_accepted_forms_of_a_list(index):
    scored = score(lambda completions, **_: accepted_forms()[index], ["a", "b", "c"])
    assert rewards(scored) == [1.0, 0.0, None]
    assert all(type(reward) is float for reward in rewards(scored)[:2])
    assert [outcome.success for outcome in scored.outcomes] == [True, False, None]
    assert scored.metrics["reward/f/none"] == 1


def test_arrays_and_tensors_are_lists():
    import torch

    for values in (np.array([0.5, 1.5]), torch.tensor([0.5, 1.5]), torch.tensor([0.5, 1.5], dtype=torch.bfloat16)):
        assert rewards(score(lambda completions, v=values, **_: v, ["a", "b"])) == [0.5, 1.5]
    with pytest.raises(RewardError, match="type 2"):
        score(lambda completions, **_: np.zeros((len(completions), 1)), ["a", "b"])


# ---------------------------------------------------------------------------------------------------------------------
# Several parts
# ---------------------------------------------------------------------------------------------------------------------


def run_parts(parts: list[RewardPart], texts: list[str], **runner_args) -> Scored:
    with RewardRunner(parts, **runner_args) as runner:
        return runner.score([prompt(i) for i in range(len(texts))], [completion(t) for t in texts], step=1, num_steps=10)


def test_weighted_sum_abstention_and_faults():
    parts = [
        RewardPart("shape", lambda completions, **_: [0.25] * len(completions), weight=2.0),
        RewardPart("right", zoo.none_on_bad, weight=3.0, outcome=True, threshold=1.0),
    ]
    scored = run_parts(parts, ["fine", "bad"])
    assert rewards(scored) == [3.5, 0.5]  # an abstaining part leaves the others to count
    assert [outcome.success for outcome in scored.outcomes] == [True, None]
    assert scored.outcomes[1].parts == {"shape": 0.25, "right": None}
    assert scored.outcomes[1].faults == ()
    assert scored.metrics["reward/mean"] == 2.0
    assert scored.metrics["reward/std"] == pytest.approx(1.5, abs=1e-12)
    assert scored.metrics["reward/success"] == 1.0
    assert scored.metrics["reward/shape/mean"] == 0.25
    assert scored.metrics["reward/right/none"] == 1

    faulty = run_parts([parts[0], RewardPart("right", zoo.nan_on_bad, outcome=True)], ["fine", "bad"], max_fault_share=0.5)
    assert rewards(faulty) == [1.5, None]  # a failed part makes the sum unknowable
    assert faulty.outcomes[1].parts == {"shape": 0.25, "right": None}
    assert faulty.outcomes[1].faults == ("right:nan",)


def test_a_part_of_weight_0_is_watched_and_makes_no_score():
    """What the paying parts abstain on is unscored, not worth 0; with no paying part at all, all count."""
    watched = RewardPart("shape", lambda completions, **_: [0.25] * len(completions), weight=0.0)
    scored = run_parts([watched, RewardPart("right", zoo.none_on_bad, outcome=True)], ["fine", "bad"])
    assert rewards(scored) == [1.0, None]
    assert scored.metrics["reward/unscored"] == 1
    assert scored.metrics["reward/shape/mean"] == 0.25
    assert rewards(run_parts([watched], ["fine"])) == [0.0]


def test_success_is_of_the_outcome_part_else_the_first():
    half = RewardPart("half", lambda completions, **_: [0.5] * len(completions), threshold=0.6)
    one = RewardPart("one", zoo.good)
    assert run_parts([half, one], ["x"]).outcomes[0].success is False
    assert run_parts([one, half], ["x"]).outcomes[0].success is True


def test_a_sum_that_overflows_is_not_a_reward():
    parts = [RewardPart(name, lambda completions, **_: [1e18] * len(completions)) for name in ("a", "b")]
    scored = run_parts(parts, ["x"], max_fault_share=1.0)
    assert rewards(scored) == [None]
    assert scored.outcomes[0].faults == ("sum:nan",)
    assert all(math.isfinite(value) for value in scored.metrics.values())
    with pytest.raises(
        RewardError, match=r"the sum of the rewards failed on 2 of 2 completions \(nan 2\)(.|\n)*a 1e\+18, b 1e"
    ):
        run_parts(parts, ["x", "y"])


@pytest.mark.parametrize("value", [1e308, -1e308, 1e200, 1e39, 1e19, 10**400, math.inf])
def test_a_reward_that_no_advantage_can_square_counts_as_infinite(value):
    """1e308 overflowed the mean; 1e200 made the deviation infinite and every advantage 0; 1e39 has no float32."""

    def huge(completions, log_metric, log_extra, **_):
        log_metric("size", value)
        log_extra("text", ["cut\ud83d"] * len(completions))
        log_metric("name\ud83d", 1.0)
        return [value if c == "large" else 1e18 for c in completions]

    huge.extract = lambda text: f"{text}\udcff"
    parts = [RewardPart("a", huge)]
    scored = run_parts(parts, ["large"] + ["fine"] * 9)
    assert rewards(scored) == [None] + [1e18] * 9
    assert scored.outcomes[0].faults == ("a:nan",)
    assert scored.metrics["reward/a/dropped_logs"] == 1.0
    assert all(math.isfinite(metric) for metric in scored.metrics.values())
    with pytest.raises(
        RewardError, match=r"reward 'a' failed on 2 of 10 completions \(nan 2\)(.|\n)*a finite float, at most 1e\+18"
    ):
        run_parts(parts, ["large"] * 2 + ["fine"] * 8)
    # What a function says of a completion can be written down, whatever it quotes.
    assert (scored.outcomes[1].answer, scored.outcomes[1].extras["text"]) == ("fine\ufffd", "cut\ufffd")
    json.dumps([scored.metrics, scored.outcomes[1].answer], ensure_ascii=False).encode()
    assert scored.metrics["reward/a/name\ufffd"] == 1.0


def fails_on(text: str, kind: str = "raise"):
    def function(completions, **_):
        if text in completions and kind == "raise":
            raise KeyError(f"{text} is not known")
        return [math.nan if c == text else 1.0 for c in completions]

    return function


def test_the_fault_share_is_of_completions_over_all_parts():
    """Each part stays below the limit and the step does not: it is the completions lost that count, each once."""
    parts = [RewardPart("a", fails_on("bad")), RewardPart("b", fails_on("worse", "nan"))]
    texts = ["bad", "worse", "worse"] + ["fine"] * 17
    with pytest.raises(RewardError) as caught:
        run_parts(parts, texts)
    message = str(caught.value)
    assert (
        "reward 'b' failed on 2 of 20 completions (nan 2), all parts together on 3, more than the 10% that train.max_fault_share allows in a step"
        in message
    )
    assert "it returned float nan" in message
    scored = run_parts(parts, ["bad", "worse"] + ["fine"] * 18)
    assert rewards(scored) == [None, None] + [2.0] * 18
    both = [RewardPart("a", fails_on("bad")), RewardPart("b", fails_on("bad"))]
    scored = run_parts(both, ["bad", "bad"] + ["fine"] * 18)  # two completions lost, not four
    assert rewards(scored) == [None, None] + [2.0] * 18
    with pytest.raises(
        RewardError, match=r"reward 'a' failed on 3 of 20 completions \(exception 3\), more(.|\n)*Traceback(.|\n)*KeyError"
    ):
        run_parts(both, ["bad"] * 3 + ["fine"] * 17)


def test_a_sum_that_overflows_counts_with_the_faults_of_the_parts():
    def large_on_large(completions, **_):
        return [1e18 if c == "large" else 0.0 for c in completions]

    parts = [RewardPart("a", large_on_large), RewardPart("b", large_on_large), RewardPart("c", fails_on("bad"))]
    with pytest.raises(RewardError, match="all parts together on 3"):
        run_parts(parts, ["bad", "bad", "large"] + ["fine"] * 17)


def test_from_recipe_names_parts_and_takes_python_functions():
    parts = [
        RewardConfig(function="python:correct", weight=2.0),
        RewardConfig(function="think_format", name="shape"),
        RewardConfig(function="test_rewards_zoo:good"),
    ]
    functions = {
        "python:correct": lambda completions, answer, **_: [float(c == a) for c, a in zip(completions, answer, strict=True)]
    }
    with RewardRunner.from_recipe(parts, functions) as runner:
        scored = runner.score([prompt(answer="4")], [completion("4")], step=1, num_steps=1)
    assert scored.outcomes[0].parts == {"correct": 1.0, "shape": 0.0, "good": 1.0}
    assert rewards(scored) == [3.0]


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        ("math_anwser", {}, "function: unknown reward 'math_anwser'; did you mean 'math_answer'? Built in: math_answer,"),
        ("nosuch", {}, "function: unknown reward 'nosuch'. Built in: math_answer,"),
        ("math_answer", {"tolerence": 0.1}, "args: reward 'f' has no argument 'tolerence'; did you mean 'tolerance'?"),
        ("math_answer", {"completions": []}, "args.completions: the runner passes it, so it cannot be set."),
        ("math_answer", {"pattern": "("}, "args.pattern: '(' is not a regular expression (missing ), unterminated"),
        ("regex_format", {"pattern": "["}, "args.pattern: '[' is not a regular expression ("),
        ("regex_format", {"pattern": 3}, "args.pattern: 3 is not a regular expression ("),
        ("cohort.rewards.gym.rows:gym_verifier", {"pattern": "("}, "args.pattern: '(' is not a regular expression ("),
        ("no_such_module_here:f", {}, "cannot import no_such_module_here:f (ModuleNotFoundError: No module named"),
        ("test_rewards_zoo:raise_on_bda", {}, "has no function 'raise_on_bda'; did you mean 'raise_on_bad'?"),
        ("test_rewards_zoo:Holder.statik", {}, "has no function 'statik'; did you mean 'static'?"),
        ("test_rewards_zoo:__doc__", {}, "function: cannot use test_rewards_zoo:__doc__: it is of type str, not a function."),
        ("python:gone", {}, "Use cohort.resume(run, rewards=[function])"),
        ("module:", {}, "'module:' is not of the form \"package.module:function\"."),
    ],
)
def test_bad_names_and_args_are_one_line_at_start(function, args, message):
    parts = [RewardPart("first", zoo.good), RewardPart("f", function, args=args)]
    with pytest.raises(RewardError) as caught:
        RewardRunner(parts).start()
    said = str(caught.value)
    assert said.startswith("rewards.1.")
    assert message in said
    assert len(said.splitlines()) == 1
    assert said.endswith((".", "?"))


def test_a_pattern_of_the_users_own_function_is_its_own_business():
    assert rewards(
        score(lambda completions, pattern: [float(c in pattern) for c in completions], ["("], args={"pattern": "("})
    ) == [1.0]


BROKEN_MODULES = {
    "needs_more": (
        "import no_such_package_here\n",
        r"No module named 'no_such_package_here', in .*needs_more\.py, line 1\)\.$",
    ),
    "half_written": ("def f(:\n", r"SyntaxError: .*half_written\.py, line 1\)\)\.$"),
    "raises": ("x = 1\nraise KeyError('a\\x1b[2J')\n", r"KeyError: 'a\\x1b\[2J', in .*raises\.py, line 2\)\.$"),
    "leaves": ("import sys\nsys.exit('no')\n", r"SystemExit: no, in .*leaves\.py, line 2\)\.$"),
}


@pytest.mark.parametrize("module", BROKEN_MODULES)
def test_a_module_that_breaks_on_import_is_one_line_with_the_place(module, tmp_path, monkeypatch):
    source, message = BROKEN_MODULES[module]
    (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RewardError, match=rf"^rewards\.0\.function: cannot import {module}:f \(.*{message}"):
        RewardRunner([RewardPart("f", f"{module}:f")]).start()


# ---------------------------------------------------------------------------------------------------------------------
# What a function is given
# ---------------------------------------------------------------------------------------------------------------------


def test_columns_by_name():
    prompts = [prompt(0, number=10, nested={"k": [100]}, sometimes=None), prompt(1, number=20, nested={"k": [200]})]
    for function in (zoo.sees_columns, lambda **kwargs: zoo.sees_columns(**kwargs)):
        with RewardRunner([RewardPart("f", function)], workers=1) as runner:
            scored = runner.score(prompts, [completion("a", (1, 2)), completion("b", (3,))], step=1, num_steps=1)
        assert rewards(scored) == [113.0, 223.0]


def test_only_named_parameters_without_kwargs():
    assert rewards(score(zoo.strict, ["4", "5"], columns={"answer": ["4", "4"], "unused": [1, 2]})) == [1.0, 0.0]


def test_a_missing_column_is_named():
    with pytest.raises(RewardError, match=r"needs the column 'solution'.*Columns: answer, solutions|did you mean 'solutions'"):
        score(zoo.needs_solution, ["4"], columns={"answer": ["4"], "solutions": ["4"]})


def test_chat_completions_are_message_lists():
    chat = Prompt(index=0, content=[{"role": "user", "content": "q"}], columns={}, token_ids=(1,))
    with RewardRunner([RewardPart("f", zoo.chat_content)]) as runner:
        assert rewards(runner.score([chat, chat], [completion("good"), completion("no")], step=1, num_steps=1)) == [1.0, 0.0]


def test_trl_rewards_work_unchanged():
    pytest.importorskip("trl")
    from trl.rewards import think_format_reward

    chat = Prompt(index=0, content=[{"role": "user", "content": "q"}], columns={"solution": "4"}, token_ids=(1,))
    texts = ["<think>\nhm\n</think>\nfour", "four"]
    with RewardRunner([RewardPart("f", lambda **kwargs: think_format_reward(**kwargs))]) as runner:
        scored = runner.score([chat] * 2, [completion(t) for t in texts], step=1, num_steps=1)
    assert rewards(scored) == [1.0, 0.0]


def test_trainer_state_counts_completed_steps():
    with RewardRunner([RewardPart("f", zoo.progress)]) as runner:
        assert rewards(runner.score([prompt()], [completion("x")], step=1, num_steps=200)) == [0.2]
        assert rewards(runner.score([prompt()], [completion("x")], step=8, num_steps=200)) == [7.2]


@pytest.mark.parametrize("wrap", [False, True])
def test_log_extra_and_log_metric(wrap):
    first = (lambda **kwargs: zoo.logs(**kwargs)) if wrap else zoo.logs
    scored = run_parts([RewardPart("f", first), RewardPart("g", zoo.logs_again)], ["a", "bbb"])
    assert [outcome.extras for outcome in scored.outcomes] == [
        {"length": 1, "g/length": "other"},
        {"length": 3, "g/length": "other"},
    ]
    assert scored.metrics["reward/f/longest"] == 3.0
    assert scored.metrics["reward/f/mean"] == 1.0
    assert scored.metrics["reward/f/mean_logged"] == 5.0
    assert scored.metrics["reward/f/dropped_logs"] == 2


def test_extract_honours_args_and_its_failures_are_only_counted():
    texts = ["4", "bad", "none", "5"]
    for function in (zoo.with_extract, hidden(zoo.with_extract)):
        scored = score(function, texts, args={"suffix": "!"})
        assert [outcome.answer for outcome in scored.outcomes] == ["4!", None, None, "5!"]
        assert rewards(scored) == [1.0] * 4
        assert scored.metrics["reward/failed_extracts"] == 1


def hidden(function):
    """The same function, but one that no worker can import."""

    def wrapper(**kwargs):
        return function(**kwargs)

    if hasattr(function, "extract"):
        wrapper.extract = function.extract
    return wrapper


def test_an_extract_that_hangs_costs_answers_and_not_scores():
    for function in (zoo.hanging_extract, hidden(zoo.hanging_extract)):
        scored = score(function, ["4", "5"], timeout_s=0.5)
        assert rewards(scored) == [1.0, 1.0]
        assert [outcome.answer for outcome in scored.outcomes] == [None, None]
        assert scored.metrics["reward/failed_extracts"] == 2


def test_built_ins_end_to_end():
    texts = ["<think>2+2</think> so \\boxed{4}", "\\boxed{4.0}", "\\boxed{\\frac{1}{2}}", "no idea"]
    scored = score("math_answer", texts, columns={"answer": ["4", 4, "0.5", "4"], "image": [object()] * 4})
    assert rewards(scored) == [1.0, 1.0, 1.0, 0.0]
    assert [outcome.answer for outcome in scored.outcomes] == ["4", "4", "1/2", None]


def test_an_unusable_reference_answer_is_a_fault_of_its_row():
    with RewardRunner([RewardPart("f", "math_answer")]) as runner:
        prompts = [prompt(i, answer="" if i == 3 else "4") for i in range(12)]
        scored = runner.score(prompts, [completion("\\boxed{4}")] * 12, step=1, num_steps=1)
    assert rewards(scored) == [1.0] * 3 + [None] + [1.0] * 8
    assert scored.outcomes[3].faults == ("f:exception",)


# ---------------------------------------------------------------------------------------------------------------------
# Where functions run
# ---------------------------------------------------------------------------------------------------------------------


def test_workers_have_no_torch_and_the_trainer_may():
    import torch  # noqa: F401

    assert rewards(score(zoo.has_torch, ["x"])) == [0.0]
    assert rewards(score("math_answer", ["\\boxed{1}"], columns={"answer": [1]})) == [1.0]


@pytest.mark.parametrize("package", ["cohort", "cohort_verify", "cohort_of_mine"])
def test_only_a_users_function_may_fall_back_to_the_trainer(package, monkeypatch):
    """A module that no worker finds: for one of this distribution that is an error, for a user's it is mentioned."""
    module = ModuleType(f"{package}.only_here")
    exec("def always(completions, **columns):\n    return [1.0] * len(completions)", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    runner = RewardRunner([RewardPart("f", module.always)])
    if package == "cohort_of_mine":
        with runner:
            assert [note.startswith("reward 'f' runs in the trainer") for note in runner.notes] == [True]
    else:
        with pytest.raises(RewardError, match=r"rewards\.0\.function: cannot import"):
            runner.start()


def test_importable_functions_run_in_workers_and_others_here():
    here = float(os.getpid())
    assert rewards(score(zoo.in_process_id, ["x"])) != [here]
    assert rewards(score("test_rewards_zoo:Holder.static", ["x"])) != [here]
    assert rewards(score(zoo.Holder.static, ["x"])) != [here]
    assert rewards(score(zoo.Holder().method, ["x"])) == [here]
    assert rewards(score(hidden(zoo.in_process_id), ["x"])) == [here]
    assert importable_name(zoo.good) == "test_rewards_zoo:good"
    assert importable_name(lambda: 0) is None


def test_a_module_of_the_users_folder_is_found(tmp_path, monkeypatch):
    (tmp_path / "my_own_rewards.py").write_text("def half(completions):\n    return [0.5] * len(completions)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert rewards(score("my_own_rewards:half", ["x"])) == [0.5]


INSTALLED = """
import sys
from cohort.recipe.schema import RewardConfig, PromptsConfig
from cohort.errors import CohortError
from cohort.rewards.runner import RewardRunner
from cohort.data.rows import load_rows
from cohort.types import Completion, Prompt
import test_rewards_zoo

assert "" not in sys.path
try:
    with RewardRunner.from_recipe([RewardConfig(function=sys.argv[1])]) as runner:
        scored = runner.score([Prompt(0, "q", {}, (1,))], [Completion((1,), (0.0,), "stop", "x")], step=1, num_steps=1)
        print(scored.outcomes[0].reward)
    print(load_rows(PromptsConfig(source="my_folder_rewards:rows"), 0))
except CohortError as problem:
    print(problem)
"""


def run_installed(folder: Path, function: str) -> str:
    """Output of a program that, as an installed command, does not have the current folder on its path (-P)."""
    (folder / "my_folder_rewards.py").write_text(
        "def half(completions):\n    return [0.5] * len(completions)\ndef rows():\n    return [{'prompt': 'a'}]\n"
    )
    (folder / "test_rewards_zoo.py").write_text("def good(completions):\n    return [-1.0] * len(completions)\n")
    environment = {**os.environ, "PYTHONPATH": str(Path(zoo.__file__).parent)}
    command = [sys.executable, "-P", "-c", INSTALLED, function]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder, env=environment).stdout


def test_an_installed_command_finds_modules_of_the_current_folder_last(tmp_path):
    assert run_installed(tmp_path, "my_folder_rewards:half").splitlines() == ["0.5", "[{'prompt': 'a'}]"]
    assert run_installed(tmp_path, "test_rewards_zoo:good").splitlines()[0] == "1.0"  # not hidden by the file of that name
    said = run_installed(tmp_path, "my_floder_rewards:half")
    assert said.startswith("rewards.0.function: cannot import my_floder_rewards:half (ModuleNotFoundError: No module named")
    assert f"and the current folder, {tmp_path}." in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("value", [object(), {1: "integer key"}, (1, 2), np.float64(1.0), b"bytes"])
def test_columns_that_json_cannot_carry_are_scored_here_and_noted(value):
    with RewardRunner([RewardPart("f", zoo.in_process_id)]) as runner:
        scored = runner.score([prompt(thing=value)], [completion("x")], step=1, num_steps=1)
        assert rewards(scored) == [float(os.getpid())]
        assert len(runner.notes) == 1
        assert "thing" in runner.notes[0]


def test_only_functions_that_say_so_are_split():
    assert rewards(score(zoo.batch_size, ["x"] * 6, workers=2)) == [6.0] * 6
    assert rewards(score(zoo.batch_size_split, ["x"] * 6, workers=2)) == [3.0] * 6
    assert rewards(score(zoo.batch_size_split, ["x"])) == [1.0]


def test_printing_does_not_reach_the_protocol(capfd):
    assert rewards(score(zoo.noisy, ["x"] * 3)) == [1.0] * 3
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("print to stdout") == err.count("straight to descriptor 1") == 100
    assert "a child prints" in err


@pytest.mark.parametrize("here", [False, True])
def test_async_functions_run_concurrently(here, tmp_path):
    """Each goes on once all three have begun: one after the other, the first would wait in vain."""
    functions = [zoo.meets, zoo.meets_too, zoo.meets_as_well]
    if here:
        functions = [async_here(function) for function in functions]
    parts = [RewardPart(f"part{i}", function, timeout_s=60.0) for i, function in enumerate(functions)]
    with RewardRunner(parts) as runner:
        scored = runner.score([prompt(place=str(tmp_path))] * 2, [completion("x")] * 2, step=1, num_steps=2)
    assert rewards(scored) == [6.0, 6.0]


def async_here(function):
    async def wrapper(**kwargs):
        return await function(**kwargs)

    return wrapper


def test_async_faults_and_one_loop_for_all_calls():
    loops = set()

    async def remembers_loop(completions, **kwargs):
        loops.add(id(asyncio.get_running_loop()))
        if "bad" in completions:
            raise ValueError("bad")
        return [1.0] * len(completions)

    assert rewards(score(remembers_loop, ONE_BAD)) == WITHOUT_BAD
    assert len(loops) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Hanging, crashing
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [zoo.hang_on_hang, zoo.big_integer_on_hang])
def test_a_completion_that_hangs_scores_zero_and_the_others_keep_their_scores(function):
    with RewardRunner([RewardPart("f", function, timeout_s=1.0, threshold=0.0)]) as runner:
        before = [place.worker.pid for place in runner._pool._places if place.worker]
        texts = ["x"] * 5 + ["hang"] + ["x"] * 6
        scored = runner.score([prompt()] * 12, [completion(t) for t in texts], step=1, num_steps=1)
        assert rewards(scored) == [1.0] * 5 + [0.0] + [1.0] * 6
        assert scored.outcomes[5].faults == ("f:timeout",)
        assert scored.outcomes[5].success is False  # even at threshold 0
        assert scored.metrics["reward/timeouts"] == scored.metrics["reward/f/timeouts"] == 1
        assert scored.metrics["reward/faults"] == scored.metrics["reward/unscored"] == 0
        assert scored.metrics["reward/f/retried"] == 12
        assert len([place.worker.pid for place in runner._pool._places if place.worker]) == 2
        replaced = set(before) - {place.worker.pid for place in runner._pool._places if place.worker}
        assert replaced
        assert all(is_gone(pid) for pid in replaced)
        again = runner.score([prompt()] * 2, [completion("x")] * 2, step=2, num_steps=2)
        assert rewards(again) == [1.0, 1.0]


def test_catastrophic_pattern_is_killed():
    scored = score("regex_format", ["a" * 40 + "!", "aaa"], args={"pattern": "(a|a)*"}, timeout_s=1.0)
    assert rewards(scored) == [0.0, 1.0]
    assert scored.outcomes[0].faults == ("f:timeout",)


def test_children_of_a_killed_worker_go_too(tmp_path):
    pid_file = tmp_path / "pids"
    score(zoo.hang_with_child, ["x", "hang"], columns={"pid_file": [str(pid_file)] * 2}, timeout_s=2.0)
    pids = [int(line) for line in pid_file.read_text().split()]
    assert len(pids) == 2  # the call for both, and the call for one
    assert all(is_gone(pid) for pid in pids)


def test_a_function_that_always_hangs_stops_the_run():
    with pytest.raises(RewardError, match="reward 'f' hangs: 8 completions"):
        score(zoo.always_hangs, ["x"] * 100, timeout_s=0.2, workers=2)


def test_always_hanging_is_found_over_several_small_steps():
    with RewardRunner([RewardPart("f", zoo.always_hangs, timeout_s=0.2)], workers=4) as runner:
        scored = runner.score([prompt()] * 4, [completion("x")] * 4, step=1, num_steps=2)
        assert rewards(scored) == [0.0] * 4
        with pytest.raises(RewardError, match="hangs"):
            runner.score([prompt()] * 4, [completion("x")] * 4, step=2, num_steps=2)


def test_a_worker_that_dies_is_replaced_and_its_completion_unscored():
    texts = ["x"] * 5 + ["die"] + ["x"] * 6
    scored = score(zoo.die_on_die, texts, workers=2)
    assert rewards(scored) == [1.0] * 5 + [None] + [1.0] * 6
    assert scored.outcomes[5].faults == ("f:crash",)
    assert scored.metrics["reward/faults"] == 1


def test_a_function_that_always_crashes_stops_the_run_soon():
    with pytest.raises(RewardError, match=r"failed on at least (\d+) of 60 completions \(crash \1\)(.|\n)*SIGSEGV") as caught:
        score(zoo.always_dies, ["x"] * 60, workers=2)
    # Seven are more than a tenth; the other worker may have one more in hand. Each costs a new process.
    assert re.search(r"at least [78] of", str(caught.value))


def test_overrun_in_the_trainer_explains():
    with pytest.raises(RewardError, match=r"thread of the trainer(.|\n)*top level of its own module"):
        score(hidden(zoo.always_hangs), ["x"], timeout_s=0.2)


def test_a_malformed_reply_is_never_a_score():
    entry = {"value": 1.0, "steps": None, "fault": None, "detail": "", "verdict": "", "extras": {}}
    good = {"entries": [entry], "metrics": {}, "dropped": 0}
    assert from_message(good, [5]) is not None
    for change in (
        {"value": float("nan")},
        {"value": "1"},
        {"value": True},
        {"steps": []},
        {"fault": "made up"},
        {"fault": "nan"},  # and a value
        {"fault": "timeout"},
        {"verdict": "Two Words"},
        {"verdict": None},
        {"extras": []},
        {"more": 1},
    ):
        assert from_message({**good, "entries": [entry | change]}, [5]) is None
    for change in (
        {"entries": [entry, entry]},
        {"entries": []},
        {"entries": None},
        {"entries": [float("nan")]},
        {"entries": [1e19]},
        {"entries": [True]},
        {"entries": [1]},
        {"entries": ["1"]},
        {"entries": [[1.0]]},
        {"metrics": {"a": float("inf")}},
        {"metrics": None},
        {"dropped": None},
    ):
        assert from_message({**good, **change}, [5]) is None
    assert from_message([1.0], [5]) is None
    assert from_message({"kind": "made up", "detail": ""}, [5]) is None


def test_an_entry_survives_the_message_of_a_worker():
    entries = [
        RewardEntry(0.25),
        RewardEntry(-0.0),
        RewardEntry(),
        RewardEntry(0.5, ((1, 1.0), (5, 0.0))),
        RewardEntry(fault="nan", detail="why"),
        RewardEntry(1.0, verdict="right"),
        RewardEntry(1.0, extras={"lenient": 0.0}),
    ]
    message = to_message(Answered(entries, {"a": [1.0]}, 2))
    assert [repr(one) for one in message["entries"][:3]] == ["0.25", "-0.0", "None"]
    assert all(isinstance(one, dict) for one in message["entries"][3:])
    found = from_message(json.loads(json.dumps(message)), [5] * len(entries))
    assert found == Answered(entries, {"a": [1.0]}, 2)
    assert str(found.entries[1].value) == "-0.0"


def test_progress_is_reported_at_intervals_and_always_at_the_end(monkeypatch):
    now, told = [0.0], []
    monkeypatch.setattr(retry_one_by_one.time, "monotonic", lambda: now[0])
    judged = retry_one_by_one.Progress("f", 6, lambda part, done, total: told.append((part, done, total)))
    for _ in range(3):
        judged.count_one()
    now[0] = 0.2
    for _ in range(3):
        judged.count_one()
    judged.count_call(6)
    assert told == [("f", 1, 6), ("f", 4, 6), ("f", 6, 6), ("f", 6, 6)]


def test_closing_ends_the_workers_and_a_closed_runner_refuses():
    runner = RewardRunner([RewardPart("f", zoo.good)]).start()
    pids = [place.worker.pid for place in runner._pool._places if place.worker]
    assert len(pids) == 2
    runner.close()
    runner.close()
    assert all(is_gone(pid) for pid in pids)
    with pytest.raises(RewardError, match="closed"):
        runner.score([prompt()], [completion("x")], step=1, num_steps=1)


def test_what_closing_ends_in_the_middle_of_a_call_is_no_fault_of_the_function(monkeypatch):
    """As when a run is interrupted while a thread of it scores what is sampled ahead."""
    runner, asked, ended = RewardRunner([RewardPart("f", zoo.hang_on_hang)]).start(), threading.Event(), queue.SimpleQueue()
    ask = Worker.call_reward
    monkeypatch.setattr(Worker, "call_reward", lambda *args: (asked.set(), ask(*args))[1])
    start_thread(lambda: runner.score([prompt()], [completion("hang")], step=1, num_steps=1), ended)
    assert asked.wait(20)
    runner.close()
    _, _, problem = ended.get(timeout=20)
    assert isinstance(problem, RewardError)
    assert runner.notes == []


PARENT = """
import sys, threading, time
from cohort.rewards.runner import RewardRunner
from cohort.rewards.contract import RewardPart
from cohort.types import Completion, Prompt
runner = RewardRunner([RewardPart("f", "test_rewards_zoo:" + sys.argv[1], timeout_s=60)]).start()
texts = ["hang"] if sys.argv[1] != "good" else ["x"]
score = lambda: runner.score([Prompt(0, "q", {}, (1,))], [Completion((1,), (0.0,), "stop", t) for t in texts], step=1, num_steps=1)
threading.Thread(target=score, daemon=True).start()
time.sleep(0.5)
print(*[place.worker.pid for place in runner._pool._places if place.worker], flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("function", ["good", "big_integer_on_hang"])
def test_no_worker_outlives_a_killed_parent(function):
    environment = {**os.environ, "PYTHONPATH": str(Path(zoo.__file__).parent)}
    parent = subprocess.Popen([sys.executable, "-c", PARENT, function], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert not any(is_gone(pid, within_s=0.1) for pid in pids)
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
    assert all(is_gone(pid) for pid in pids)


def test_an_interrupted_step_leaves_no_process():
    """SIGTERM becomes an exception in the main thread while a worker is busy: closing must end that worker too."""

    def interrupt(*_):
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    runner = RewardRunner([RewardPart("f", zoo.always_hangs), RewardPart("g", zoo.good)]).start()
    pids = [place.worker.pid for place in runner._pool._places if place.worker]
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        with pytest.raises(KeyboardInterrupt), contextlib.closing(runner):
            runner.score([prompt()], [completion("x")], step=1, num_steps=1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert all(is_gone(pid) for pid in pids)


def test_lists_of_different_length_are_refused_and_no_completions_is_fine():
    with RewardRunner([RewardPart("f", zoo.good)]) as runner:
        with pytest.raises(ValueError, match="2 prompts for 1 completions"):
            runner.score([prompt()] * 2, [completion("x")], step=1, num_steps=1)
        assert runner.score([], [], step=1, num_steps=1) == Scored([], {})


def test_split_and_spread():
    assert split_evenly(7, 3) == [[0, 1], [2, 3], [4, 5, 6]]
    assert split_evenly(2, 5) == [[0], [1]]
    assert sorted(spread_rows(list(range(100)))) == list(range(100))
    assert spread_rows(list(range(12)))[:6] == [0, 2, 4, 6, 8, 10]
    assert spread_rows(list(range(64)))[:8] == [0, 8, 16, 24, 32, 40, 48, 56]  # one of each group of eight


def test_a_slow_part_never_blocks_the_others(tmp_path, monkeypatch):
    """Two parts that hold every worker they may have, until a third is done with all completions."""
    (tmp_path / "slow_parts.py").write_text(
        "import pathlib, time\n"
        "done = pathlib.Path(__file__).with_name('done')\n"
        "def slow(completions, **kwargs):\n"
        "    deadline = time.monotonic() + 60\n"
        "    while not done.exists() and time.monotonic() < deadline: time.sleep(0.01)\n"
        "    return [float(done.exists())] * len(completions)\n"
        "slow.per_completion = True\n"
        "def also_slow(completions, **kwargs):\n    return slow(completions)\n"
        "also_slow.per_completion = True\n"
        "def fast(completions, **kwargs):\n    return [1.0] * len(completions)\n"
        "fast.per_completion = True\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    parts = [RewardPart(name, f"slow_parts:{name}", timeout_s=100.0) for name in ("slow", "also_slow", "fast")]
    ended: list[str] = []

    def on_progress(part, judged, total):
        if judged == total:
            ended.append(part)
            if part == "fast":
                (tmp_path / "done").touch()

    with RewardRunner(parts, workers=2) as runner:
        runner.on_progress = on_progress
        scored = runner.score([prompt(i) for i in range(8)], [completion("a")] * 8, step=1, num_steps=1)
    assert [outcome.reward for outcome in scored.outcomes] == [3.0] * 8
    assert ended[0] == "fast"
    assert scored.metrics["reward/slow/seconds"] > scored.metrics["reward/fast/seconds"]


def words(completions, log_verdict=None, **columns):
    """One verdict per completion: the completion itself; "broken" means that the machinery failed."""
    for row, text in enumerate(completions):
        log_verdict(row, "infrastructure" if text == "broken" else text, "the jail fell over")
    return [1.0] * len(completions)


def test_a_verdict_in_a_word_is_counted_and_a_limit_scores_nothing():
    scored = score(words, ["right", "right", "timeout", "memory", "crash", *["right"] * 6, "broken"])
    assert rewards(scored) == [1.0, 1.0, 0.0, 0.0, 1.0, *[1.0] * 6, None]
    assert [o.faults for o in scored.outcomes][2:5] == [("f:timeout",), ("f:memory",), ()]
    assert scored.outcomes[-1].faults == ("f:infrastructure",)
    assert [o.success for o in scored.outcomes][1:5] == [True, False, False, True]
    counts = {name.rpartition("/")[2]: value for name, value in scored.metrics.items() if "/verdict/" in name}
    assert counts == {"right": 8, "timeout": 1, "memory": 1, "crash": 1, "infrastructure": 1}
    assert scored.metrics["reward/faults"] == scored.metrics["reward/unscored"] == 1
    assert scored.outcomes[2].extras["f/verdict"] == "timeout"


def test_machinery_that_fails_too_often_stops_the_run_with_its_reason():
    with pytest.raises(RewardError, match=r"infrastructure 2(.|\n)*the jail fell over"):
        score(words, ["broken", "broken", "right"])


def odd_words(completions, log_verdict=None, **columns):
    log_verdict(0, "two words")
    log_verdict("a", "right")
    log_verdict(99, "right")
    log_verdict(None, None)
    return [1.0] * len(completions)


def test_a_verdict_that_makes_no_sense_is_dropped_and_counted():
    scored = score(odd_words, ["x"])
    assert rewards(scored) == [1.0]
    assert scored.metrics["reward/f/dropped_logs"] == 4
    assert not [name for name in scored.metrics if "/verdict/" in name]


def supervised(completions, wall_s=1.0, log_extra=None, **columns):
    log_extra("where", [f"{os.getpid()} {wall_s}"] * len(completions))
    time.sleep(0.3)
    return [1.0] * len(completions)


def test_a_supervised_function_runs_here_and_receives_its_limit():
    supervised.supervised = True
    scored = score(supervised, ["a", "b"], timeout_s=0.1)
    assert rewards(scored) == [1.0, 1.0]
    assert scored.outcomes[0].extras["where"] == f"{os.getpid()} 0.1"
    with pytest.raises(RewardError, match=r"rewards.0.args.wall_s: set rewards.0.timeout_s"):
        score(supervised, ["a"], args={"wall_s": 3.0})


def boundless(completions, **columns):
    return [1.0] * len(completions)


def test_a_supervised_function_must_take_its_limit():
    boundless.supervised = True
    with pytest.raises(RewardError, match=r"rewards.0.function: 'f' is supervised but has no argument 'wall_s'"):
        score(boundless, ["a"])


SIGNALLED = """
import os, signal, threading, time
from cohort.errors import Interrupted
from cohort.base.interrupts import handle_interrupts
from cohort.rewards.runner import RewardRunner
from cohort.rewards.contract import RewardPart
from cohort.types import Completion, Prompt

def waits(completions, wall_s=10.0, **columns):
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    time.sleep(600)
waits.supervised = True

with RewardRunner([RewardPart("waits", waits)]) as runner, handle_interrupts():
    try:
        runner.score([Prompt(0, "p", {}, (1,))], [Completion((1,), (), "stop", "x")], step=1, num_steps=1)
    except Interrupted:
        print("stopped")
"""


def test_a_signal_ends_the_wait_for_a_supervised_reward():
    """One part alone: the signal must reach the run, and not pass for a fault of the function."""
    ended = subprocess.run([sys.executable, "-c", SIGNALLED], capture_output=True, text=True, timeout=300, check=False)
    assert ended.stdout.strip() == "stopped", ended.stderr


def about_the_run(completions, wall_s=10.0, **columns):
    raise RewardError("model: there is no folder of that name")


def test_a_supervised_function_can_say_that_the_run_cannot_go_on():
    about_the_run.supervised = True
    with pytest.raises(RewardError, match=r"^model: there is no folder of that name$"):
        score(about_the_run, ["a"] * 50)


def graded(completions, answer, **columns):
    return [1.0] * len(completions)


graded.unusable = lambda answer, strict=False: [None if a == "ok" else f"{a!r} is no answer" for a in answer]


def test_rows_that_can_never_be_scored_are_named_before_the_run():
    prompts = [prompt(answer=answer) for answer in ("ok", "", "ok", "?")]
    with RewardRunner([RewardPart("f", graded), RewardPart("g", words)]) as runner:
        assert runner.find_unusable(prompts) == {"f": [(1, "'' is no answer"), (3, "'?' is no answer")]}
        assert runner.find_unusable([]) == {}
    for bad, message in (
        (lambda answer: [None], "returned 1 entries for 4 rows"),
        (lambda answer: 1 / 0, "failed: ZeroDivisionError"),
    ):

        def judged(completions, answer, **columns):
            return [1.0] * len(completions)

        judged.unusable = bad
        with RewardRunner([RewardPart("f", judged)]) as runner, pytest.raises(RewardError, match=message):
            runner.find_unusable(prompts)


def test_a_failed_batch_call_is_reported_once_with_its_reason():
    with RewardRunner([RewardPart("f", zoo.raise_on_bad)], workers=1, max_fault_share=1.0) as runner:
        for step in (1, 2):
            runner.score([prompt(0), prompt(1)], [completion("bad"), completion("fine")], step=step, num_steps=2)
        assert runner.notes == [
            "reward 'f': a batch call failed; retrying one completion at a time (ValueError: cannot read 'bad')."
        ]
