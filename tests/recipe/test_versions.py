"""Versions of recipes: old files keep their meaning, new ones are refused, and what moved is found where it is now."""

from __future__ import annotations

import tomllib

import pytest

import cohort
from cohort.base.importing import load_function
from cohort.errors import RecipeError, RunError
from cohort.observe.report.data import RunData
from cohort.observe.run_folder import RunFolder
from cohort.recipe.built_in import built_in, find_recipe_path
from cohort.recipe.file import build_recipe, dump_recipe, load_recipe
from cohort.recipe.rules import name_reward
from cohort.recipe.schema import Recipe
from cohort.recipe.versions import CHANGES, MOVED, VERSION, bring_up_to_date
from cohort.rewards import BUILT_IN
from cohort.tools.audit.profiles import PROFILES

WRITTEN_FROM_PYTHON = [
    "cohort_verify.code.reward:code_tests",
    "cohort_verify.format:regex_format",
    "cohort_verify.format:think_answer_format",
    "cohort_verify.format:think_format",
    "cohort.rewards.language:language_consistency",
    "cohort.rewards.learned.judging:judge",
    "cohort.rewards.learned.model:reward_model",
    "cohort.rewards.learned.process_model:process_reward_model",
    "cohort_verify.math.answer:exact_match",
    "cohort_verify.math.answer:math_answer",
    "cohort.rewards.shape:length",
    "cohort.rewards.shape:repetition",
    "cohort.rewards.shape:soft_overlong",
]
"""How `cohort.train(rewards=[cohort.rewards.math_answer])` wrote each built-in reward into recipes of version 0."""

OLD = """
[prompts]
source = "cohort.tasks.column_addition:column_addition"
args = { split = "train", digits = 2 }

[[rewards]]
function = "math_answer"

[[rewards]]
function = "cohort.tasks.column_addition:check_steps"

[[rewards]]
function = "my_rewards:cohort"

[cold_start.source]
source = "cohort.tasks:column_addition"
args = { split = "train" }

[evaluation.sets.gym]
source = "cohort.tasks.gym:load_gym"
"""


@pytest.fixture
def old_file(tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_text(OLD, encoding="utf-8")
    return file


def test_a_file_without_a_version_names_functions_as_version_0_did(old_file):
    recipe = load_recipe(old_file)
    assert recipe.version == VERSION
    assert recipe.prompts.source == "cohort.data.column_addition:column_addition"
    assert [reward.function for reward in recipe.rewards] == [
        "math_answer",
        "cohort.data.column_addition:check_steps",
        "my_rewards:cohort",
    ]
    assert recipe.cold_start.source.source == "cohort.data.column_addition:column_addition"
    assert recipe.evaluation.sets["gym"].source == "cohort.rewards.gym.rows:load_gym"
    assert recipe.prompts.args == {"split": "train", "digits": 2}
    assert old_file.read_text(encoding="utf-8") == OLD


def test_every_reader_of_a_run_folder_brings_the_recipe_up_to_date(old_file):
    recipe = load_recipe(old_file)
    assert RunFolder.open(old_file.parent).recipe() == recipe
    assert RunData(old_file.parent).recipe["rewards"][1]["function"] == recipe.rewards[1].function


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_a_moved_function_exists_under_its_new_name_and_keeps_its_name_in_the_metrics(old, new):
    assert load_function(new).__name__ == new.partition(":")[2]
    recipe = build_recipe(bring_up_to_date({"rewards": [{"function": old}]}))
    assert recipe.rewards[0].function == new
    assert name_reward(recipe.rewards[0]) == old.partition(":")[2]
    with pytest.raises(ModuleNotFoundError):
        __import__(old.partition(":")[0])


def test_a_recipe_of_version_2_names_the_penalties_where_they_were():
    tree = {"version": 2, "rewards": [{"function": "cohort.rewards.shape:length"}]}
    assert bring_up_to_date(tree)["rewards"][0]["function"] == "cohort.rewards.penalties:length"


def test_the_rewards_that_moved_are_the_ones_that_docs_and_audit_name():
    rewards = {new for new in MOVED.values() if new.endswith((":check_steps", ":gym_verifier"))}
    assert rewards == {name for name in PROFILES if ":" in name}


@pytest.mark.parametrize("spec", WRITTEN_FROM_PYTHON)
def test_built_in_rewards_are_where_recipes_from_python_say(spec):
    assert load_function(MOVED.get(spec, spec)) is BUILT_IN[spec.partition(":")[2]]


def test_every_built_in_reward_was_looked_at():
    assert {spec.partition(":")[2] for spec in WRITTEN_FROM_PYTHON} <= set(BUILT_IN)


def test_resolved_and_built_in_recipes_state_the_version():
    text = dump_recipe(Recipe())
    assert text.startswith(f"version = {VERSION}\n")
    assert build_recipe(bring_up_to_date(tomllib.loads(text))) == Recipe()
    for name in built_in():
        assert tomllib.loads(find_recipe_path(name).read_text(encoding="utf-8"))["version"] == VERSION, name


def test_a_version_from_the_future_is_refused_with_the_fix(old_file):
    old_file.write_text(f"version = {VERSION + 1}\n{OLD}", encoding="utf-8")
    for read in (load_recipe, lambda file: RunFolder.open(file.parent).recipe()):
        with pytest.raises(RecipeError, match=rf"version {VERSION + 1}, .* up to {VERSION}\. Update cohort"):
            read(old_file)
    assert RunData(old_file.parent).recipe["version"] == VERSION + 1  # a report shows what it can


@pytest.mark.parametrize("version", ["-1", "true", "1.0", '"1"'])
def test_what_is_no_version_is_refused(old_file, version):
    old_file.write_text(f"version = {version}\n", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"is not a version; versions are whole numbers from 0 to"):
        load_recipe(old_file)


def test_words_of_today_are_of_today(old_file):
    """Only files can be old: an old name on the command line or from Python is refused with the new one, as is another version."""
    with pytest.raises(
        RecipeError, match=r"rewards\.0\.function: cohort\.tasks\.gym:gym_verifier has moved; write cohort\.rew"
    ):
        load_recipe(old_file, ["rewards.0.function=cohort.tasks.gym:gym_verifier"])
    with pytest.raises(RecipeError, match=r"rewards\.0\.function: .* has moved"):
        cohort.train(prompts=[{"prompt": "a"}], rewards="cohort.tasks.column_addition:check_steps")
    for version in (0, VERSION + 1):
        with pytest.raises(RecipeError, match="version: "):
            load_recipe(old_file, [f"version={version}"])
    old_file.write_text(f"version = {VERSION}\n{OLD}", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"rewards\.1\.function: cohort\.tasks\.column_addition:check_steps has moved"):
        load_recipe(old_file)


@pytest.mark.parametrize(
    "tree", [{"rewards": "x"}, {"rewards": [1, {"function": 2}]}, {"prompts": 3}, {"evaluation": {"sets": []}}]
)
def test_malformed_recipes_are_left_for_the_schema_to_refuse(tree):
    updated = bring_up_to_date(tree)
    updated["evaluation"].pop("held_out_least")
    assert updated == {"evaluation": {}} | tree | {"version": VERSION}
    with pytest.raises(RecipeError):
        build_recipe(bring_up_to_date(tree))


def test_changes_are_made_one_after_the_other_from_the_version_of_the_file(monkeypatch):
    """A recipe of version 1 gets the second change alone; the argument is left as it was."""
    import cohort.recipe.versions as versions

    def double(tree):
        tree["train"]["num_steps"] *= 2
        return tree

    monkeypatch.setattr(versions, "CHANGES", (*CHANGES[:1], double))
    monkeypatch.setattr(versions, "VERSION", 2)
    old = {"train": {"num_steps": 3}, "prompts": {"source": "cohort.tasks:column_addition"}}
    new = {"version": 1, **old}
    assert bring_up_to_date(old)["prompts"]["source"] == "cohort.data.column_addition:column_addition"
    assert bring_up_to_date(new)["prompts"]["source"] == "cohort.tasks:column_addition"
    assert bring_up_to_date(old)["train"]["num_steps"] == bring_up_to_date(new)["train"]["num_steps"] == 6
    assert bring_up_to_date({**old, "version": 2})["train"]["num_steps"] == 3
    assert old["train"]["num_steps"] == 3


@pytest.mark.parametrize("version", [0, 1])
def test_rows_of_older_recipes_are_held_out_by_the_share_alone(old_file, version):
    """Named sets are not split off, so there nothing is written: a comparison of them that was begun is still the same."""
    first = f"version = {version}\n" if version else ""
    old_file.write_text(f"{first}[evaluation]\nheld_out = 0.2\n", encoding="utf-8")
    assert load_recipe(old_file).evaluation.held_out_least == 0
    assert load_recipe(old_file, ["evaluation.held_out_least=8"]).evaluation.held_out_least == 8
    old_file.write_text(first + '[evaluation.sets.a]\nsource = "rows.jsonl"\n', encoding="utf-8")
    assert load_recipe(old_file).evaluation.held_out_least == Recipe().evaluation.held_out_least == 16
    old_file.write_text("version = 2\n", encoding="utf-8")
    assert load_recipe(old_file) == Recipe()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_cuts_that_older_recipes_switch_off_are_left_out_and_others_are_refused(old_file, version):
    """Resolved recipes of every older run state them."""
    first = f"version = {version}\n" if version else ""
    old_file.write_text(f"{first}[sampling]\ntemperature = 0.9\ntop_p = 1.0\ntop_k = 0\n", encoding="utf-8")
    assert load_recipe(old_file).sampling == load_recipe(overrides=["temperature=0.9"]).sampling
    for cut in ("top_p = 0.9", "top_k = 20"):
        old_file.write_text(f"{first}[sampling]\n{cut}\n", encoding="utf-8")
        with pytest.raises(RecipeError, match=r"'top_.' in \[sampling\]: in training every token .* evaluation\.top_"):
            load_recipe(old_file)


def test_an_unreadable_recipe_of_a_run_still_says_so(old_file):
    old_file.write_text("rewards = [", encoding="utf-8")
    with pytest.raises(RunError, match="cannot be read"):
        RunFolder.open(old_file.parent).recipe()
