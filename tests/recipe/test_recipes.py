"""Every built-in recipe loads, warns of nothing, explains itself, and means what its README says."""

from __future__ import annotations

import re

import pytest

from cohort.base.importing import load_function
from cohort.data.rows import load_rows, render
from cohort.recipe.file import BUILT_IN_FOLDER, DEMO, dump_recipe, find_recipe, list_built_in, load_recipe
from cohort.recipe.rules import list_warnings
from cohort.recipe.schema import PromptsConfig
from cohort.rewards import built_in as built_in_reward
from cohort.rewards.gym.rows import gym_verifier

NAMES = sorted(path.parent.name for path in BUILT_IN_FOLDER.glob("*/recipe.toml"))

GSM8K_ROW = {
    "question": "Ann has 3 boxes of 12 pens and gives 5 away. How many are left?",
    "answer": "She has 3*12 = <<3*12=36>>36 pens.\nAfter giving some away: 36-5 = <<36-5=31>>31.\n#### 31",
}


def test_the_list_is_complete():
    assert sorted(list_built_in()) == NAMES
    assert {DEMO, "gsm8k_qwen", "gym_chain_sum"} <= set(NAMES)
    assert all(line and line.endswith(".") for line in list_built_in().values())


@pytest.mark.parametrize("name", NAMES)
def test_it_loads_warns_of_nothing_and_survives_being_written_out(name, tmp_path):
    recipe = find_recipe(name, [])
    assert list_warnings(recipe) == []
    (tmp_path / "recipe.toml").write_text(dump_recipe(recipe), encoding="utf-8")
    assert load_recipe(tmp_path / "recipe.toml") == recipe


@pytest.mark.parametrize("name", NAMES)
def test_it_has_a_readme_that_names_its_command(name):
    assert f"cohort train {name}" in (BUILT_IN_FOLDER / name / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_its_rewards_exist_and_take_their_arguments(name):
    recipe = find_recipe(name, [])
    for reward in [*recipe.rewards, *(reward for one in recipe.evaluation.sets.values() for reward in one.rewards)]:
        function = load_function(reward.function) if ":" in reward.function else built_in_reward(reward.function)
        assert set(reward.args) <= set(function.__code__.co_varnames)


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_is_held_out_and_asked_in_the_same_words(name):
    recipe = find_recipe(name, [])
    assert recipe.evaluation.sets
    for held_out in recipe.evaluation.sets.values():
        assert held_out.split != recipe.prompts.split
        if held_out.rewards:  # another task, which is not trained
            continue
        for field in ("source", "prompt_column", "template", "system", "max_prompt_tokens"):
            assert getattr(held_out, field) == getattr(recipe.prompts, field), field


def test_gsm8k_asks_for_a_box_and_reads_the_gold_out_of_a_whole_solution():
    recipe = find_recipe("gsm8k_qwen", [])
    messages = render(GSM8K_ROW, recipe.prompts, "row")
    assert [message["role"] for message in messages] == ["system", "user"]
    assert "\\boxed{}" in messages[0]["content"]
    assert messages[1]["content"] == GSM8K_ROW["question"]
    texts = [r"36-5 is \boxed{31}.", r"\boxed{31}\boxed{31}", r"\boxed{36}", "The answer is 31.", "31"]
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    answer, box = (built_in_reward(reward.function) for reward in recipe.rewards)
    assert answer(completions, answer=[GSM8K_ROW["answer"]] * 5) == [1.0, 1.0, 0.0, 1.0, 0.0]
    assert box(completions, **recipe.rewards[1].args) == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert recipe.rewards[0].outcome


TAKEN = ["36", "36.", "**36**.", "She has 36 apples.", "12 + 24 = 36", "$36$", "3 x 12 =36", "36kg", "=> 36", "-> 36", "<b>36</b>",
         "7 + 29 = 36\n- 36", "1. Add them: 12 + 24 = 36\n2. That is all"]  # fmt: skip
NOT_TAKEN = ["36x", "36%", ">36", "< 36", r"\ne 36", r"3 \times 36", "5 + 36", "It is 40 - 36", "36+1", "36^2", "1/36", "136", "36.5", "-36",
             "It is 40.\n36. Count the number of"]  # fmt: skip


@pytest.mark.parametrize("name", ["smollm2", "smollm2_math"])
def test_word_problems_take_the_last_number_and_not_the_end_of_an_expression(name):
    recipe = find_recipe(name, [])
    (part,) = recipe.rewards if name == "smollm2_math" else recipe.evaluation.sets["word_problems"].rewards
    re.compile(part.args["pattern"])  # a run checks this before it starts
    texts = TAKEN + NOT_TAKEN
    scores = built_in_reward(part.function)(texts, answer=["36"] * len(texts), **part.args)
    assert [text for text, score in zip(texts, scores, strict=True) if score] == TAKEN


def test_the_hub_is_asked_for_the_configuration_of_gsm8k(monkeypatch):
    import datasets

    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **more: asked.append((args, more)) or [GSM8K_ROW])
    recipe = find_recipe("gsm8k_qwen", [])
    for config in (recipe.prompts, recipe.evaluation.sets["test"]):
        assert load_rows(config, 0) == [GSM8K_ROW]
    assert asked == [(("openai/gsm8k",), {"split": split, "name": "main"}) for split in ("train", "test")]


def test_the_gym_recipe_serves_problems_whose_golds_score_and_part_marks_are_no_success():
    recipe = find_recipe("gym_chain_sum", [])
    few: PromptsConfig = recipe.prompts.model_copy(update={"args": {**recipe.prompts.args, "count": 8}})
    rows = load_rows(few, 0)
    entries, tasks, settings = ([row[column] for row in rows] for column in ("entry", "task", "gym_args"))
    right = [f"So it is <answer>{row['answer']}</answer>" for row in rows]
    assert gym_verifier(right, entry=entries, task=tasks, gym_args=settings) == [1.0] * 8
    partly = gym_verifier([f"about {row['answer']} or so" for row in rows], entry=entries, task=tasks, gym_args=settings)
    assert all(0 < score < recipe.rewards[0].threshold for score in partly)
