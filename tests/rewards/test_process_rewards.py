"""Process supervision: step rewards in the contract, steps in text, and the demo task's step checker."""

from __future__ import annotations

import ast
import doctest
import random
import re
from pathlib import Path

import pytest
import test_rewards_zoo as zoo
from hypothesis import given, settings
from hypothesis import strategies as st

import cohort
import cohort.rewards.steps
from cohort.data.column_addition import check_steps, demonstrate
from cohort.errors import RewardError
from cohort.rewards.call import from_message, read_entry
from cohort.rewards.contract import RewardPart, Scored
from cohort.rewards.runner import RewardRunner
from cohort.rewards.steps import Step, split_steps
from cohort.types import Completion, Prompt


def run_parts(parts: list[RewardPart], texts: list[str], chat: bool = False, **runner_args) -> Scored:
    content = [{"role": "user", "content": "q"}] if chat else "q"
    prompts = [Prompt(index, content, {}, (1,)) for index in range(len(texts))]
    completions = [Completion((1, 2), (0.0, 0.0), "stop", text) for text in texts]
    with RewardRunner(parts, **runner_args) as runner:
        return runner.score(prompts, completions, step=1, num_steps=10)


def told(expression: str, length: int = 42) -> str:
    """A completion of so many characters for which zoo.steps_as_told returns the expression."""
    assert len(expression) <= length
    return expression.ljust(length)


async def _later(completions, **kwargs):
    return zoo.steps_as_told(completions)


EVERYWHERE = {
    "worker": zoo.steps_as_told,
    "async worker": zoo.steps_as_told_later,
    "trainer": lambda **kwargs: zoo.steps_as_told(**kwargs),
    "async trainer": (lambda function: lambda **kwargs: function(**kwargs))(_later),
}

# ---------------------------------------------------------------------------------------------------------------------
# What a process reward returns
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", EVERYWHERE)
def test_step_rewards_mean_the_same_wherever_the_function_runs(where):
    texts = [
        told("[(3, 1.0), (42, 0.0)]"),
        told("[[1, 1], [2, True], [41, 0.25]]"),
        told("((np.int64(7), np.float32(0.5)), (np.array(9), np.array(-1.5)))", 70),
        told("np.array([[3, 1], [5, 0], [8, 2]])"),
        told("0.75"),
        told("None"),
        told("[]"),
    ]
    scored = run_parts([RewardPart("f", EVERYWHERE[where], weight=2.0)], texts)
    assert [outcome.steps for outcome in scored.outcomes] == [
        ((3, 2.0), (42, 0.0)),
        ((1, 2.0), (2, 2.0), (41, 0.5)),
        ((7, 1.0), (9, -3.0)),
        ((3, 2.0), (5, 0.0), (8, 4.0)),
        (),  # one number, and no part with steps
        (),
        ((42, 0.0),),  # no step was found: one step worth 0, at the end
    ]
    assert [outcome.parts["f"] for outcome in scored.outcomes] == [0.5, 0.75, -0.5, 1.0, 0.75, None, 0.0]
    assert [outcome.reward for outcome in scored.outcomes] == [1.0, 1.5, -1.0, 2.0, 1.5, None, 0.0]
    assert [outcome.success for outcome in scored.outcomes] == [True, True, False, True, True, None, False]
    for outcome in scored.outcomes:
        assert all(type(position) is int and type(reward) is float for position, reward in outcome.steps)
    assert scored.metrics["reward/f/steps"] == (2 + 3 + 2 + 3 + 1) / 5  # of the completions with a list
    assert scored.metrics["reward/f/mean"] == pytest.approx((0.5 + 0.75 - 0.5 + 1.0 + 0.75 + 0.0) / 6, abs=1e-15)
    assert scored.metrics["reward/f/none"] == 1
    assert scored.metrics["reward/faults"] == 0


def test_only_parts_that_gave_steps_have_their_number():
    assert "reward/f/steps" not in run_parts([RewardPart("f", zoo.good)], ["x"]).metrics


FAULTS = [
    ("[(57, 1.0)]", "position", "it gave a step reward at position 57, but the completion has 42 characters; a position is"),
    ("[(43, 1.0)]", "position", "at position 43, but the completion has 42 characters; .*, from 1 to 42"),
    ("[(0, 1.0)]", "position", "at position 0, but the completion has 42 characters; .*, from 1 to 42"),
    ("[(3, 1.0), (-1, 1.0)]", "position", "at position -1 after one at position 3, but the completion has 42 characters"),
    ("[(5, 1.0), (5, 0.0)]", "position", "position 5 after one at position 5, .*42 characters; .* give the steps in the order"),
    ("[(5, 1.0), (4, 0.0)]", "position", "position 4 after one at position 5"),
    ("[(3.0, 1.0)]", "position", r"position 3\.0 \(float\), but the completion has 42 characters; a position is an integer"),
    ("[(True, 1.0)]", "position", r"position True \(bool\)"),
    ("[(np.bool_(True), 1.0)]", "position", r"position (np\.)?True_? \(bool"),
    ("[('3', 1.0)]", "position", r"position '3' \(str\)"),
    ("[(None, 1.0)]", "position", r"position None \(NoneType\)"),
    ("[(10**9999, 1.0)]", "position", r"position \(it cannot be shown\), but the completion has 42 characters"),
    (
        "[(3, nan)]",
        "nan",
        "the reward float nan to the step at position 3 of a completion with 42 characters; .* finite number",
    ),
    ("[(3, -1e999)]", "nan", "the reward float -inf to the step at position 3"),
    ("[(3, 1.0), (4, 10**400)]", "nan", "to the step at position 4"),
    ("[(3, None)]", "type", "the reward NoneType None to the step at position 3"),
    ("[(3, '1')]", "type", "the reward str '1' to the step at position 3"),
    ("[1.0]", "type", r"it returned list \[1\.0\] for a completion of 42 characters; return a finite float or None, or a list"),
    ("(3, 1.0)", "type", r"it returned tuple \(3, 1\.0\) for a completion"),
    ("[(3, 1.0, 2)]", "type", r"it returned list \[\(3, 1\.0, 2\)\] for a completion"),
    ("[(3,)]", "type", "list of .position, reward. pairs"),
    ("['31']", "type", "list of .position, reward. pairs"),
    ("{3: 1.0}", "type", "it returned dict"),
    ("iter([(3, 1.0)])", "type", "it returned list_iterator"),
]


def test_every_fault_is_of_its_completion_counted_and_unscored():
    texts = [told(expression) for expression, _, _ in FAULTS] + [told("[(42, 1.0)]")]
    for function in (EVERYWHERE["worker"], EVERYWHERE["trainer"]):
        scored = run_parts([RewardPart("f", function)], texts, max_fault_share=1.0)
        assert [outcome.faults for outcome in scored.outcomes] == [(f"f:{kind}",) for _, kind, _ in FAULTS] + [()]
        assert [outcome.reward for outcome in scored.outcomes] == [None] * len(FAULTS) + [1.0]
        assert [outcome.steps for outcome in scored.outcomes] == [()] * len(FAULTS) + [((42, 1.0),)]
        assert scored.metrics["reward/faults"] == scored.metrics["reward/unscored"] == len(FAULTS)
        assert scored.metrics["reward/f/retried"] == 0
        assert scored.metrics["reward/f/steps"] == 1.0


@pytest.mark.parametrize(("expression", "kind", "said"), FAULTS)
def test_every_fault_has_a_message(expression, kind, said):
    with pytest.raises(RewardError, match=rf"reward 'f' failed on 1 of 1 completions \({kind} 1\)(.|\n)*{said}"):
        run_parts([RewardPart("f", EVERYWHERE["trainer"])], [told(expression)])


def test_a_fault_in_a_worker_has_the_same_message():
    with pytest.raises(RewardError, match="at position 57, but the completion has 42 characters;"):
        run_parts([RewardPart("f", zoo.steps_as_told)], [told("[(57, 1.0)]")])


def test_a_list_of_the_wrong_kind_is_answered_with_both_forms():
    with pytest.raises(
        RewardError, match=r"one float or None per completion \(or, for its steps, a list of \(position, reward"
    ):
        run_parts([RewardPart("f", lambda completions, **_: 1.0)], ["x"])


def test_the_end_of_an_empty_completion_is_position_0():
    found = []
    for given_steps in ([], [(0, 0.5)], [(1, 0.5)]):
        part = RewardPart("f", lambda completions, s=given_steps, **_: [s] * len(completions))
        found.append(run_parts([part], [""], max_fault_share=1.0).outcomes[0])
    assert [outcome.steps for outcome in found] == [((0, 0.0),), ((0, 0.5),), ()]
    assert [outcome.reward for outcome in found] == [0.0, 0.5, None]
    assert found[2].faults == ("f:position",)


@pytest.mark.parametrize("wrap", [False, True])
def test_positions_count_in_the_text_of_a_chat_completion(wrap):
    function = (lambda **kwargs: zoo.chat_steps(**kwargs)) if wrap else zoo.chat_steps
    scored = run_parts([RewardPart("f", function)], ["né 😀", "abc"], chat=True)
    assert [outcome.steps for outcome in scored.outcomes] == [((1, 0.0), (4, 1.0)), ((1, 0.0), (3, 1.0))]


def reply(**changes):
    good = {"value": 0.5, "steps": [[2, 1.0], [5, 0.0]], "fault": None, "detail": "", "verdict": "", "extras": {}}
    return {"entries": [good | changes], "metrics": {}, "dropped": 0}


def test_what_a_worker_sends_is_checked_again():
    answer = from_message(reply(value=99.0), [5])
    assert answer is not None
    assert answer.entries[0].steps == ((2, 1.0), (5, 0.0))
    assert answer.entries[0].value == 0.5  # the mean is taken here and not believed
    for steps in (
        [[2, 1.0], [6, 0.0]],  # beyond the text
        [[0, 1.0]],
        [[2, 1.0], [2, 0.0]],
        [[2.0, 1.0]],
        [[True, 1.0]],
        [[2, float("nan")]],
        [[2, None]],
        [[2]],
        [2, 1.0],
        [],  # a worker has already made a step of it
        "ab",
        {},
    ):
        assert from_message(reply(steps=steps), [5]) is None, steps
    assert from_message(reply(fault="position"), [5]) is None  # a fault and steps at once
    assert from_message(reply(steps=None, fault="position"), [5]) is None  # and a value
    assert from_message(reply(steps=None, value=None, fault="position"), [5]) is not None
    assert from_message(reply(steps=[[0, 0.0]]), [0]) is not None


def test_finite_steps_have_a_finite_mean_and_equal_steps_their_own_value():
    assert read_entry([(1, 1e18), (2, 1e18)], 5).value == 1e18
    assert read_entry([(1, 1.0), (2, 1e19)], 5).fault == "nan"
    for count in range(1, 200):
        assert read_entry([(place, 1.0) for place in range(1, count + 1)], count).value == 1.0


# ---------------------------------------------------------------------------------------------------------------------
# Several parts
# ---------------------------------------------------------------------------------------------------------------------


def fixed(entry):
    return lambda completions, **_: [entry] * len(completions)


def test_steps_of_all_parts_are_merged_by_position_with_their_weights():
    parts = [
        RewardPart("whole", fixed(0.5), weight=10.0),
        RewardPart("lines", fixed([(2, 1.0), (6, 0.0), (8, 1.0)]), weight=3.0),
        RewardPart("words", fixed([(1, -1.0), (6, 2.0)]), weight=0.5, outcome=True, threshold=0.4),
        RewardPart("silent", fixed(None), weight=7.0),
    ]
    outcome = run_parts(parts, ["12345678"]).outcomes[0]
    # By hand: the scalar part is a step at the end, equal positions in the order of the recipe, the silent part nothing.
    assert outcome.steps == ((1, -0.5), (2, 3.0), (6, 0.0), (6, 1.0), (8, 5.0), (8, 3.0))
    assert outcome.reward == pytest.approx(10 * 0.5 + 3 * (2 / 3) + 0.5 * 0.5, abs=1e-12)
    assert outcome.parts == {"whole": 0.5, "lines": pytest.approx(2 / 3), "words": 0.5, "silent": None}
    assert outcome.success is True


def test_numbers_alone_make_no_steps_and_abstaining_process_parts_neither():
    assert run_parts([RewardPart("a", fixed(1.0)), RewardPart("b", fixed(None))], ["x"]).outcomes[0].steps == ()


def test_a_fault_of_another_part_takes_the_steps_along():
    parts = [RewardPart("a", fixed([(1, 1.0)])), RewardPart("b", fixed(float("nan")))]
    outcome = run_parts(parts, ["x"], max_fault_share=1.0).outcomes[0]
    assert (outcome.reward, outcome.steps, outcome.faults) == (None, (), ("b:nan",))


def test_a_weighted_step_that_overflows_is_not_a_reward():
    parts = [RewardPart("a", fixed([(1, 1e18), (2, -1e18)]), weight=10.0)]  # the mean, 0, is harmless
    outcome = run_parts(parts, ["xy"], max_fault_share=1.0).outcomes[0]
    assert (outcome.reward, outcome.steps, outcome.faults) == (None, (), ("sum:nan",))
    with pytest.raises(RewardError, match=r"or one of its weighted steps, is not a number of at most 1e\+18"):
        run_parts(parts, ["xy"])


def test_a_completion_in_the_time_limit_is_worth_0_at_its_end_beside_the_steps_of_another_part():
    parts = [RewardPart("slow", zoo.hang_or_steps, timeout_s=0.5), RewardPart("lines", fixed([(2, 1.0)]), weight=2.0)]
    scored = run_parts(parts, ["fine", "hang"])
    assert [outcome.steps for outcome in scored.outcomes] == [((2, 2.0), (4, 1.0)), ((2, 2.0), (4, 0.0))]
    assert scored.outcomes[1].faults == ("slow:timeout",)
    assert scored.outcomes[1].reward == 2.0


# ---------------------------------------------------------------------------------------------------------------------
# Steps in a text
# ---------------------------------------------------------------------------------------------------------------------


def spans(text: str, **options) -> list[str]:
    ends = [step.end for step in split_steps(text, **options)]
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def test_steps_by_hand():
    assert split_steps("") == []
    assert split_steps("a") == [Step("a", 1)]
    assert split_steps("a\nb") == [Step("a", 2), Step("b", 3)]
    assert split_steps("a\nb\n") == [Step("a", 2), Step("b", 4)]
    assert split_steps("a\n\n \nb\n\n") == [Step("a", 5), Step("b", 8)]  # blank lines belong to the step before
    assert split_steps("\n\n a\nb") == [Step(" a", 5), Step("b", 6)]  # at the start, to the step after
    assert split_steps("\n \n") == [Step("", 3)]  # a text that is not empty has a step
    assert split_steps("a\n\nb\n", keep_empty=True) == [Step("a", 2), Step("", 3), Step("b", 5)]
    assert split_steps("\na", keep_empty=True) == [Step("", 1), Step("a", 2)]
    assert split_steps("a. b. c", ". ") == [Step("a", 3), Step("b", 6), Step("c", 7)]
    assert split_steps("a.b", ".") == [Step("a", 2), Step("b", 3)]  # a separator is no pattern


def test_steps_by_pattern():
    assert split_steps("one\n\n\ntwo\nstill two", pattern=r"\n\s*\n") == [Step("one", 6), Step("two\nstill two", 19)]
    headed = "Step 1: a Step 2: b Step 10: c"
    assert spans(headed, pattern=r"(?=Step \d+:)") == ["Step 1: a ", "Step 2: b ", "Step 10: c"]
    assert spans("So. " + headed, pattern=r"(?=Step \d+:)")[0] == "So. "
    for everywhere in (r"\n*", r"$", r"", r"(?=.)", r"\b"):
        assert "".join(spans("ab\n\ncd", pattern=everywhere)) == "ab\n\ncd"


def test_contradictory_or_empty_separators_are_refused():
    with pytest.raises(ValueError, match="separator or pattern, not both"):
        split_steps("a", ".", pattern="x")
    with pytest.raises(ValueError, match="separator is empty"):
        split_steps("a", "")


def test_the_examples_of_split_steps():
    assert doctest.testmod(cohort.rewards.steps) == doctest.TestResults(failed=0, attempted=2)


@settings(max_examples=300, deadline=None)
@given(
    st.text(alphabet="ab \n.😀", max_size=20),
    st.booleans(),
    st.sampled_from(
        [{}, {"separator": "."}, {"separator": "a\n"}, {"pattern": r"\n+"}, {"pattern": r"(?=a)"}, {"pattern": ""}]
    ),
)
def test_steps_cover_the_text(text, keep_empty, how):
    steps = split_steps(text, keep_empty=keep_empty, **how)
    ends = [step.end for step in steps]
    assert ends == sorted(set(ends))
    assert "".join(spans(text, keep_empty=keep_empty, **how)) == text
    assert (ends[-1] == len(text)) if text else not ends
    assert all(step.text in span for step, span in zip(steps, spans(text, keep_empty=keep_empty, **how), strict=True))
    # What a function reports of them is always accepted.
    assert read_entry([(end, 0.0) for end in ends], len(text)).fault is None


# ---------------------------------------------------------------------------------------------------------------------
# The demo task
# ---------------------------------------------------------------------------------------------------------------------

SOLUTION = "3+9+0=12\n2+8+1=11\n1+9+1=11\n>1112"


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        (SOLUTION, [(8, 1.0), (17, 1.0), (26, 1.0), (32, 1.0)]),
        ("3+9+0=12\n2+8+1=12\n1+9+1=11\n>1112", [(8, 1.0), (17, 0.0), (26, 1.0), (32, 1.0)]),
        (SOLUTION + "\n", [(8, 1.0), (17, 1.0), (26, 1.0), (32, 1.0), (33, 0.0)]),
        (SOLUTION + "\n>1112\n\n", [(8, 1.0), (17, 1.0), (26, 1.0), (32, 1.0), (38, 0.0), (39, 0.0), (40, 0.0)]),
        ("3+9+0=12", [(8, 0.0)]),  # right, but to stop there is not
        ("3+9+0=12\n", [(8, 1.0), (9, 0.0)]),
        ("3+9+0=12\n2+8+1=11\n1+9+1=11", [(8, 1.0), (17, 1.0), (26, 0.0)]),
        (">1112", [(5, 0.0)]),
        ("\n" + SOLUTION, [(9, 0.0), (18, 1.0), (27, 1.0), (33, 1.0)]),
        ("", []),
    ],
)
def test_lines_of_an_addition_by_hand(text, steps):
    assert check_steps(["123+989="], [text]) == [steps]
    chat = [{"role": "user", "content": "123+989="}]
    assert check_steps([chat], [[{"role": "assistant", "content": text}]], answer=["1112"]) == [steps]


def mutants(solution: str, generator: random.Random) -> set[str]:
    """Every prefix, every run of lines, lines left out, doubled and swapped, and single characters changed."""
    lines = solution.split("\n")
    found = {solution[:end] for end in range(len(solution))} | {solution[start:] for start in range(1, len(solution))}
    found |= {"\n".join(lines[i:j]) for i in range(len(lines)) for j in range(i, len(lines) + 1)}
    found |= {"\n".join(lines[:i] + lines[i + 1 :]) for i in range(len(lines))}
    found |= {"\n".join(lines[: i + 1] + lines[i:]) for i in range(len(lines))}
    found |= {"\n".join(generator.sample(lines, len(lines))) for _ in range(10)}
    for place in range(len(solution) + 1):
        for character in "0123456789+=>\n \r":
            found.add(solution[:place] + character + solution[place:])
            found.add(solution[:place] + character + solution[place + 1 :])
    found |= {text + "\n" for text in list(found)} | {"\n" + text for text in list(found)} | {text + solution for text in lines}
    return found - {solution}


def test_nothing_but_the_demonstration_reaches_the_highest_mean():
    generator = random.Random(0)
    for first, second in [(123, 989), (5, 5), (100, 200), (46, 87), (999, 1), (7, 1234)]:
        solution, prompt = demonstrate(first, second), f"{first}+{second}="
        texts = sorted(mutants(solution, generator))
        assert len(texts) > 500
        [whole] = check_steps([prompt], [solution])
        assert read_entry(whole, len(solution)).value == 1.0
        for text, steps in zip(texts, check_steps([prompt] * len(texts), texts), strict=True):
            entry = read_entry(steps, len(text))
            assert entry.fault is None, text
            assert entry.value is not None
            assert entry.value < 1.0, text
            assert entry.steps[-1][0] == len(text)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="5+0=1>\n", max_size=14))
def test_no_text_at_all_reaches_it_either(text):
    [steps] = check_steps(["5+5="], [text])
    value = read_entry(steps, len(text)).value
    assert value is not None
    assert (value == 1.0) == (text == demonstrate(5, 5))


def test_the_step_checker_runs_by_name_and_another_prompt_is_a_fault():
    name = "cohort.data.column_addition:check_steps"
    with RewardRunner([RewardPart("lines", name, weight=0.5), RewardPart("one", zoo.good)]) as runner:
        prompts = [Prompt(0, "123+989=", {"answer": "1112"}, (1,))] * 2
        texts = [SOLUTION, SOLUTION[:17]]
        scored = runner.score(prompts, [Completion((1,), (0.0,), "stop", t) for t in texts], step=1, num_steps=1)
        assert scored.outcomes[0].steps == ((8, 0.5), (17, 0.5), (26, 0.5), (32, 0.5), (32, 1.0))
        assert scored.outcomes[1].steps == ((8, 0.5), (17, 0.0), (17, 1.0))
        assert scored.metrics["reward/lines/steps"] == 3.0
        with pytest.raises(RewardError, match="the prompt 'hello' does not end in an addition such as 123"):
            runner.score([Prompt(0, "hello", {}, (1,))], [Completion((1,), (0.0,), "stop", "x")], step=1, num_steps=1)


# ---------------------------------------------------------------------------------------------------------------------
# The page
# ---------------------------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")


def test_the_pages_python_returns_the_values_in_its_comments():
    """Every expression with a value in its comment: `true_lines([...])   # [[(6, 1.0), ...]]`."""
    names: dict[str, object] = {}
    checked = []
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        for statement in ast.parse(block).body:
            code = ast.get_source_segment(block, statement)
            comment = block.splitlines()[statement.end_lineno - 1][statement.end_col_offset :].strip()
            if isinstance(statement, ast.Expr) and comment:
                assert eval(code, names) == ast.literal_eval(comment.lstrip("# ")), code
                checked.append(code)
            else:
                exec(code, names)
    assert any("true_lines" in code for code in checked)
    assert len(checked) == 8


def test_the_process_recipe_of_the_page_is_one(tmp_path):
    [block] = [text for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if "check_steps" in text]
    (tmp_path / "recipe.toml").write_text(block)
    recipe = cohort.load_recipe(tmp_path / "recipe.toml")
    assert recipe.algorithm.advantage == "process"
    assert recipe.rewards[1].function == "cohort.data.column_addition:check_steps"
