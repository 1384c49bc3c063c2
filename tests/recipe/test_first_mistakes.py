"""What goes wrong on a first day: a column that is missing, a file that is not there, a setting in the wrong place. Each is said
before anything is trained or evaluated, with the field and the fix."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cohort
from cohort.data.rows import load_rows, render
from cohort.errors import CohortError, ModelError, PromptError, RecipeError, RewardError, RunError
from cohort.model.loading import pick_device
from cohort.observe.run_folder import RunFolder, check_name, make_new_folder
from cohort.recipe.file import build_recipe, list_leaf_fields, load_recipe
from cohort.recipe.schema import ModelConfig, PromptsConfig, Recipe
from cohort.rewards.runner import RewardPart, RewardRunner
from cohort.session import Session
from cohort.tools.audit.command import run_audit
from cohort.types import Completion, Prompt
from session_tools import ONE_THREAD, PROBLEMS, fork_server, summary_of, tiny, train_tiny, write_recipe

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS = [
    {"prompt": f"{a}+{b}=", "gold": str(a + b), "demonstration": f"{a}+{b}+0={a + b}\n>{a + b}"}
    for a in range(10)
    for b in range(10)
]


def rows_file(folder: Path, rows=ROWS) -> str:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def from_file(source: str, *, reward: str = "math_answer", **more) -> dict:
    """Overrides of a tiny run on the rows of a file, a share of them held out."""
    pattern = {"args": {"pattern": r">(\d+)\s*$"}} if reward == "math_answer" else {}
    prompts = {"source": source, "max_prompt_tokens": 16}
    return {"prompts": prompts, "prompts.args": {}, "evaluation.sets": {}, "rewards": [{"function": reward} | pattern]} | more


# -- columns -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "column"),
    [("math_answer", "answer"), ("code_tests", "tests"), ("exact_match", "answer"), ("broken_rewards:substring", "answer")],
)
def test_every_reward_names_the_column_that_no_row_has(function, column):
    prompts = [Prompt(number, row["prompt"], {"gold": row["gold"], "hint": ""}, (1,)) for number, row in enumerate(ROWS[:3])]
    with RewardRunner([RewardPart("part", function)], workers=1) as runner:
        said = f"^reward 'part' needs the column '{column}', which the rows do not have. Columns: gold, hint. To use a column of another name"
        with pytest.raises(RewardError, match=said):
            runner.check_columns(prompts)
        with pytest.raises(RewardError, match=said):
            runner.score(prompts, [Completion((1,), (0.0,), "stop", "a")] * 3, step=1, num_steps=1)
        assert runner.find_unusable(prompts) == {}
        runner.check_columns([Prompt(0, "", {column: "1"}, (1,)), prompts[0]])  # one row has it: others may be faults


def test_a_look_ahead_that_needs_a_column_of_its_own_names_it():
    def silent(completions, **columns):
        return [0.0] * len(completions)

    silent.unusable = lambda solution: [None] * len(solution)
    with RewardRunner([RewardPart("part", silent)]) as runner:
        runner.check_columns([Prompt(0, "", {}, (1,))])
        with pytest.raises(RewardError, match=r"rewards.0.function: `unusable` of 'part' needs the column 'solution'"):
            runner.find_unusable([Prompt(0, "", {}, (1,))])


@pytest.mark.parametrize("reward", ["math_answer", "broken_rewards:substring"])
def test_a_missing_column_stops_the_run_before_the_cold_start(tmp_path, reward):
    name = "math_answer" if reward == "math_answer" else "substring"
    with pytest.raises(
        RunError, match=f"columns: prompts: reward '{name}' needs the column 'answer'.*Columns: gold, demonstration"
    ):
        train_tiny(tmp_path, **from_file(rows_file(tmp_path), reward=reward))
    assert not (tmp_path / "run" / "start").exists()
    assert not RunFolder(tmp_path / "run").has_results()  # so that the name can be used again once the rows are mended


def test_a_missing_column_of_an_evaluation_set_is_named_too(tmp_path):
    whole = [row | {"answer": row["gold"]} for row in ROWS[:80]]
    train = rows_file(tmp_path, whole)
    other = tmp_path / "other.jsonl"
    other.write_text("".join(json.dumps(row) + "\n" for row in ROWS[80:]), encoding="utf-8")
    changes = from_file(train) | {"evaluation.sets": {"late": {"source": str(other), "max_prompt_tokens": 16}}}
    with pytest.raises(RunError, match="columns: evaluation set late: reward 'math_answer' needs the column 'answer'"):
        train_tiny(tmp_path, **changes)


def test_rows_that_nobody_scores_need_no_answer(tmp_path):
    changes = {"algorithm": {"name": "sft"}, "cold_start.num_steps": 0, "evaluation.samples": 0, "train.group_size": 1}
    run = train_tiny(tmp_path, **from_file(rows_file(tmp_path)) | changes | {"train.num_steps": 1})
    assert run.status == "finished"


def test_the_doctor_shows_a_missing_column_among_its_checks(world, tmp_path):
    server, _ = world
    child = server.run("doctor", write_recipe(tmp_path / "gold.toml", **from_file(rows_file(tmp_path))))
    assert child.wait() == 1
    assert "FAILURE columns          prompts: reward 'math_answer' needs the column 'answer'" in child.output
    assert "Traceback" not in child.output
    assert "TypeError" not in child.output


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "args", "said"),
    [
        ("length", {}, r"^rewards.0.args: length: set target_length, longest or shortest \(at least 1\)"),
        ("length", {"longest": 9, "unit": "words"}, "^rewards.0.args: unit: "),
        ("length", {"target_length": 0}, "^rewards.0.args: length: set target_length"),
        ("soft_overlong", {"longest": 9, "buffer": 10}, "^rewards.0.args: buffer: expected at most longest = 9"),
        ("repetition", {"threshold": 2}, "^rewards.0.args: threshold: expected a share"),
    ],
)
def test_arguments_with_which_no_call_can_succeed_are_refused_before_the_first(function, args, said):
    with RewardRunner([RewardPart("part", function, args=args)], workers=1) as runner, pytest.raises(RewardError, match=said):
        runner.check_columns([Prompt(0, "", {"answer": "1"}, (1,))])


def test_a_target_length_may_be_a_column():
    with RewardRunner([RewardPart("part", "length")], workers=1) as runner:
        runner.check_columns([Prompt(0, "", {"target_length": 3}, (1,))])
    both = RewardPart("part", "length", args={"longest": 3})
    said = r"rewards.0.args: target_length: it sets both bounds"
    with RewardRunner([both], workers=1) as runner, pytest.raises(RewardError, match=said):
        runner.check_columns([Prompt(0, "", {"target_length": 3}, (1,))])


def test_an_argument_that_no_column_can_be_is_asked_for_at_the_start():
    with pytest.raises(RewardError, match=r"^rewards.0.args: reward 'part' needs the argument 'buffer'.$"):
        RewardRunner([RewardPart("part", "soft_overlong", args={"longest": 9})], workers=1).start()


def test_an_audit_without_the_arguments_is_no_flaw(capsys):
    assert run_audit(["length"]) == 2
    assert "error: length: set target_length, longest or shortest (at least 1)" in capsys.readouterr().err


# -- rows --------------------------------------------------------------------------------------------------------------


def test_a_source_that_is_not_there_names_its_field(tmp_path):
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "folder").mkdir()
    for name, said in (
        ("other.csv", "other.csv: no such file; check the path"),
        ("emty.jsonl", "emty.jsonl: no such file; did you mean 'empty.jsonl'?"),
        ("empty.jsnl", "is not a file or folder here; did you mean 'empty.jsonl'"),
        ("empty.jsonl", "no rows; at least one is needed"),
        ("folder", "is a folder, but not one written by save_to_disk of datasets"),
    ):
        with pytest.raises(PromptError, match=r"^prompts.source: ") as raised:
            load_rows(PromptsConfig(source=str(tmp_path / name)), 0)
        assert said in str(raised.value)


def test_the_field_of_an_evaluation_set_or_a_cold_start_is_its_own(tmp_path):
    missing = {"source": str(tmp_path / "nofile.jsonl")}
    for changes, field in (
        ({"evaluation.sets": {"held_out": missing}}, "evaluation.sets.held_out.source"),
        ({"evaluation.sets": {"held_out": PROBLEMS | {"source": rows_file(tmp_path)}}}, "evaluation.sets.held_out.args"),
        ({"cold_start.source": missing}, "cold_start.source.source"),
    ):
        with pytest.raises(PromptError, match=f"^{field}: "):
            train_tiny(tmp_path, **changes)


def test_a_device_that_is_not_there_comes_with_one_that_is():
    with pytest.raises(ModelError, match=r'model.device: .cuda:63., but .* Set model.device to "cpu", or to "auto"'):
        pick_device(ModelConfig(device="cuda:63"))


# -- run folders -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../up", "a/b", "/tmp/x", ".", "..", "a\\b", "a\0b"])
def test_a_run_stays_inside_its_folder(tmp_path, name):
    with pytest.raises(RunError, match=r"^name: .* is a path; give a plain folder name"):
        RunFolder.create(tiny(tmp_path / "runs", name))
    assert not list(tmp_path.iterdir())


def test_ordinary_names_are_taken_as_they_are():
    for name in ("second", "a.b", "..x", "größer 2", "x=1"):
        assert check_name(name) == name


def test_runs_of_one_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr("cohort.observe.run_folder.time.strftime", lambda form: "20260101-000000")
    recipe = tiny(tmp_path / "runs", "")
    names = []
    for _ in range(3):
        folder = RunFolder.create(recipe)
        folder.metrics_file.touch()
        names.append(folder.root.name)
    first = "column_addition-20260101-000000"
    assert names == [first, f"{first}-2", f"{first}-3"]
    with ThreadPoolExecutor(8) as pool:  # the kernel makes a folder once, whoever asks
        made = list(pool.map(make_new_folder, [tmp_path / "same"] * 40))
    assert len(set(made)) == 40


@pytest.mark.parametrize(
    "changes",
    [
        {"prompts.source": "task:colum_addition"},
        {"prompts.source": "nofile.jsonl", "prompts.args": {}},
        {"rewards": [{"function": "math_anwser"}]},
        {"rewards": [{"function": "broken_rewards:no_such"}]},
        {"rewards": [{"function": "exact_match", "args": {"colour": 1}}]},
        {"model.source": "/no/such/model"},
        {"monitors.also": ["tensorbord"]},
        {"evaluation.sets": {"late": {"source": "nofile.jsonl"}}},
    ],
    ids=str,
)
def test_a_refusal_before_the_first_step_leaves_no_folder(tmp_path, changes):
    with pytest.raises(CohortError):
        train_tiny(tmp_path / "deep" / "runs", "mine" if "rewards" in changes else "", **changes)
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_takes_nothing_that_was_there(tmp_path):
    """Neither a folder that somebody else made, nor one in which something was earned, nor its neighbours."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    other = RunFolder.create(tiny(tmp_path, "other"))
    other.metrics_file.touch()
    other.discard()
    with pytest.raises(RewardError):
        train_tiny(tmp_path, "mine", rewards=[{"function": "math_anwser"}])
    with pytest.raises(RewardError):
        train_tiny(tmp_path, "new", rewards=[{"function": "math_anwser"}])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "other"]
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(fork server, a finished run of two steps)."""
    folder = tmp_path_factory.mktemp("mistakes")
    with fork_server(folder) as server:
        recipe = write_recipe(
            folder / "tiny.toml", **{"train.num_steps": 2, "cold_start.num_steps": 4, "evaluation.samples": 2}
        )
        child = server.run("train", recipe, "name=run")
        assert child.wait() == 0, child.output
        yield server, folder / "runs" / "run"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("evaluation.max_problems=4", "Give settings with --set: --set evaluation.max_problems=4"),
        ("runs/rnu", "runs/rnu: no such folder; did you mean 'run'? Name a run, a model folder or a hub id"),
        ("./model", "./model: no such folder"),
        ("runs", "runs is neither a run (it has no recipe.toml) nor a model"),
        ("tiny.toml", "tiny.toml is a file"),
    ],
)
def test_all_targets_are_looked_at_before_one_is_evaluated(world, word, said):
    server, run = world
    child = server.run("evaluate", run, word)
    assert child.wait() == 1
    assert said in child.output
    assert "evaluating" not in child.output


def test_a_finished_run_says_that_an_edit_is_not_used_and_how_to_train_longer(world):
    server, run = world
    child = server.run("resume", run)
    assert child.wait() == 0
    assert "is finished" in child.output
    assert "recipe.toml" not in child.output
    recipe = run / "recipe.toml"
    before = recipe.read_text()
    recipe.write_text(before.replace("num_steps = 2", "num_steps = 5"))
    try:
        child = server.run("resume", run)
        assert child.wait() == 0
        assert (
            "recipe.toml asks for 5 steps, but the run finished after 2: edits to a finished run have no effect."
            in child.output
        )
        advice = child.output.strip().rpartition("from its model: ")[2].split()
        assert advice == [f"model.source={run / 'model'}", "cold_start.num_steps=0", "name=NEW"]
        longer = server.run("train", run, *advice, "num_steps=1")
        assert longer.wait() == 0, longer.output
    finally:
        recipe.write_text(before)
    assert summary_of(run.parent / "NEW")["eval"]["before"] == summary_of(run)["eval"]["after"]  # the very same weights


# -- values that mean nothing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [path for path, field in list_leaf_fields(Recipe) if field.annotation in (int, float)]
    + ["rewards.0.weight", "rewards.0.threshold", "rewards.0.timeout_s"],
)
def test_true_is_no_number_in_any_field(path):
    """From the command line, from Python and from a file alike: all come through the same door."""
    for value in (True, False):
        with pytest.raises(RecipeError, match=rf"^{path}: {str(value).lower()} is not a number; give one, for example"):
            load_recipe(values={path: value})
    with pytest.raises(RecipeError, match="is not a number"):
        load_recipe(overrides=[f"{path}=true"])


def test_a_switch_takes_true_and_numbers_stay_numbers():
    recipe = load_recipe(overrides=["monitors.console=false", "learning_rate=1", "group_size=4.0", "seed=0"])
    assert (recipe.monitors.console, recipe.optimizer.learning_rate, recipe.train.group_size) == (False, 1.0, 4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["prompts_per_step=1e8"],
            "train.prompts_per_step = 100,000,000 × train.group_size = 8 makes 800,000,000 completions in a step",
        ),
        (["group_size=1000000"], "makes 32,000,000 completions in a step, which take at least 60 GiB"),
        (["prompts_per_step=2048", "group_size=2048"], "makes 4,194,304 completions"),
        (["evaluation.samples=100000000"], "100,000,000 completions of each problem"),
        (["max_completion_tokens=1000000000"], "sampling.max_completion_tokens = 1,000,000,000 makes"),
        (["passes_per_step=100000000"], "updates on each batch"),
        (["sampling.slots=1000000000"], "completions in parallel"),
        (["evaluation.resamples=1000000000000"], "resamples"),
        (["model.scratch.hidden_size=1000000"], "weights of attention"),
        (
            ["model.scratch.num_layers=1000000", "model.scratch.hidden_size=32", "model.scratch.intermediate_size=32"],
            "1,000,000 layers",
        ),
        (["model.lora.rank=1000000"], "columns of every adapter"),
        (["cold_start.batch_size=1000000000"], "demonstrations in a batch"),
    ],
)
def test_sizes_that_no_machine_holds_are_refused_with_what_they_would_take(words, said):
    with pytest.raises(RecipeError) as raised:
        load_recipe(overrides=words)
    assert said in str(raised.value)
    assert "GiB" in str(raised.value)
    assert "Lower " in str(raised.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["clip_high=1e308"], "algorithm.clip_high: 1e+308 is too large to compute with"),
        (["kl_coef=1e39"], "algorithm.kl_coef: 1e+39 is too large"),
        (["rewards.0.weight=-1e308"], "rewards.0.weight: -1e+308 is too large"),
        (["rewards.0.timeout_s=1e308"], "rewards.0.timeout_s: Input should be less than or equal to 1000000"),
        (["temperature=1e-300"], "sampling.temperature: 1e-300 makes all completions of a group equal"),
        (["evaluation.temperature=1e-9"], "evaluation.temperature: 1e-09 makes the logits overflow. Use 0"),
    ],
)
def test_numbers_that_no_clock_or_float_holds_are_refused(words, said):
    with pytest.raises(RecipeError, match=re.escape(said)):
        load_recipe(overrides=words)


def test_large_sizes_that_people_use_are_taken():
    words = ["prompts_per_step=8192", "group_size=64", "max_completion_tokens=131072", "evaluation.samples=1024"]
    words += ["prompts.max_prompt_tokens=1000000000", "micro_batch_tokens=1000000000", "evaluation.max_problems=1000000000"]
    assert load_recipe(overrides=[*words, "num_steps=1000000000"]).train.prompts_per_step == 8192


def test_half_a_surrogate_pair_is_named_where_it_comes_in(tmp_path):
    with pytest.raises(
        RecipeError, match=r"^prompts\.system: 'a\\\\ud83d' contains a character that cannot be written as UTF-8"
    ):
        load_recipe(values={"prompts.system": "a\ud83d"})
    with pytest.raises(RecipeError, match=r"^rewards\.0\.args\.x\.0: "):
        load_recipe(values={"rewards": [{"function": "exact_match", "args": {"x": ["\udcff"]}}]})
    for column in ("prompt", "gold", "extra"):
        rows = [*ROWS[:3], ROWS[3] | {column: ["cut", {"deep": "\ud83d"}] if column == "extra" else "1\ud83d"}]
        with pytest.raises(PromptError, match=f"line 4: column '{column}' contains half of a surrogate pair"):
            load_rows(PromptsConfig(source=rows_file(tmp_path, rows)), 0)
        with pytest.raises(PromptError, match=f"column '{column}' contains half"):
            load_rows(PromptsConfig(), 0, rows)
    whole = [ROWS[0] | {"prompt": "1+1=\U0001f600 \u00e9"}]
    assert load_rows(PromptsConfig(source=rows_file(tmp_path, whole)), 0) == whole


# -- examples ----------------------------------------------------------------------------------------------------------


def test_an_interrupted_example_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import custom_reward

    monkeypatch.setattr("cohort.training.cold_start.cold_start", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    sizes = {"model.scratch.hidden_size": 32, "model.scratch.intermediate_size": 64, "model.scratch.num_layers": 1}
    few = {"evaluation.samples": 2, "evaluation.max_problems": 4, "prompts.limit": 32, "monitors.console": False}
    run = custom_reward.main(runs_folder=str(tmp_path), name="stopped", **sizes, **few, num_steps=1, prompts_per_step=2)
    assert run.status == "interrupted"
    advice = capsys.readouterr().out.strip()
    assert advice == f"stopped; to go on: cohort.resume({str(run.folder)!r}, rewards=[correct, true_steps])"
    monkeypatch.setattr("cohort.training.cold_start.cold_start", lambda *_: None)
    resumed = cohort.resume(run.folder, rewards=[custom_reward.correct, custom_reward.true_steps])
    assert resumed.status == "finished"


@pytest.mark.parametrize("name", [file.stem for file in EXAMPLES.glob("*.py") if file.stem != "mlflow_monitor"])
def test_an_example_asked_for_help_gives_help(name):
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--help"]
    done = subprocess.run(command, env=ONE_THREAD, capture_output=True, text=True, timeout=120, check=True)
    assert f"usage: {name}.py" in done.stdout
    assert f"python examples/{name}.py" in done.stdout
    assert "step" not in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("function", "words"),
    [("python:mine", "cohort.resume('runs/x', rewards=[...]) from Python"), ("math_answer", "cohort resume runs/x")],
)
def test_an_interrupted_run_names_a_way_to_go_on_that_works(function, words):
    """A function of a notebook cannot be imported by `cohort resume`."""
    recipe = load_recipe(values={"rewards": [{"function": function}]})
    run: Any = SimpleNamespace(recipe=recipe, folder=SimpleNamespace(root=Path("runs/x")))
    assert words in Session._resume_command(run)


def test_a_reference_cannot_come_in_the_middle_of_a_run(tmp_path):
    """It was said that the starting weights had changed, of a run that had never needed them."""
    settings = {"algorithm.name": "dr_grpo", "train.num_steps": 3, "evaluation.samples": 0, "checkpoints.every_steps": 1}
    folder = train_tiny(tmp_path, "half", **settings).folder
    for step in (folder / "checkpoints").iterdir():
        if step.name == "step-3":
            shutil.rmtree(step)
    shutil.rmtree(folder / "model")
    (folder / "summary.json").unlink()
    file = folder / "recipe.toml"
    file.write_text(file.read_text().replace("kl = false", "kl = true"))
    with pytest.raises(RunError, match=r"began without a reference.*monitors\.kl"):
        cohort.resume(folder)


def test_messages_with_images_are_refused_by_name_and_lists_of_texts_are_joined():
    def prompt(*parts: Any) -> list[dict[str, Any]]:
        return [{"role": "user", "content": list(parts)}]

    text = {"type": "text", "text": "What is it?"}
    config = PromptsConfig(source="python:rows")
    for part, name in [
        ({"type": "image", "image": "a.png"}, "'image'"),
        ({"type": "image_url", "image_url": {"url": "x"}}, "'image_url'"),
        ({"type": "input_audio", "input_audio": {}}, "'input_audio'"),
        ({"image": "a.png"}, "with the columns 'image'"),
    ]:
        with pytest.raises(PromptError, match=f"message 0 has a part .*{name}.*images and audio are not supported"):
            render({"prompt": prompt(part, text)}, config, "row 0")
    for content in ([], ["a text"], 3, None):
        with pytest.raises(PromptError, match="the content of message 0 must be text"):
            render({"prompt": [{"role": "user", "content": content}]}, config, "row 0")
    assert render({"prompt": prompt(text, {"type": "text", "text": " Say."})}, config, "row 0") == [
        {"role": "user", "content": "What is it? Say."}
    ]


def test_nobody_is_trusted_who_is_not_there():
    for word in ("model.trust_remote_code", "teacher.trust_remote_code", "reward_model.trust_remote_code", "trust_remote_code"):
        with pytest.raises(RecipeError, match=r"trust_remote_code: \w+\.source names no model"):
            load_recipe(None, [f"{word}=true"])
    with pytest.raises(RecipeError, match=r"evaluation\.sets\.mine\.chat_template: a run has one chat template"):
        build_recipe({"evaluation": {"sets": {"mine": {"source": "x.jsonl", "chat_template": "y.jinja"}}}})


def test_a_key_in_the_wrong_section_names_the_one_section_that_training_reads(tmp_path):
    file = tmp_path / "misplaced.toml"
    file.write_text("[train]\nlearning_rate = 1e-4\n")
    with pytest.raises(RecipeError, match=r"'learning_rate' in \[train\]; it belongs to optimizer.learning_rate$"):
        load_recipe(file)
