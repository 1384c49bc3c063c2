"""A run that asks its model in a template of its own, with code that ships with the model; stopped, and gone on with."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from test_resume_guards import interrupt_at

from cohort import session
from cohort.data.prompts import WrittenRow
from cohort.errors import PromptError
from cohort.recipe.file import build_recipe
from cohort.training import build
from cohort.training.preflight import check_sampling
from cohort.types import Prompt, Sampling
from model_zoo import edit_config, make_tokenizer, spoilt, whole_model
from session_tools import summary_of, tiny, train_tiny

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[{{ style }}]{% endif %}"
)


def bring_code(folder: Path) -> None:
    (folder / "modeling_run.py").write_text(
        "from transformers import Qwen2Config, Qwen2ForCausalLM\n"
        "class RunConfig(Qwen2Config):\n    model_type = 'of_a_run'\n"
        "class RunForCausalLM(Qwen2ForCausalLM):\n    config_class = RunConfig\n"
    )
    names = {"AutoConfig": "modeling_run.RunConfig", "AutoModelForCausalLM": "modeling_run.RunForCausalLM"}
    edit_config(folder, model_type="of_a_run", architectures=["RunForCausalLM"], auto_map=names)


def words(folder: Path, model: Path, **more: object) -> dict[str, object]:
    rows = folder / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"prompt": f"{a}+{b}=", "answer": str(a + b)}) + "\n" for a in range(6) for b in range(6))
    )
    prompts = {"source": str(rows), "system": "Add.", "max_prompt_tokens": 128}
    return {
        "model": {"source": str(model), "device": "cpu"},
        "prompts": prompts,
        "prompts.args": {},
        "cold_start.num_steps": 0,
        "evaluation.samples": 0,
        "sampling.max_completion_tokens": 4,
        "train.num_steps": 2,
        "algorithm.kl_coef": 0.0,
    } | more


def test_a_template_of_ones_own_stays_with_the_run_and_trusted_code_is_named(tmp_path, monkeypatch, capsys):
    template = tmp_path / "chat.jinja"
    template.write_text(TEMPLATE)
    model = spoilt(tmp_path / "model", bring_code)
    told = {"prompts.chat_template": str(template), "prompts.template_args": {"style": "robot"}}
    recipe = words(tmp_path, model, **told, **{"model.trust_remote_code": True, "monitors.console": True})
    with monkeypatch.context() as patch:
        interrupt_at(patch, 2)
        assert train_tiny(tmp_path, **recipe).status == "interrupted"
    first = " ".join(capsys.readouterr().out.split())
    assert f"trust_remote_code: Python code from model.source {model} runs here" in first
    assert "chat template of prompts.chat_template, with style robot" in first
    run = tmp_path / "run"
    assert tomllib.loads((run / "recipe.toml").read_text())["prompts"]["chat_template"] == TEMPLATE
    template.write_text(TEMPLATE.replace("[", "("))  # nobody reads it again
    assert session.resume(run).status == "finished"
    assert summary_of(run)["trust_remote_code"] == [f"model.source {model}"]
    tokenizer = make_tokenizer()
    for step in (1, 2):
        row = pq.read_table(run / "rollouts" / f"step-{step:06d}.parquet").to_pylist()[0]
        assert tokenizer.decode(row["prompt_ids"]).endswith("[robot]")
        assert tokenizer.decode(row["prompt_ids"]).startswith("[system]Add.[user]")
    assert (run / "model" / "chat_template.jinja").read_text() == TEMPLATE
    assert (run / "model" / "modeling_run.py").is_file()


def test_sets_take_the_arguments_of_training_unless_they_have_their_own(tmp_path):
    recipe = tiny(tmp_path, **words(tmp_path, whole_model(), **{"prompts.template_args": {"enable_thinking": False}}))
    other = {"source": recipe.prompts.source, "system": "Add.", "max_prompt_tokens": 128}
    sets = {
        "as_training": other,
        "thinking": other | {"template_args": {"enable_thinking": True}},
        "texts": other | {"system": ""},
    }
    recipe = build_recipe(recipe.model_dump() | {"evaluation": {"samples": 1, "sets": sets}})
    rows = [{"prompt": f"{a}?", "answer": "1"} for a in range(4)]
    configs = recipe.evaluation.sets
    data = build.Data([{"prompt": "x", "answer": "1"}], {name: (config, rows) for name, config in configs.items()}, None)
    policy = build.load_policy(recipe, data)
    sets_ = build.encode_data(recipe, data, policy, build.make_training_sampling(recipe, policy)).sets
    ends = {name: policy.tokenizer.decode(prompts[0].token_ids)[-20:] for name, prompts in sets_.items()}
    assert ends["as_training"].endswith("</think>\n\n")
    assert ends["thinking"].endswith("assistant\n")
    assert ends["texts"] == "0?"
    # What no template renders cannot be told anything.
    idle = build_recipe(recipe.model_dump() | {"prompts": recipe.prompts.model_dump() | {"system": ""}})
    with pytest.raises(PromptError, match=r"^prompts\.template_args: all prompts are plain text.* or set prompts\.system"):
        build.encode_data(idle, data, policy, build.make_training_sampling(idle, policy))


def test_an_argument_that_no_template_reads_is_refused_in_the_section_that_gives_it(tmp_path):
    recipe = tiny(tmp_path, **words(tmp_path, whole_model(), **{"prompts.template_args": {"tone": "calm"}}))
    other = {"source": recipe.prompts.source, "system": "Add.", "max_prompt_tokens": 128}
    sets = {"as_training": other, "loud": other | {"template_args": {"tone": "loud"}}}
    recipe = build_recipe(recipe.model_dump() | {"evaluation": {"samples": 1, "sets": sets}})
    policy = build.load_policy(recipe, build.Data([], {}, None))
    sampling = build.make_training_sampling(recipe, policy)
    for name, field in (("as_training", "prompts"), ("loud", r"evaluation\.sets\.loud")):
        only = build.Data(
            [], {name: (recipe.evaluation.sets[name], [{"prompt": "1?", "answer": "1"}])}, None
        )  # no training rows
        with pytest.raises(PromptError, match=rf"^{field}\.template_args: "):
            build.encode_data(recipe, only, policy, sampling)


def test_the_longest_sequence_of_training_and_evaluation_by_hand(tmp_path):
    def encoded(train: int, held_out: int, written: int = 0) -> build.EncodedData:
        prompts = [[Prompt(0, "q", {}, (1,)), Prompt(1, "q", {}, (1,) * length)] for length in (train, held_out)]
        rows = [WrittenRow(prompts[0][0], ((1,) * (written - 1),))] if written else []
        return build.EncodedData(prompts[0], {"dev": prompts[1]}, rows, [], {})

    recipe = tiny(tmp_path)
    longer = tiny(tmp_path, **{"evaluation.max_completion_tokens": 20})
    for given, data, longest in (
        (recipe, encoded(6, 5), 18),
        (recipe, encoded(5, 6), 18),
        (longer, encoded(6, 5), 25),
        (longer, encoded(30, 5), 42),
        (recipe, encoded(6, 5, written=40), 40),
    ):
        assert build.find_longest_sequence(given, data, Sampling(4, 1.0, 12, ())) == longest


def test_an_adapter_names_the_model_that_it_belongs_to(tmp_path):
    pytest.importorskip("peft", reason="adapters need peft")
    model = whole_model()
    for recipe, base in (
        (tiny(tmp_path, **words(tmp_path, model, **{"model.lora.rank": 2})), str(model)),
        (
            tiny(tmp_path, **{"model.lora.rank": 2, "model.scratch.characters": "0123456789"}),
            "",
        ),  # made from scratch: it is saved in the run folder
    ):
        policy = build.load_policy(recipe, build.Data([], {}, None))
        assert policy.adapter is not None
        assert policy.adapter.base == base


def test_ignored_settings_of_the_generation_config_are_named(tmp_path):
    recipe = tiny(tmp_path, **words(tmp_path, whole_model()))
    policy = build.load_policy(recipe, build.Data([], {}, None))
    run: Any = SimpleNamespace(policy=policy, sampling=build.make_training_sampling(recipe, policy))
    assert "generation_config" not in check_sampling(run).text
    for name, value in {"top_p": 0.8, "repetition_penalty": 1.05, "min_p": 0.02, "max_new_tokens": 9}.items():
        setattr(policy.model.generation_config, name, value)
    assert "generation_config: top_p 0.8, min_p 0.02, repetition_penalty 1.05)" in check_sampling(run).text
