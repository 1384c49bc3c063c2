"""docs/recipe.md is written from the types of the recipe and leaves nothing out."""

import tomllib

import pytest

from cohort.algorithms.named import PRESETS
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.file import PREFERRED, build_recipe, list_leaf_fields
from cohort.recipe.schema import PromptsConfig, Recipe, RewardConfig
from recipe_page import allowed_words, default_words, make_page, sections, shown, type_words


def test_every_section_and_every_field_is_described():
    for path, section in sections():
        assert section.__doc__, path
        for name, field in section.model_fields.items():
            nested = type_words(field.annotation).startswith("section like")
            assert field.description or nested or name == "rewards", f"{path}.{name}"


def test_every_key_stands_in_the_table_of_its_section():
    parts = {part.partition("\n")[0]: part for part in make_page().split("\n## ")}
    for path, _ in [
        *list_leaf_fields(Recipe),
        *[(f"rewards.{name}", field) for name, field in RewardConfig.model_fields.items()],
    ]:
        section, _, key = path.rpartition(".")
        heading = {"": "Top level", "rewards": "`[[rewards]]`"}.get(section, f"`[{section}]`")
        assert f"\n| `{key}` | " in parts[heading], path


def test_presets_and_undotted_words_are_all_there():
    page = make_page()
    assert all(f"| `{name}` | `{shown(preset['advantage'])}`" in page for name, preset in PRESETS.items())
    assert all(f"| `{word}` | `{path}` |" in page for word, path in PREFERRED.items() if word != path)


def test_the_recipe_in_the_introduction_is_one():
    example = make_page().split("```toml\n")[1].split("```")[0]
    assert build_recipe(tomllib.loads(example)).train.num_steps == 200


@pytest.mark.parametrize(
    ("section", "name", "kind", "default", "allowed"),
    [
        (AlgorithmConfig, "clip_low", "number", "`0.2`", "≥ 0, < 1"),
        (AlgorithmConfig, "std_ddof", "whole number", "`0`", "`0`, `1`"),
        (AlgorithmConfig, "zero_variance", "text", '`"keep"`', '`"keep"`, `"drop"`'),
        (PromptsConfig, "shuffle", "true or false", "`true`", ""),
        (RewardConfig, "function", "text", "required", ""),
        (Recipe, "rewards", "list of sections like `[[rewards]]`", '`[{ function = "math_answer" }]`', "at least 1"),
        (Recipe, "seed", "whole number", "`0`", "≥ 0, < 2^63"),
    ],
)
def test_a_row_in_words(section, name, kind, default, allowed):
    field = section.model_fields[name]
    assert (type_words(field.annotation), default_words(field), allowed_words(field)) == (kind, default, allowed)


def test_defaults_are_shown_as_toml_reads_them():
    for _, field in list_leaf_fields(Recipe):
        value = field.get_default(call_default_factory=True)
        if not isinstance(value, list) or not value:
            assert tomllib.loads(f"value = {shown(value)}")["value"] == value
