"""The examples run, each on a tiny model; grpo_from_scratch.py has a file of its own."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import string
import sys
from pathlib import Path

import pytest
import torch

from cohort.algorithms.regions import Tokens
from cohort.model.scratch import build_scratch
from cohort.recipe.file import load_recipe
from cohort.recipe.schema import ScratchConfig
from session_tools import bits, rows_of

EXAMPLES = Path(__file__).parents[1] / "examples"

TINY = {
    "model.scratch.hidden_size": 32,
    "model.scratch.intermediate_size": 64,
    "model.scratch.num_layers": 1,
    "cold_start.num_steps": 3,
    "cold_start.until_success": 1.0,
    "prompts.limit": 64,
    "evaluation.samples": 2,
    "evaluation.max_problems": 8,
    "num_steps": 2,
    "prompts_per_step": 4,
    "group_size": 4,
    "monitors.console": False,
}


TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
SMALL_CHAT = {
    "num_steps": 1,
    "max_completion_tokens": 4,
    "monitors.console": False,
}


@pytest.fixture
def example(monkeypatch):
    """An example by its name, imported as a person's own module would be."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module


@pytest.fixture
def chat_model(tmp_path):
    """The folder of a chat model over printable characters, with random weights."""
    shape = ScratchConfig(
        hidden_size=16, intermediate_size=24, num_layers=1, num_heads=2, num_kv_heads=1, max_positions=192,
        characters=string.printable,
    )  # fmt: skip
    net, tokenizer = build_scratch(shape, (), 0)
    tokenizer.chat_template = TEMPLATE
    net.save_pretrained(tmp_path / "tiny")
    tokenizer.save_pretrained(tmp_path / "tiny")
    return str(tmp_path / "tiny")


# -- a reward of your own ----------------------------------------------------------------------------------------------


def test_the_custom_rewards_by_hand(example):
    custom_reward = example("custom_reward")
    right, wrong_step, silent = "6+7+0=13\n4+8+1=13\n>133", "6+7+0=13\n4+8+1=12\n>133", ">133"
    logged = {}
    assert custom_reward.correct([right, wrong_step, ">13", "133"], answer=["133"] * 4) == [1.0, 1.0, 0.0, 0.0]
    assert custom_reward.true_steps([right, wrong_step, silent], log_metric=logged.__setitem__) == [1.0, 0.5, None]
    assert logged == {"silent": 1 / 3}
    assert custom_reward.correct.extract(right) == "133"


def test_custom_reward_trains(example, tmp_path, capsys):
    run = example("custom_reward").main(runs_folder=str(tmp_path), name="example", **TINY)
    assert run.status == "finished"
    assert "held-out pass@1" in capsys.readouterr().out
    rows = [json.loads(line) for line in (tmp_path / "example" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2]
    # Both parts and the logged number are in the metrics, and the weighted sum is that of the parts.
    for row in rows:
        assert 0 <= row["reward/true_steps/silent"] <= 1
        assert row["reward/faults"] == 0
        if row["reward/true_steps/none"] == 0:
            parts = row["reward/correct/mean"] + 0.2 * row["reward/true_steps/mean"]
            assert row["reward/mean"] == pytest.approx(parts, abs=1e-9)
    assert run.summary["eval"]["after"]["maj@2"]["value"] is not None  # `extract` gives something to vote on


# -- an algorithm of your own ------------------------------------------------------------------------------------------


def test_the_custom_algorithm_has_fifteen_lines(example):
    """The two functions, their docstrings and the lines between them aside."""
    module = example("custom_algorithm")
    code = "".join(map(inspect.getsource, (module.median_centered, module.soft_clip)))
    assert len(code.splitlines()) <= 15
    assert len(ast.unparse(ast.parse(code)).splitlines()) < 15


def test_the_custom_advantage_and_region_by_hand(example):
    custom_algorithm = example("custom_algorithm")
    rewards_PG = torch.tensor([[0.0, 0.0, 0.5, 1.0], [1.0, 1.0, 1.0, 1.0]])
    scored_PG = torch.ones_like(rewards_PG, dtype=torch.bool)
    assert custom_algorithm.median_centered(rewards_PG, scored_PG).tolist() == [
        [-0.25, -0.25, 0.25, 0.75],
        [0.0, 0.0, 0.0, 0.0],
    ]
    # d loss / d log pi = -A rho 4 p (1 - p) with p = sigmoid(10 (rho - 1)): p = 1/2 at 1, 0.8808 at 1.2, 0.1192 at 0.8.
    old_logprobs_M = torch.zeros(3, dtype=torch.float64)
    logprobs_M = torch.tensor([1.0, 1.2, 0.8], dtype=torch.float64).log().requires_grad_()
    advantages_M = torch.tensor([2.0, 2.0, -1.0], dtype=torch.float64)
    tokens = Tokens(logprobs_M, old_logprobs_M, old_logprobs_M, advantages_M, torch.zeros(3, dtype=torch.long), 1)
    custom_algorithm.soft_clip(tokens).sum().backward()
    fade = 4 * 0.880797 * 0.119203
    assert logprobs_M.grad.tolist() == pytest.approx([-2.0, -2.0 * 1.2 * fade, 0.8 * fade], rel=1e-5)
    assert custom_algorithm.counts_on(["3", "9", "3"], ["456", "013", ""]) == [1.0, pytest.approx(2 / 3), 0.0]


def test_custom_algorithm_trains(example, tmp_path):
    run = example("custom_algorithm").main(
        runs_folder=str(tmp_path), name="example", num_steps=20, **{"monitors.console": False}
    )
    rewards = [json.loads(line)["reward/mean"] for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert rewards[0] < 0.2
    assert rewards[-1] > 0.7
    document = json.loads((run.folder / "algorithm.json").read_text())
    assert document["region"]["function"] == "custom_algorithm:soft_clip"


# -- a chat model with LoRA, programs with tests -----------------------------------------------------------------------


def test_chat_lora_trains_adapters_alone_and_answers(example, chat_model, tmp_path, capsys, monkeypatch):
    chat_lora = example("chat_lora")
    said = [[{"role": "assistant", "content": text}] for text in ("17 * 23 is 391.", "391", "391 or 392", "It is 1391", "")]
    assert chat_lora.correct(said, answer=["391"] * 5) == [1.0, 1.0, 0.0, 0.0, 0.0]
    # With one character as the answer, so that groups of random completions differ and something is learnt from them.
    monkeypatch.setattr(
        chat_lora, "correct", lambda completions, **columns: [float("a" in c[-1]["content"]) for c in completions]
    )
    monkeypatch.setattr(chat_lora, "LONGEST", 4)
    few = {"prompts_per_step": 8, "learning_rate": 1e-2, "evaluation": {"samples": 2, "resamples": 100, "max_problems": 2}}
    run = chat_lora.main(chat_model, runs_folder=str(tmp_path), name="run", **SMALL_CHAT | few)
    [row] = rows_of(run.folder)
    assert row["advantage/useful_groups"] > 0
    before, after = bits(Path(chat_model) / "model.safetensors"), bits(run.model / "model.safetensors")
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {name for name in before if "_proj" in name}  # every linear layer, through its adapter, and nothing else
    answer = ast.literal_eval(capsys.readouterr().out)
    assert 0 < len(answer) <= 4


def test_code_reward_judges_programs_by_their_tests(example, chat_model, tmp_path):
    code_reward = example("code_reward")
    rows = code_reward.make_rows()  # looks at every solution, in the jail
    wrong = "```python\ndef double(n):\n    return n * n\n```"
    assert code_reward.code_tests([wrong], tests=[rows[0]["tests"]]) == [2 / 3]  # 2 * 2 and 0 * 0
    assert all("solution" not in row for row in rows)
    run = code_reward.main(chat_model, runs_folder=str(tmp_path), name="run", group_size=2, **SMALL_CHAT)
    [row] = rows_of(run.folder)
    assert row["rollout/completions"] == 6
    verdicts = {name: value for name, value in row.items() if name.startswith("reward/code_tests/verdict/")}
    assert sum(verdicts.values()) == 6
    assert row["reward/faults"] == 0


def test_code_reward_refuses_tests_that_their_own_solution_fails(example, monkeypatch):
    code_reward = example("code_reward")
    monkeypatch.setattr(code_reward, "TASKS", [code_reward.TASKS[0] | {"solution": "def double(n):\n    return n"}])
    with pytest.raises(SystemExit, match="does not pass the tests of: Write a function double"):
        code_reward.make_rows()


# -- going on from a run -----------------------------------------------------------------------------------------------


def test_continue_run_begins_where_the_first_run_ended(example, tmp_path):
    continue_run = example("continue_run")
    assert continue_run.counts_on(["3", "9", "3"], ["456", "014", ""], length=[3, 3, 3]) == [1.0, pytest.approx(2 / 3), 0.0]
    few = {"num_steps": 15, "monitors.console": False, "monitors.tokens_every": 0}
    first, second = continue_run.main(runs_folder=str(tmp_path), **few)
    begun, learnt = ([row["reward/mean"] for row in rows_of(run.folder)] for run in (first, second))
    assert begun[0] < 0.1
    assert begun[-1] > 0.3
    assert learnt[0] > 3 * begun[0]  # six digits, at the first step, with what was learnt on three
    assert learnt[-1] > learnt[0]
    assert load_recipe(second.folder / "recipe.toml").model.source == str(first.model.resolve())


# -- a monitor ---------------------------------------------------------------------------------------------------------


def test_the_mlflow_monitor_is_made_by_a_recipe_and_told_everything(monkeypatch, tmp_path):
    """With a stand-in for the package: names that it takes, completions as a table, the end of the run."""
    import types

    from cohort.observe.monitors import build_monitors, find_monitor_problems
    from cohort.recipe.file import build_recipe

    monkeypatch.syspath_prepend(str(EXAMPLES))
    recipe = build_recipe({"monitors": {"also": ["mlflow_monitor:MlflowMonitor"], "console": False}})
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert find_monitor_problems(recipe) == [
        "monitors.also names mlflow_monitor:MlflowMonitor, but mlflow is not installed. Install it with `pip install mlflow`, or remove "
        "it from monitors.also."
    ]
    calls = []
    module = types.ModuleType("mlflow")
    for name in ("set_experiment", "start_run", "log_params", "log_metrics", "log_table", "set_tag", "end_run"):
        setattr(module, name, lambda *words, _name=name, **more: calls.append((_name, words, more)))
    monkeypatch.setitem(sys.modules, "mlflow", module)
    with build_monitors(recipe, tmp_path / "my-run") as monitors:
        monitors.on_metrics({"step": 3, "reward/mean": 0.5, "evidence": ["text"]})
        monitors.on_rollouts(3, [{"prompt": "a", "completion": "b", "reward": 1.0, "success": True, "reference_answer": "b"}])
        monitors.on_evaluation({"step": 3, "sets": {"held_out": {"pass@1": {"value": 0.25}, "problems": 8}}})
        monitors.on_finish({"status": "finished"})
    assert monitors.failures == {}
    assert ("start_run", (), {"run_name": "my-run"}) in calls
    assert any(name == "log_params" and words[0].get("train.group_size") == "8" for name, words, _ in calls)
    assert [words for name, *words in calls if name == "log_metrics"] == [
        [({"reward/mean": 0.5},), {"step": 3}],
        [({"eval/held_out/pass_at_1": 0.25, "eval/held_out/problems": 8},), {"step": 3}],
    ]
    table = {"prompt": ["a"], "completion": ["b"], "reward": [1.0], "success": [True]}
    assert ("log_table", (table, "completions/step-3.json"), {}) in calls
    assert calls[-2:] == [("set_tag", ("status", "finished"), {}), ("end_run", (), {})]
