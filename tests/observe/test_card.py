"""The model card: figures, front matter that the hub can read, and text of a run that stays text."""

from __future__ import annotations

import json
import re
import tomllib

import yaml
from test_report import make_run

from cohort.observe.card import fence_text, render_card, write_card
from cohort.observe.report.data import RunData


def written(folder, adapter=False, checkpoint="", name=""):
    return render_card(RunData(folder), adapter, "its final model", checkpoint, name)


def head(text):
    return yaml.safe_load(text.split("---\n")[1])


def change_recipe(folder, **sections):
    import tomli_w

    tree = tomllib.loads((folder / "recipe.toml").read_text())
    for section, words in sections.items():
        tree[section] = tree[section] | words if isinstance(words, dict) else words
    (folder / "recipe.toml").write_text(tomli_w.dumps(tree))


def test_figures_front_matter_and_recipe(tmp_path):
    folder = make_run(tmp_path / "demo", steps=30)
    change_recipe(folder, model={"source": "Qwen/Qwen2.5-0.5B"}, prompts={"source": "openai/gsm8k"})
    text = written(folder, name="me/demo")
    assert head(text) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "base_model": "Qwen/Qwen2.5-0.5B",
        "base_model_relation": "finetune",
        "datasets": ["openai/gsm8k"],
        "tags": ["cohort", "reinforcement-learning", "grpo"],
    }
    assert "| held\\_out (512) | pass@1 | 54.1 % [51.1, 57.1] | 95.2 % [92.2, 98.2] | +41.1 points [+40.5, +41.7] |" in text
    assert "| held\\_out (512) | reward | 0.595 [0.541, 0.649] | 1.047 [0.952, 1.142] |  |" in text
    assert "mean@8" not in text
    assert 'AutoModelForCausalLM.from_pretrained("me/demo")' in text
    recipe = tomllib.loads(re.search(r"```toml\n(.*)\n```\n$", text, re.DOTALL)[1])
    assert recipe["model"]["source"] == "Qwen/Qwen2.5-0.5B"
    assert recipe["train"]["group_size"] == 8
    assert head(written(folder, adapter=True)) | {"tags": []} == head(text) | {
        "library_name": "peft",
        "base_model_relation": "adapter",
        "tags": [],
    }


def test_a_checkpoint_has_the_figures_of_its_own_step_or_none(tmp_path):
    folder = make_run(tmp_path / "demo", steps=60)
    during = next(json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines() if '"step": 25' in line)
    value = during["sets"]["held_out"]["pass@1"]["value"]
    at_25 = written(folder, checkpoint="step-25")
    assert "after 25 steps" in at_25
    assert f"| {100 * value:.1f} % [" in at_25
    assert "95.2" not in at_25
    assert " points" not in at_25
    del during["sets"]["held_out"]["greedy"]  # on the way it is left out, so there is nothing of these weights to set beside it
    with (folder / "evaluations.jsonl").open("a") as file:
        file.write(json.dumps(during) + "\n")
    lines = written(folder, checkpoint="step-25")
    assert [f"| held\\_out (512) | {what} |" in lines for what in ("pass@1", "greedy")] == [True, False]
    for other in ("step-26", "step-25.2", "cold-25"):
        assert "The run evaluated only its start, not these weights." in written(folder, checkpoint=other)
    (folder / "evaluations.jsonl").unlink()
    assert "The run was not evaluated." in written(folder)


def test_text_of_the_run_stays_text_and_paths_and_keys_stay_home(tmp_path):
    """Names with mark-up, fences inside the recipe, folders of this machine, a key in a reward's arguments."""
    folder = make_run(tmp_path / "a|b`c_<i>", steps=5)
    rewards = [{"function": "my:judge", "args": {"api_key": "sk-canary", "api_key_env": "JUDGE_KEY", "max_tokens": 7}}]
    change_recipe(
        folder, model={"source": "/home/canary/models/base"}, prompts={"template": "````\n# <script>"}, rewards=rewards
    )
    (folder / "model").mkdir()
    write_card(folder, folder / "model")
    text = (folder / "model" / "README.md").read_text()
    assert "base_model" not in head(text)
    assert "# a\\|b\\`c\\_&lt;i&gt;" in text
    assert "&lt;hard&gt;" in text.partition("## Use")[0]
    assert "<script>" not in text.partition("`````toml")[0]
    assert text.rstrip().endswith("\n`````")
    assert "canary" not in text
    assert 'source = "base"' in text
    assert 'api_key_env = "JUDGE_KEY"' in text
    assert "max_tokens = 7" in text
    assert fence_text("a ``` b").startswith("````toml\n")


def test_front_matter_survives_any_name(tmp_path):
    folder = make_run(tmp_path / "demo", steps=5)
    change_recipe(folder, algorithm={"name": "a: [b]\n---\n"}, prompts={"source": "x: {y}/---"})
    assert head(written(folder))["tags"][-1] == "a-b"
