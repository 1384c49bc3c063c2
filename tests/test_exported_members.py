"""The public names, exactly: adding or losing one is a decision, not an accident."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys

import api_page
import cohort

PUBLIC = [
    "CohortError",
    "Completion",
    "Evaluation",
    "Outcome",
    "Prompt",
    "Recipe",
    "Rollout",
    "RunResult",
    "Sampling",
    "evaluate",
    "load_recipe",
    "resume",
    "rewards",
    "train",
]


def test_the_public_names_are_exactly_these():
    assert cohort.__all__ == PUBLIC


def test_each_can_be_imported_and_dir_shows_no_other():
    for name in PUBLIC:
        assert getattr(cohort, name) is not None
    assert {name for names in cohort._HOMES.values() for name in names} | {"rewards"} == set(PUBLIC)


def test_a_public_name_stays_what_it_is_once_every_module_is_loaded():
    """A module of the same name as a function would take its place with the first import."""
    for module in pkgutil.walk_packages(cohort.__path__, "cohort."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in PUBLIC:
        first, second = getattr(cohort, name), getattr(cohort, name)
        assert first is second, name
        assert callable(first) == callable(second) == (name != "rewards"), name
        assert inspect.ismodule(first) == (name == "rewards"), name


def test_the_page_of_the_api_is_written_from_the_code():
    written = api_page.make_page()
    for name in PUBLIC:
        assert f"### `cohort.{name}`" in written or name == "CohortError", name
    assert "    checkpoint: str | int = ''," in written
    assert "- `prompts`, `rewards`: as for `cohort.train`; every row is a problem." in written


def test_every_word_of_a_public_function_is_explained():
    for function in (cohort.train, cohort.resume, cohort.evaluate):
        for word in inspect.signature(function).parameters:
            assert f"`{word}`" in api_page.with_list(function, set(inspect.signature(function).parameters)), (function, word)


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(cohort, "trainer")


def test_importing_cohort_and_reading_a_recipe_loads_no_torch():
    code = "import sys, cohort; cohort.load_recipe(None, ['group_size=4']); sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_reward_is_callable_as_the_design_says():
    assert cohort.rewards.math_answer(["so \\boxed{7}", "8"], ["7", "7"]) == [1.0, 0.0]
    assert cohort.rewards.think_format(["<think>a</think> b"]) == [1.0]
