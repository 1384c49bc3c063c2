"""Parameters filled from columns of other names: the mapping, its errors, and the column of the reference answer."""

from __future__ import annotations

import json

import pytest

from cohort.errors import RecipeError, RewardError
from cohort.evaluation.evaluate import make_problem_key
from cohort.recipe.file import load_recipe
from cohort.recipe.rules import find_answer_column
from cohort.rewards.runner import RewardPart, RewardRunner
from cohort.tools.audit import command
from cohort.types import Completion, Prompt

ROWS = [
    Prompt(0, "one?", {"solution": "1", "answer": "7", "topic": "a"}, (1,), "solution"),
    Prompt(1, "two?", {"solution": "2", "answer": "7", "topic": "b"}, (1,), "solution"),
]
ONES = [Completion((1,), (0.0,), "stop", r"\boxed{1}")] * 2


def scored(*parts: RewardPart, prompts=ROWS, completions=ONES):
    with RewardRunner(parts, workers=1) as runner:
        runner.check_columns(prompts)
        return [outcome.parts for outcome in runner.score(prompts, completions, step=1, num_steps=1).outcomes]


def test_each_part_reads_its_own_columns_and_the_map_wins_over_a_column_of_the_name():
    def everything(completions, **columns):
        assert sorted(columns) == sorted(
            ["answer", "solution", "topic", "word", "prompts", "completion_ids", "trainer_state", "log_extra", "log_metric"]
        )
        return [float(word == "a" and gold == "7") for word, gold in zip(columns["word"], columns["answer"], strict=True)]

    def asked(completions, question):
        return [float(text == "two?") for text in question]

    assert scored(
        RewardPart("math", "math_answer", columns={"answer": "solution"}),  # in a worker
        RewardPart("own", "math_answer"),  # `answer` as the rows have it
        RewardPart("any", everything, columns={"word": "topic"}),
        RewardPart("asked", asked, columns={"question": "prompts"}),
    ) == [
        {"math": 1.0, "own": 0.0, "any": 1.0, "asked": 0.0},
        {"math": 0.0, "own": 0.0, "any": 0.0, "asked": 1.0},
    ]


def test_rows_that_can_never_be_scored_are_found_in_the_column_that_is_read():
    rows = [*ROWS, Prompt(2, "three?", {"solution": "", "answer": "7"}, (1,))]
    with RewardRunner([RewardPart("math", "math_answer", columns={"answer": "solution"})], workers=1) as runner:
        assert [row for row, _ in runner.find_unusable(rows)["math"]] == [2]
    with RewardRunner([RewardPart("math", "math_answer")], workers=1) as runner:
        assert runner.find_unusable(rows) == {}


def only_gold(completions, gold):
    return [0.0] * len(completions)


@pytest.mark.parametrize(
    ("function", "args", "columns", "said"),
    [
        ("math_answer", {}, {"anser": "solution"}, "anser: the function does not read it; did you mean 'answer'?"),
        ("math_answer", {}, {"tolerance": "topic"}, "tolerance: the function does not read it. It can read answer."),
        ("think_format", {}, {"answer": "solution"}, "answer: the function does not read it. It can read prefilled."),
        (only_gold, {}, {"golds": "solution"}, "golds: the function does not read it; did you mean 'gold'? It can read gold."),
        ("math_answer", {}, {"completions": "topic"}, "completions: the runner passes it, so it cannot be a column."),
        ("math_answer", {"answer": ["1"]}, {"answer": "solution"}, "answer: args sets it too; keep one of them."),
    ],
)
def test_a_parameter_that_cannot_be_fed_is_refused_by_name_at_the_start(function, args, columns, said):
    with pytest.raises(RewardError) as problem:
        RewardRunner([RewardPart("part", function, args=args, columns=columns)], workers=1).start()
    assert str(problem.value).startswith(f"rewards.0.columns.{said}")


@pytest.mark.parametrize("column", ["solutoin", "prompt", "completion_ids", ""])
def test_a_column_that_no_row_has_is_refused_by_name_with_those_there_are(column):
    hint = "; did you mean 'solution'?" if column == "solutoin" else "."
    with RewardRunner([RewardPart("part", only_gold, columns={"gold": column})]) as runner:
        with pytest.raises(RewardError) as problem:
            runner.check_columns(ROWS)
        said = f"rewards.0.columns.gold: the rows have no column {column!r}{hint} Columns: solution, answer, topic (the prompt itself is called prompts)."
        assert str(problem.value) == said


def test_a_missing_column_comes_with_the_word_that_feeds_it():
    parts = [RewardPart("first", only_gold, args={"gold": "1"}), RewardPart("second", only_gold)]
    said = r"needs the column 'gold'.*rewards.1.columns.gold=COLUMN \(the prompt itself is"
    with RewardRunner(parts) as runner, pytest.raises(RewardError, match=said):
        runner.check_columns(ROWS)


# -- recipes -----------------------------------------------------------------------------------------------------------


def test_recipe_and_command_line_set_columns_and_the_reference_answer_follows():
    recipe = load_recipe(None, ["rewards.0.columns.answer=solution"])
    assert recipe.rewards[0].columns == {"answer": "solution"}
    assert find_answer_column(recipe.rewards) == "solution"
    shape = {"function": "think_format"}
    decides = {"function": "math_answer", "outcome": True, "columns": {"answer": "b"}}
    other = {"function": "exact_match", "columns": {"answer": "a"}}
    assert find_answer_column(load_recipe(values={"rewards": [other, shape, decides]}).rewards) == "b"
    assert find_answer_column(load_recipe(values={"rewards": [shape]}).rewards) == "answer"
    assert (ROWS[0].reference_answer, Prompt(0, "", {"answer": "7"}, ()).reference_answer) == ("1", "7")
    assert make_problem_key(ROWS[0]) == make_problem_key(Prompt(5, "one?", {"answer": "1"}, (1,)))
    with pytest.raises(RecipeError, match=r"rewards.0.columns.answer: .*should be a valid string"):
        load_recipe(None, ["rewards.0.columns.answer=3"])


def test_an_audit_of_a_recipe_feeds_each_reward_as_the_run_does(tmp_path, monkeypatch, capsys):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": p.content, **p.columns}) + "\n" for p in ROWS), encoding="utf-8")
    told = []
    monkeypatch.setattr(command, "audit", lambda *_, columns, **__: told.append(columns))
    first, second = {"answer": "solution"}, {"answer": "topic"}
    text = f'[prompts]\nsource = "{rows}"\n' + "".join(
        f'[[rewards]]\nname = "{name}"\nfunction = "exact_match"\ncolumns = {{ answer = "{one["answer"]}" }}\n'
        for name, one in (("a", first), ("b", second))
    )
    (tmp_path / "two.toml").write_text(text, encoding="utf-8")
    command.audit_recipe(tmp_path / "two.toml", [], limit=1)
    assert told == [first, second]
    monkeypatch.undo()
    assert command.run_audit(["exact_match"], rows=str(rows), columns=["anser=solution"]) == 2
    assert "error: columns.anser: the function does not read it; did you mean 'answer'?" in capsys.readouterr().err
