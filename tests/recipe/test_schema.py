"""The recipe: every mistake is answered with the field and the fix, and what is written down reads back the same."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cohort.algorithms.named import PRESETS
from cohort.errors import RecipeError
from cohort.recipe.file import build_recipe, dump_recipe, find_recipe_path, list_built_in, list_leaf_fields, load_recipe, walk
from cohort.recipe.rules import list_warnings
from cohort.recipe.schema import VERSION, Recipe
from cohort.recipe.trl_names import TRL_NAMES


def message(*overrides: str, toml: str | None = None, folder: Path | None = None, values=None) -> str:
    path = None
    if toml is not None:
        path = folder / "recipe.toml"
        path.write_text(toml)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides, values)
    return str(caught.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        # unknown keys, at every depth, with the nearest name
        ("group_siz=4", ["'group_siz'", "'group_size'"]),
        ("train.group_siz=4", ["'group_siz'", "[train]", "'group_size'"]),
        ("model.scratch.hiden_size=8", ["'hiden_size'", "[model.scratch]", "'hidden_size'"]),
        ("evaluation.sets.dev.sorce=x", ["'sorce'", "[evaluation.sets.dev]", "'source'"]),
        ("cold_start.source.sorce=x", ["'sorce'", "[cold_start.source]", "'source'"]),
        ("rewards.0.wieght=2", ["'wieght'", "[rewards.0]", "'weight'"]),
        ("optimiser.learning_rate=1", ["'optimiser'", "'optimizer'"]),
        ("train.learning_rate=1", ["'learning_rate'", "[train]", "optimizer.learning_rate"]),
        # wrong types and ranges
        ("group_size=many", ["train.group_size", "integer", "'many'"]),
        ("group_size=2.5", ["train.group_size", "2.5"]),
        ("group_size=0", ["train.group_size", "greater than or equal to 1", "(got 0)"]),
        ("learning_rate=-1", ["optimizer.learning_rate", "greater than 0"]),
        ("learning_rate=inf", ["optimizer.learning_rate", "finite"]),
        ("clip_low=1.5", ["algorithm.clip_low", "less than 1"]),
        ("aggregation=tokenmean", ["algorithm.aggregation", "sequence_mean, token_mean, constant", "did you mean 'token_mean'"]),
        ("name=5", ["name", "string", "quotes"]),
        ("stop=x", ["sampling.stop", "list"]),
        ("train=5", ["train", "section", "group_size"]),
        ("model.source.x=3", ["model.source", "string"]),
        ("cold_start.source=demos.jsonl", ["cold_start.source", "cold_start.source.KEY=value", "source"]),
        ("evaluation.sets.dev=3", ["evaluation.sets.dev", "section", "source"]),
        ("evaluation.sets.dev.limit=-1", ["evaluation.sets.dev.limit", "greater than or equal to 0"]),
        # what cannot learn
        ("group_size=1", ["train.group_size", "at least 2"]),
        ("temperature=0", ["sampling.temperature", "0.6 to 1.0"]),
        ("sampling.top_p=0.9", ["'top_p' in [sampling]", "full distribution", "evaluation.top_p"]),
        ("sampling.top_k=50", ["'top_k' in [sampling]", "full distribution", "evaluation.top_k"]),
        ("top_p=0.9", ["top_p", "full distribution", "evaluation.top_p"]),
        ("top_k=50", ["top_k", "full distribution", "evaluation.top_k"]),
        ("algorithm=dr_grp", ["algorithm", "'dr_grp'", "did you mean 'dr_grpo'", "known: cispo, dapo, dpo,"]),
        # rewards
        ('rewards=[{function="a",outcome=true},{function="b",outcome=true}]', ["rewards", "outcome", "more than one"]),
        ('rewards=[{function="a"},{function="m:a"}]', ["rewards", "share a name", "`name`"]),
        ("rewards=[{weight=2}]", ["rewards.0.function", "required", "math_answer"]),
        ("rewards=[]", ["rewards", "at least 1 reward", 'function="math_answer"']),
        ("eval=3", ["'eval'", "did you mean 'evaluation'"]),
        ("eval.samples=3", ["'eval'", "did you mean 'evaluation'"]),
        ("algorithm=gpro", ["'gpro'", "did you mean 'grpo'"]),
        ("temperature=-1", ["sampling.temperature", "greater than or equal to 0"]),
        # TRL's names, in a section that has its own key
        ("cold_start.max_steps=30", ["called cold_start.num_steps"]),
        ("evaluation.max_completion_length=5", ["called evaluation.max_completion_tokens"]),
        ("train.adam_beta1=0.9", ["called optimizer.beta1"]),
        ("rewards=math_answer", ["rewards", "[[rewards]]", 'rewards=[{function="math_answer"}]']),
        ('rewards=["math_answer"]', ["rewards.0", '{ function = "math_answer" }']),
        ("rewards.weight=2", ["rewards.weight", "rewards.0.weight=2"]),
        ("rewards.3.weight=2", ["rewards.3", "not in the recipe", "0 to 0"]),
        ("rewards.0.timeout_s=0", ["rewards.0.timeout_s", "greater than 0"]),
        # words of one section that most people mean otherwise, and words of several
        ("epsilon=0.2", ["epsilon", "algorithm.clip_low", "optimizer.epsilon"]),
        ("batch_size=32", ["batch_size", "train.prompts_per_step", "cold_start.batch_size"]),
        ("kl=0", ["kl", "algorithm.kl_coef", "monitors.kl"]),
        ("clip=0.1", ["clip", "algorithm.clip_low", "algorithm.clip_high", "critic.clip"]),
        ("epochs=4", ["epochs", "train.passes_per_step", "train.num_steps", "reward_model.epochs"]),
        ("loss=dapo", ["loss", "algorithm.name", "reward_model.loss"]),
        ("every_steps=5", ["every_steps", "evaluation.every_steps", "checkpoints.every_steps"]),
        ("group_size", ["'group_size'", "key=value"]),
        ("=4", ["'=4'", "key=value"]),
    ],
)  # fmt: skip
def test_a_mistake_is_answered_with_the_field_and_the_fix(override, words):
    said = message(override)
    assert [word for word in words if word not in said] == []
    assert "Config" not in said  # no class names, no traceback words
    assert "\n" not in said


def test_a_part_that_the_overlong_penalty_would_overwrite_is_refused_where_parts_are_read():
    rewards = [{"function": "math_answer", "name": "overlong"}]
    for choices in ({"name": "gdpo"}, {"name": "dapo"}):  # no penalty; the sum of the parts alone is read
        assert build_recipe({"rewards": rewards, "algorithm": choices}).rewards[0].name == "overlong"
    with pytest.raises(
        RecipeError, match=r"rewards: 'overlong' is the part that algorithm\.overlong_share adds.*another `name`"
    ):
        build_recipe({"rewards": rewards, "algorithm": {"name": "gdpo", "overlong_share": 0.2}})


@pytest.mark.parametrize("word", sorted(TRL_NAMES))
def test_names_of_trl_are_answered_with_the_key_here(word, tmp_path):
    """On the command line, from Python, and inside a section of a file; and the key that is named exists."""
    ours = TRL_NAMES[word]
    assert f"here it is called {ours}" in message(f"{word}=1")
    assert f"here it is called {ours}" in message(values={word: 1})
    assert f"here it is called {ours}" in message(toml=f"[train]\n{word} = 1\n", folder=tmp_path)
    assert walk([int(part) if part == "N" else part for part in ours.replace(".N.", ".0.").split(".")])[0] is not None


def test_a_recipe_of_another_version_is_refused_in_one_sentence(tmp_path):
    for version in (0, VERSION - 1, VERSION + 1):
        said = message(toml=f"version = {version}\n", folder=tmp_path)
        assert said.startswith(f"version: this cohort reads only recipes of version {VERSION}")
    assert "version: true is not a number" in message("version=true")
    assert dump_recipe(Recipe()).startswith(f"version = {VERSION}\n")
    for name in list_built_in():
        assert tomllib.loads(find_recipe_path(name).read_text(encoding="utf-8"))["version"] == VERSION, name


def test_files_that_cannot_be_read_are_named(tmp_path):
    assert "No such file" in message_for(tmp_path / "missing.toml")
    (tmp_path / "broken.toml").write_text("x = [")
    assert "broken.toml is not valid TOML" in message_for(tmp_path / "broken.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\x01\xfe")
    assert "binary.toml is not UTF-8 (byte 0xff at 0); save it as UTF-8" in message_for(tmp_path / "binary.toml")
    (tmp_path / "wide.toml").write_text('name = "x"', encoding="utf-16")
    assert "wide.toml is UTF-16; save it as UTF-8" in message_for(tmp_path / "wide.toml")
    (tmp_path / "marked.toml").write_text('name = "x"\r\n', encoding="utf-8-sig")
    assert load_recipe(tmp_path / "marked.toml").name == "x"
    (tmp_path / "twice.toml").write_text('name = "x"\nname = "y"\n')
    assert "line 2 repeats 'name = \"y\"'; keep one" in message_for(tmp_path / "twice.toml")
    (tmp_path / "tables.toml").write_text("[train]\n\n[train]\nnum_steps = 2\n")
    assert "line 3 repeats '[train]'; keep one" in message_for(tmp_path / "tables.toml")
    (tmp_path / "empty.toml").write_text("# nothing\n")
    assert "empty.toml is empty: name at least model.source" in message_for(tmp_path / "empty.toml")
    with pytest.raises(RecipeError, match=r"the folder has no recipe\.toml; name the file"):
        find_recipe_path(tmp_path)


def test_single_and_double_brackets_are_told_apart(tmp_path):
    for text, said in (
        ('[rewards]\nfunction = "math_answer"\n', r"write \[\[rewards\]\] in the recipe, with double brackets$"),
        ('[[prompts]]\nsource = "rows.jsonl"\n', r"write \[prompts\] in the recipe, with single brackets"),
    ):
        (tmp_path / "recipe.toml").write_text(text)
        with pytest.raises(RecipeError, match=said):
            load_recipe(tmp_path / "recipe.toml")


@pytest.mark.parametrize(
    "values",
    [
        {"learning_rate": 1e-3, "optimizer": {"learning_rate": 1e-4}},
        {"learning_rate": 1e-3, "optimizer.learning_rate": 1e-3},
        {"lora": {"rank": 4}, "model.lora.rank": 8},
    ],
)
def test_two_keys_for_one_setting_are_refused(values):
    with pytest.raises(RecipeError, match=r"(learning_rate|lora) and \S+ both set \S+: leave one of them out"):
        load_recipe(values=values)


def test_the_sections_of_a_model_and_the_types_of_torch_are_taken():
    import torch

    values = {"lora": {"rank": 4}, "device": torch.device("cpu"), "model": {"dtype": torch.float32}}
    model = load_recipe(values=values).model
    assert (model.lora.rank, model.device, model.dtype) == (4, "cpu", "float32")
    with pytest.raises(RecipeError, match=r"lora: this is a section; write model.lora.KEY=value with one of rank"):
        load_recipe(values={"lora": 4})


def message_for(path: Path) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert path.name in str(caught.value)
    return str(caught.value)


def test_several_mistakes_are_all_named_at_once(tmp_path):
    said = message(toml="[train]\ngroup_siz = 4\n[optimizer]\nlearning_rate = 'x'\n", folder=tmp_path)
    assert "'group_siz'" in said
    assert "optimizer.learning_rate" in said


def test_null_is_refused_before_a_run_depends_on_it():
    """Python callers can pass None; recipe.toml could not hold it."""
    said = message(values={"rewards": [{"function": "a", "args": {"pattern": None}}]})
    assert "rewards.0.args.pattern" in said
    assert "group_size" in message(values={"group_size": None})


def test_a_recipe_file_with_rewards_is_reached_by_index(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text('[[rewards]]\nfunction = "math_answer"\n[[rewards]]\nfunction = "think_format"\nweight = 0.5\n')
    recipe = load_recipe(path, ["rewards.1.weight=0.25"])
    assert [reward.weight for reward in recipe.rewards] == [1.0, 0.25]


def test_without_rewards_in_the_recipe_the_default_one_is_reached():
    recipe = load_recipe(overrides=["rewards.0.weight=2"])
    assert [(reward.function, reward.weight) for reward in recipe.rewards] == [("math_answer", 2.0)]


def test_undotted_words():
    """The words of the glossary reach the section they mean, from the command line and from Python."""
    words = {
        "prompts_per_step": ("train", 3), "group_size": ("train", 4), "num_steps": ("train", 7), "micro_batch_tokens": ("train", 99),
        "minibatches_per_step": ("train", 2), "max_prompt_tokens": ("prompts", 11), "max_completion_tokens": ("sampling", 12),
        "temperature": ("sampling", 0.7), "clip_low": ("algorithm", 0.1), "clip_high": ("algorithm", 0.3), "kl_coef": ("algorithm", 0.5),
        "learning_rate": ("optimizer", 1e-5), "max_grad_norm": ("optimizer", 0.5), "warmup_steps": ("optimizer", 9),
    }  # fmt: skip
    for recipe in (
        load_recipe(
            overrides=[f"{word}={value}" for word, (_, value) in words.items()]
            + ["seed=5", "model=some/where", "prompts=a.jsonl"]
        ),
        load_recipe(
            values={word: value for word, (_, value) in words.items()}
            | {"seed": 5, "model": "some/where", "prompts": "a.jsonl"}
        ),
    ):
        assert {word: getattr(getattr(recipe, section), word) for word, (section, _) in words.items()} == {
            word: value for word, (_, value) in words.items()
        }
        assert (recipe.seed, recipe.model.source, recipe.prompts.source) == (5, "some/where", "a.jsonl")


def test_values_need_no_quotes_on_the_command_line():
    recipe = load_recipe(overrides=["model=/data/a b/model", "name=2024-05-01", "runs_folder=x=y", 'sampling.stop=["a"]'])
    assert (recipe.model.source, recipe.name, recipe.runs_folder, recipe.sampling.stop) == (
        "/data/a b/model",
        "2024-05-01",
        "x=y",
        ["a"],
    )
    assert load_recipe(values={"runs_folder": Path("/tmp/here")}).runs_folder == "/tmp/here"


def test_presets_fill_choices_and_choices_override_presets():
    assert PRESETS["grpo"]["kl_coef"] == load_recipe().algorithm.kl_coef == 0.04
    dr = load_recipe(overrides=["algorithm=dr_grpo", "kl_coef=0.01"]).algorithm
    assert (dr.name, dr.advantage, dr.aggregation, dr.kl_coef) == ("dr_grpo", "group_centered", "constant", 0.01)


def test_naming_another_preset_on_a_resolved_recipe_is_not_ignored(tmp_path):
    """A run's recipe.toml spells every choice out, tuned ones too: the word must mean the whole algorithm all the same."""
    path = tmp_path / "recipe.toml"
    path.write_text(dump_recipe(load_recipe(overrides=["clip_high=0.28", "kl_coef=0.005", "mask_truncated=true"])))
    switched = load_recipe(path, ["algorithm=dr_grpo"]).algorithm
    assert switched == load_recipe(overrides=["algorithm=dr_grpo", "mask_truncated=true"]).algorithm
    assert switched.mask_truncated  # no preset has a word on it, so it is one's own
    for words in (["algorithm=dpo", "kl_coef=0.2"], ["kl_coef=0.2", "algorithm=dpo"]):
        assert load_recipe(path, words).algorithm.kl_coef == 0.2
    assert load_recipe(path, values={"kl_coef": 0.2, "algorithm": "dpo"}).algorithm.kl_coef == 0.2
    same = load_recipe(path, ["algorithm=grpo"]).algorithm
    assert same == load_recipe(path).algorithm


SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "group_size": st.integers(2, 64), "learning_rate": st.floats(1e-9, 1.0), "kl_coef": st.floats(0, 1), "seed": st.integers(0, 2**63 - 1),
        "name": st.text(max_size=20), "algorithm": st.sampled_from(sorted(PRESETS)), "temperature": st.floats(0.1, 2),
        "sampling.stop": st.lists(st.text(min_size=1, max_size=5), max_size=3), "shuffle": st.booleans(),
        "prompts.args": st.dictionaries(st.text(min_size=1, max_size=8), st.one_of(st.integers(-9, 9), st.text(max_size=9), st.booleans()), max_size=3),
        "rewards": st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True).map(
            lambda names: [{"function": f"module:{name}", "args": {"pattern": '>(\\d+)\\s*$"\'\n'}} for name in names]
        ),
        "evaluation.sets.dev.source": st.text(max_size=10), "cold_start.source.source": st.text(max_size=10),
    },
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(SETTINGS)
def test_dump_and_load_give_the_same_recipe(tmp_path_factory, values):
    assume(values.get("algorithm") != "dpo" or values.get("kl_coef") != 0)  # refused: its beta
    recipe = load_recipe(values=values)
    path = tmp_path_factory.mktemp("recipe") / "recipe.toml"
    path.write_text(dump_recipe(recipe), encoding="utf-8", newline="")
    again = load_recipe(path)
    assert again == recipe
    assert dump_recipe(again) == dump_recipe(recipe)


def test_every_default_is_written_out_and_every_setting_is_described():
    written = dump_recipe(load_recipe())
    for path, field in list_leaf_fields(Recipe):
        assert path.rsplit(".", 1)[-1] in written
        assert field.description or path == "rewards", path


def test_warnings_are_for_pretrained_models_only():
    odd = ["learning_rate=3e-4", "group_size=2", "temperature=1.5", "clip_high=0.5", "clip_low=0.05", "kl_coef=1.0"]
    assert list_warnings(load_recipe(overrides=odd)) == []
    said = list_warnings(load_recipe(overrides=[*odd, "model=some/model"]))
    assert [line.split(" = ")[0] for line in said] == [
        "train.group_size", "sampling.temperature", "algorithm.clip_low", "algorithm.clip_high", "algorithm.kl_coef", "optimizer.learning_rate",
    ]  # fmt: skip
    assert "0.0003 is outside 1e-07 to 3e-05" in said[-1]
    assert list_warnings(load_recipe(overrides=["model=some/model"])) == []
    assert list_warnings(load_recipe(overrides=[*odd, "model=some/model", "num_steps=0", "cold_start.num_steps=5"])) == []


def test_a_rate_that_destroys_a_model_from_scratch_is_warned_of():
    assert list_warnings(load_recipe(overrides=["learning_rate=0.03"])) == []
    (said,) = list_warnings(load_recipe(overrides=["learning_rate=3.0"]))
    assert said.startswith("optimizer.learning_rate = 3: AdamW changes every weight by up to the rate")


def test_the_range_of_a_clip_is_that_of_single_tokens():
    """GSPO clips a geometric mean, a thousand times closer to 1."""
    assert list_warnings(load_recipe(overrides=["algorithm=gspo", "model=some/model"])) == []
    (said,) = list_warnings(load_recipe(overrides=["algorithm=dapo", "clip_low=0.0003", "model=some/model"]))
    assert said.startswith("algorithm.clip_low = 0.0003")


def test_words_of_a_section_leave_its_other_words_alone():
    """In any order, on the command line and from Python, over a recipe's own; a list is replaced as a whole."""
    for words in (["num_steps=3", "train={max_fault_share=0.2}"], ["train={max_fault_share=0.2}", "num_steps=3"]):
        train = load_recipe(overrides=words).train
        assert (train.num_steps, train.max_fault_share) == (3, 0.2)
    words_of_train = {"max_fault_share": 0.2}
    train = load_recipe(values={"num_steps": 3, "train": words_of_train, "group_size": 4}).train
    assert (train.num_steps, train.max_fault_share, train.group_size) == (3, 0.2, 4)
    assert words_of_train == {"max_fault_share": 0.2}
    recipe, own = find_recipe_path("column_addition"), load_recipe(find_recipe_path("column_addition")).evaluation
    changed = load_recipe(recipe, values={"evaluation": {"samples": 4}}).evaluation
    assert changed == own.model_copy(update={"samples": 4})
    assert len(own.sets) > 1
    one = load_recipe(recipe, overrides=["evaluation={sets={dev={source='dev.jsonl'}}}"]).evaluation
    assert list(one.sets) == ["dev"]
    assert (
        load_recipe(overrides=["model={scratch={num_layers=2}}", "model.scratch={num_heads=2}"]).model.scratch.num_layers == 2
    )
    assert list(load_recipe(overrides=["evaluation.sets.dev={}"]).evaluation.sets) == ["dev"]


def test_an_algorithm_named_in_a_section_comes_with_its_preset():
    """As `algorithm=dapo` does: what the recipe had tuned for another is forgotten, what stands beside the name is kept."""
    recipe = find_recipe_path("column_addition")
    assert load_recipe(recipe).algorithm.kl_coef == 0.005
    for words in ({"algorithm": {"kl_estimator": "k2", "name": "dapo"}}, {"algorithm": "dapo", "kl_estimator": "k2"}):
        algorithm = load_recipe(recipe, values=words).algorithm
        assert (algorithm.kl_coef, algorithm.clip_high, algorithm.kl_estimator) == (0.0, 0.28, "k2")
    for order in (["algorithm={kl_coef=0.2}", "algorithm=dpo"], ["algorithm=dpo", "algorithm={kl_coef=0.2}"]):
        assert load_recipe(overrides=order).algorithm.kl_coef == 0.2


def test_a_frozen_recipe_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        load_recipe().train.group_size = 3


def test_the_recipe_is_read_without_torch():
    code = "import sys, cohort.recipe.file; cohort.recipe.file.load_recipe(); sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_loads_no_torch():
    """How fast it is: tests/test_cli.py."""
    code = "import sys\nfrom typer.testing import CliRunner\nfrom cohort.cli import app\nresult = CliRunner().invoke(app, ['--help'])\nassert 'train' in result.output, result.output\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("tree", "field"),
    [
        ({"parallel": {"offload": True}}, "parallel.offload"),
        ({"parallel": {"shard": "full"}, "model": {"kernels": "fused"}}, "model.kernels"),
        ({"parallel": {"shard": "full"}, "optimizer": {"state_bits": 8}}, "optimizer.state_bits"),
        ({"parallel": {"shard": "full"}, "model": {"lora": {"rank": 4, "base_dtype": "nf4"}}}, "model.lora.base_dtype"),
    ],
)
def test_what_cannot_be_shared_out_is_refused_by_name(tree, field):
    with pytest.raises(RecipeError, match=rf"{field}: .*(U|u)se |{field}: .*Set "):
        build_recipe(tree)
    assert build_recipe({"parallel": {"shard": "full"}}).parallel.shard == "full"
