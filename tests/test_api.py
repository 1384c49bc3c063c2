"""`cohort.train(...)` as documented: rows in every shape, TRL's reward functions unchanged, a model that loads elsewhere."""

from __future__ import annotations

import inspect
import json
import re
import string
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import cohort
from cohort.engine.protocol import EngineSetup
from cohort.errors import ModelError, PromptError, RecipeError, RewardError, RunError
from cohort.model.scratch import build_scratch
from cohort.recipe.schema import ScratchConfig
from cohort.types import NoiseKey, Prompt, Sampling
from session_tools import differences, digit_share, rows_of

TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model folder as a person would have one: random weights, printable characters, a chat template."""
    folder = tmp_path_factory.mktemp("model")
    shape = ScratchConfig(
        hidden_size=16,
        intermediate_size=24,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        max_positions=96,
        characters=string.printable,
    )
    net, tokenizer = build_scratch(shape, (), 0)
    tokenizer.chat_template = TEMPLATE
    net.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def quick(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


SETTINGS: dict[str, Any] = {
    "group_size": 4,
    "num_steps": 2,
    "prompts_per_step": 4,
    "max_completion_tokens": 8,
    "learning_rate": 1e-3,
    "evaluation": {"samples": 2, "resamples": 100, "max_problems": 4},
    "monitors": {"console": False},
}
ROWS = [{"prompt": f"{n} plus {n} is", "answer": str(2 * n)} for n in range(20)]
CHATS = [{"prompt": [{"role": "user", "content": f"What is {n}?"}], "ground_truth": str(n)} for n in range(12)]


def correct(completions, answer, **columns):
    """The function of the design, as it stands there."""
    return [float(c.strip().endswith(a)) for c, a in zip(completions, answer)]  # noqa: B905


# -- rows --------------------------------------------------------------------------------------------------------------


def test_rows_in_every_shape_give_the_same_run(model, tmp_path):
    """A list of dicts, a datasets.Dataset, a DataFrame and a path: one run, bit for bit."""
    import datasets
    import pandas

    file = tmp_path / "rows.json"
    file.write_text(json.dumps({"version": 1, "data": ROWS}))
    shapes = {"list": ROWS, "dataset": datasets.Dataset.from_list(ROWS), "frame": pandas.DataFrame(ROWS), "path": file}
    runs = {
        name: cohort.train(model=model, prompts=rows, rewards=[digit_share], name=name, **SETTINGS)
        for name, rows in shapes.items()
    }
    for name in shapes:
        assert differences(runs[name].folder, runs["list"].folder) == [], name


def test_the_result_says_where_everything_is(model, tmp_path):
    run = cohort.train(model=model, prompts=ROWS, rewards=[here(correct)], name="result", **SETTINGS)
    assert [row["step"] for row in run.metrics] == list(range(1, run.summary["steps"] + 1))
    assert isinstance(run, cohort.RunResult)
    assert (run.status, run.folder.resolve()) == ("finished", tmp_path / "runs" / "result")
    assert run.summary == json.loads((run.folder / "summary.json").read_text())
    assert run.model == run.folder / "model"
    assert repr(run) == f"RunResult(finished, 2 steps, pass@1 0.0 % -> 0.0 %, {tmp_path}/runs/result)"
    assert run.summary["eval"]["before"]["pass@1"].keys() == {
        "value",
        "low",
        "high",
        "reason",
    }  # too few problems for an interval
    assert [row["step"] for row in rows_of(run.folder)] == [1, 2]


def test_the_saved_model_loads_and_writes_what_the_engine_writes(model):
    """AutoModelForCausalLM.generate, greedy, token for token, on the folder that a run leaves."""
    from cohort.engine import sample_groups
    from cohort.engine.local import LocalEngine

    run = cohort.train(model=model, prompts=ROWS, rewards=[digit_share], **SETTINGS)
    net, tokenizer = AutoModelForCausalLM.from_pretrained(run.model), AutoTokenizer.from_pretrained(run.model)
    assert tokenizer.chat_template == TEMPLATE
    texts = [row["prompt"] for row in ROWS[:5]]
    prompts = [Prompt(n, text, {}, tuple(tokenizer(text)["input_ids"])) for n, text in enumerate(texts)]
    engine = LocalEngine(EngineSetup(AutoModelForCausalLM.from_pretrained(run.model), tokenizer.decode))
    sampling = Sampling(1, 0.0, 12, (tokenizer.eos_token_id,))
    ours = sample_groups(engine, prompts, sampling, NoiseKey(0, "evaluate", 0))
    for text, prompt, group in zip(texts, prompts, ours, strict=True):
        ids = net.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=12, do_sample=False)[
            0, len(prompt.token_ids) :
        ]
        assert tuple(ids.tolist()) == group[0].token_ids
        assert tokenizer.decode(ids) == tokenizer.decode(group[0].token_ids)


def test_a_base_model_starts_without_a_cold_start_and_changes(model):
    run = cohort.train(model=model, prompts=ROWS, rewards=[digit_share], **SETTINGS)
    before, after = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (model, run.model))
    assert all(not torch.equal(before[name], after[name]) for name in before)
    assert not (run.folder / "start").exists()


def test_a_recipe_file_with_overrides_from_python(model, tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_text(
        '[[rewards]]\nfunction = "math_answer"\n[prompts]\nsource = "task:column_addition"\nargs = { digits = 1 }\n'
    )
    run = cohort.train(recipe=file, model=model, **SETTINGS)
    assert run.status == "finished"
    assert rows_of(run.folder)[0]["rollout/completions"] == 16


# -- rewards as TRL's documentation has them ---------------------------------------------------------------------------


def reward_len(completions, **kwargs):
    return [-abs(20 - len(completion)) for completion in completions]


def format_reward_func(completions, **kwargs):
    """Reward function that checks if the completion has a specific format."""
    pattern = r"^<think>.*?</think><answer>.*?</answer>$"
    completion_contents = [completion[0]["content"] for completion in completions]
    matches = [re.match(pattern, content) for content in completion_contents]
    return [1.0 if match else 0.0 for match in matches]


def reward_func(completions, ground_truth, **kwargs):
    # Regular expression to capture content inside \boxed{}
    matches = [re.search(r"\\boxed\{(.*?)\}", completion[0]["content"]) for completion in completions]
    contents = [match.group(1) if match else "" for match in matches]
    # Reward 1 if the content is the same as the ground truth, 0 otherwise
    return [1.0 if c == gt else 0.0 for c, gt in zip(contents, ground_truth)]  # noqa: B905


async def async_reward_func(prompts, completions, **kwargs):
    # Simulate some asynchronous operation
    import asyncio

    await asyncio.sleep(0.01)
    # Simple reward: 1.0 if the completion is non-empty, else 0.0
    return [1.0 if completion else 0.0 for completion in completions]


def here(function: Any) -> Any:
    """The same source as a closure: it then runs in this process, and a worker need not import this file."""
    scope: dict[str, Any] = {"re": re}
    exec(inspect.getsource(function), scope)
    made = scope[function.__name__]
    made.__module__ = "__main__"
    return made


def test_the_length_reward_of_the_quick_start(model):
    run = cohort.train(model=model, prompts=ROWS, rewards=here(reward_len), **SETTINGS)
    row = rows_of(run.folder)[0]
    assert -20 <= row["reward/reward_len/mean"] == row["reward/mean"] <= 0
    assert row["reward/faults"] == 0


def test_format_and_answer_rewards_on_chat_prompts(model):
    """Completions arrive as message lists, columns by name; the prompt ids are those of the rendered chat."""
    import pyarrow.parquet as pq

    run = cohort.train(model=model, prompts=CHATS, rewards=[here(reward_func), here(format_reward_func)], **SETTINGS)
    row = rows_of(run.folder)[0]
    assert row["reward/reward_func/faults"] == row["reward/format_reward_func/faults"] == 0
    assert row["reward/reward_func/mean"] == 0.0
    table = pq.read_table(run.folder / "rollouts/step-000001.parquet")
    tokenizer = AutoTokenizer.from_pretrained(model)
    messages = json.loads(table["prompt"][0].as_py())
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert tokenizer.decode(table["prompt_ids"][0].as_py()) == expected


def test_the_async_reward(model):
    run = cohort.train(model=model, prompts=ROWS, rewards=[here(async_reward_func), here(reward_len)], **SETTINGS)
    assert rows_of(run.folder)[0]["reward/async_reward_func/faults"] == 0


def test_an_importable_function_is_written_by_name_and_a_closure_as_python(model):
    run = cohort.train(model=model, prompts=ROWS, rewards=[digit_share, here(reward_len)], **SETTINGS)
    recipe = cohort.load_recipe(run.folder / "recipe.toml")
    assert [reward.function for reward in recipe.rewards] == ["session_tools:digit_share", "python:reward_len"]


def spread(rewards_PG, scored_PG, *, power=1.0):
    """Reward minus the mean of its group, to a power."""
    centred_PG = rewards_PG - rewards_PG.mean(1, keepdim=True)
    return centred_PG.sign() * centred_PG.abs() ** power


def test_an_advantage_of_ones_own_is_a_word_or_the_function_itself(model):
    def train(name, **words):
        return cohort.train(model=model, prompts=ROWS, rewards=[digit_share], name=name, **SETTINGS | words)

    by_name = train("by_name", advantage="test_api:spread", **{"algorithm.args": {"power": 2.0}})
    itself = train("itself", advantage=spread, **{"algorithm.args.power": 2.0})
    in_section = train("in_section", algorithm={"advantage": spread, "args": {"power": 2.0}})
    assert differences(itself.folder, by_name.folder) == differences(in_section.folder, by_name.folder) == []
    document = json.loads((itself.folder / "algorithm.json").read_text())
    assert document["advantage"]["function"] == "test_api:spread"
    assert document["advantage"]["args"] == {"power": 2.0}
    assert 'advantage = "test_api:spread"' in (itself.folder / "recipe.toml").read_text()


@pytest.mark.parametrize("word", ["advantage", "algorithm.region", "aggregation"])
def test_a_function_that_no_other_process_can_import_is_refused_with_the_way_out(model, word):
    with pytest.raises(
        RecipeError, match=rf"{word}: other processes cannot import .*Put it into a file, my_module\.py, and give"
    ):
        cohort.train(model=model, prompts=ROWS, rewards=[digit_share], **{word: lambda rewards_PG: rewards_PG})


def test_weights_and_names_of_parts(model):
    rewards = [{"function": here(reward_len), "weight": 0.5}, {"function": "exact_match", "weight": 0.0, "outcome": True}]
    run = cohort.train(model=model, prompts=ROWS, rewards=rewards, **SETTINGS)
    row = rows_of(run.folder)[0]
    assert row["reward/mean"] == pytest.approx(0.5 * row["reward/reward_len/mean"])


# -- monitors ----------------------------------------------------------------------------------------------------------


class Watcher:
    """A monitor as a person writes one: of no class of ours, with what it cares about."""

    def __init__(self):
        self.stages, self.rows, self.ends, self.progress = [], [], [], {}

    def on_stage(self, stage, total=0, done=0):
        self.stages.append((stage, total, done))

    def on_progress(self, done, values):
        self.progress[self.stages[-1][0]] = done

    def on_metrics(self, row):
        self.rows.append(row)

    def on_finish(self, summary):
        self.ends.append(summary["status"])

    def close(self):
        self.ends.append("closed")


class Failing(Watcher):
    def on_metrics(self, row):
        raise ValueError("no room for this row")


def test_monitors_from_python_watch_and_change_no_bit(model, capfd):
    watcher, failing = Watcher(), Failing()
    arguments = {"model": model, "prompts": ROWS, "rewards": [digit_share], **SETTINGS}
    plain = cohort.train(**arguments, name="plain")
    del arguments["monitors"]
    watched = cohort.train(**arguments, console=False, monitors=[failing, watcher], name="watched")
    assert differences(watched.folder, plain.folder) == []
    assert watcher.rows == rows_of(watched.folder)
    assert [row["step"] for row in watcher.rows] == [1, 2]
    numbers = watched.summary["eval"]["sets"]["held_out"]["after"]
    drawn = int(numbers["completions"]) + int(numbers["problems"])  # and one greedy completion each
    assert watcher.stages == [("baseline evaluation", drawn, 0), ("training", 2, 0), ("final evaluation", drawn, 0)]
    assert watcher.progress == {"baseline evaluation": drawn, "final evaluation": drawn}
    assert watcher.ends == failing.ends == ["finished", "closed"]
    assert (
        capfd.readouterr().err.count("Failing failed in on_metrics (ValueError: no room for this row). Training continues") == 1
    )


def test_monitors_are_handed_to_a_resumed_run_again(model):
    from cohort.errors import Interrupted

    class Stopping(Watcher):
        def on_metrics(self, row):
            super().on_metrics(row)
            raise Interrupted("SIGTERM")

    first, second = Stopping(), Watcher()
    arguments = {"model": model, "prompts": ROWS, "rewards": [digit_share], **SETTINGS}
    run = cohort.train(**arguments | {"monitors": [first], "console": False})
    assert (run.status, [row["step"] for row in first.rows]) == ("interrupted", [1])
    assert cohort.resume(run.folder, monitors=[second]).status == "finished"
    assert second.rows == rows_of(run.folder)  # step 1 had not been finished, and is told again
    assert [row["step"] for row in second.rows] == [1, 2]
    assert second.ends == ["finished", "closed"]


# -- resume ------------------------------------------------------------------------------------------------------------


def test_resume_needs_nothing_but_the_folder(model, monkeypatch):
    """Rows from a generator, an importable reward and a loaded model: after a stop inside the run, the folder alone is enough.

    The model is trained as its folder is, bit for bit, and the object stays as it was; the run folder may have moved.
    """
    from cohort import loop
    from cohort.errors import Interrupted

    whole = cohort.train(model=model, prompts=(row for row in ROWS), rewards=[digit_share], name="whole", **SETTINGS)
    net = AutoModelForCausalLM.from_pretrained(model).train()  # its tokenizer is where it was loaded from
    before = {name: value.clone() for name, value in net.state_dict().items()}
    original = loop.observe_step

    def stopped(parts, state, watch):
        if state.step == 1:
            raise Interrupted("SIGTERM")
        original(parts, state, watch)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "observe_step", stopped)
        run = cohort.train(model=net, prompts=(row for row in ROWS), rewards=[digit_share], name="stopped", **SETTINGS)
    assert (run.status, run.summary["steps"]) == ("interrupted", 1)
    assert repr(run).startswith(f"RunResult(interrupted, 1 step, pass@1 0.0 % -> not measured, {run.folder}")
    run = cohort.resume(run.folder.rename(run.folder.with_name("moved")))
    assert run.status == "finished"
    assert differences(run.folder, whole.folder) == []
    assert cohort.resume(run).status == "finished"
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(value.requires_grad and value.grad is None for value in net.parameters())


def test_rows_that_json_cannot_carry_are_asked_for_again(model):
    import datetime

    rows = [row | {"when": datetime.date(2024, 1, 1)} for row in ROWS]
    run = cohort.train(model=model, prompts=rows, rewards=[here(reward_len)], **SETTINGS)
    assert not (run.folder / "prompts.jsonl").exists()
    (run.folder / "summary.json").unlink()
    with pytest.raises(RunError, match=r"cohort\.resume"):
        cohort.resume(run.folder, rewards=[here(reward_len)])
    assert cohort.resume(run.folder, prompts=rows, rewards=[here(reward_len)]).status == "finished"


# -- evaluation --------------------------------------------------------------------------------------------------------

OTHERS = [{"prompt": f"{n} minus {n} is", "answer": "0"} for n in range(6)]


def keys_of(run, label="after"):
    return {
        name: held["problem"]
        for row in rows_of(run, "evaluations.jsonl")
        if row["label"] == label
        for name, held in row["per_problem"].items()
    }


def test_rows_to_evaluate_on_are_the_problems_and_need_not_be_handed_in_again(model, tmp_path, monkeypatch):
    """A frame and a file as two sets; nothing is held out; `cohort.evaluate` gives the run's own numbers, to the last digit."""
    import pandas

    from cohort import loop
    from cohort.errors import Interrupted
    from cohort.evaluation.evaluate import make_problem_key

    file = tmp_path / "hard.json"
    file.write_text(json.dumps([{"prompt": "9 plus 9 plus 9 is"}]))
    settings = SETTINGS | {"prompts_per_step": 20, "num_steps": 1}
    with monkeypatch.context() as patch:
        patch.setattr(loop, "observe_step", lambda *_: (_ for _ in ()).throw(Interrupted("SIGTERM")))
        sets = {"easy": pandas.DataFrame(OTHERS), "hard": file}
        run = cohort.train(model, ROWS, [digit_share], evaluate_on=sets, name="sets", **settings)
    run = cohort.resume(run)
    expected = [make_problem_key(Prompt(n, row["prompt"], row, ())) for n, row in enumerate(OTHERS)]
    assert keys_of(run.folder) == keys_of(run.folder, "before") == {"easy": expected[:4], "hard": keys_of(run.folder)["hard"]}
    assert rows_of(run.folder)[0]["rollout/epoch"] == 1.0  # all twenty rows were trained on
    again = cohort.evaluate(run)
    assert {name: {what: e.to_json() for what, e in numbers.items()} for name, numbers in again.sets.items()} == {
        name: {what: e for what, e in sides["after"].items() if isinstance(e, dict)}
        for name, sides in run.summary["eval"]["sets"].items()
    }
    words = {"samples": 2, "resamples": 100, "max_completion_tokens": 8}
    here = cohort.evaluate(run.model, OTHERS[:4], digit_share, **words)
    assert here.sets["prompts"]["reward"] == again.sets["easy"]["reward"]
    assert here.per_problem["prompts"] == again.per_problem["easy"]
    assert re.fullmatch(r"Evaluation\(prompts: 4 problems, pass@1 0\.0 %, .*reward 0\.\d+\)", repr(here)), (
        here
    )  # no interval of 4
    every = cohort.evaluate(run, OTHERS, samples=2, resamples=100, greedy=False)  # prompts replaced, the rest is the run's own
    assert every.counts["prompts"]["problems"] == 6
    assert every.per_problem["prompts"].success[:4] == again.per_problem["easy"].success
    (run.folder / "summary.json").unlink()
    with pytest.raises(RunError, match="no evaluation set 'held_out'; it has: easy, hard"):
        cohort.resume(run, evaluate_on=OTHERS)


def test_a_loaded_model_is_evaluated_as_its_folder_is(model):
    net, tokenizer = AutoModelForCausalLM.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    words = {"samples": 2, "max_completion_tokens": 8, "resamples": 100}
    ours = cohort.evaluate(net.train(), ROWS[:6], [digit_share], tokenizer=tokenizer, **words)
    theirs = cohort.evaluate(model, ROWS[:6], [digit_share], **words)
    assert (ours.per_problem, ours.sets) == (theirs.per_problem, theirs.sets)
    assert net.training
    assert ours.describe() == ours.describe("prompts")


def test_objects_that_would_not_be_loaded_again_as_what_they_are_are_refused(model):
    import peft
    from transformers import AutoModel

    class Mine(type(AutoModelForCausalLM.from_pretrained(model))):
        pass

    net = AutoModelForCausalLM.from_pretrained(model)
    nameless = AutoModelForCausalLM.from_config(net.config)
    nameless.config._name_or_path = nameless.name_or_path = ""
    adapted = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(model), peft.LoraConfig(target_modules=["q_proj"]))
    with torch.device("meta"):
        on_meta = AutoModelForCausalLM.from_config(net.config)
    for given, words in {
        torch.nn.Linear(2, 2): "got a Linear",
        Mine(net.config): "not as Mine",
        AutoModel.from_pretrained(model): "not as LlamaModel",
        nameless: "pass tokenizer= as well",
        adapted: "has PEFT adapters",
        on_meta: "weights on the meta device",
    }.items():
        for call in (cohort.train, cohort.evaluate):
            with pytest.raises(ModelError, match=words):
                call(given, ROWS, [digit_share])


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"prompts": ROWS}, RecipeError, "needs rewards="),
        ({"rewards": [digit_share]}, RecipeError, "needs prompts="),
        ({"train_dataset": ROWS, "rewards": [digit_share]}, RecipeError, "^train_dataset: here it is called prompts"),
        ({"prompts": ROWS, "reward_funcs": [digit_share]}, RecipeError, "^reward_funcs: here it is called rewards"),
        (
            {"prompts": ROWS, "rewards": [digit_share], "eval_dataset": ROWS},
            RecipeError,
            "^eval_dataset: here it is called evaluate_on",
        ),
        (
            {"prompts": ROWS, "rewards": [digit_share], "model": None},
            RecipeError,
            r"^cohort.train needs model=\.\.\.: a folder, a hub id",
        ),
        (
            {"prompts": ROWS, "rewards": [digit_share], "model": {"lora": {"rank": 4}}},
            RecipeError,
            "^cohort.train needs model=",
        ),
        ({"prompts": ROWS, "rewards": [digit_share], "rollout_func": max}, RecipeError, "completions come from an engine"),
        ({"prompts": ROWS, "rewards": [digit_share], "optimizers": ()}, RecipeError, "AdamW is the only optimizer"),
        (
            {"prompts": ROWS, "rewards": ["org/reward-model"]},
            RewardError,
            '"function": "reward_model", "args": {"model": "org/reward-model"',
        ),
        (
            {"prompts": ROWS, "rewards": [digit_share], "name": "x" * 201},
            RunError,
            "^name: 'x+'... has 201 bytes; give at most 200",
        ),
        ({"prompts": ROWS, "rewards": [digit_share], "num_generations": 8}, RecipeError, "train.group_size"),
        ({"prompts": ROWS, "rewards": [digit_share], "monitors": [Watcher]}, RecipeError, r"monitors\.0: Watcher is a class"),
        ({"prompts": ROWS, "rewards": [digit_share], "monitors": ["wandb"]}, RecipeError, r"also=\['wandb'\]"),
        ({"prompts": ROWS, "rewards": [digit_share], "monitors": Watcher()}, RecipeError, "monitors: give a list"),
        ({"prompts": ROWS, "rewards": [digit_share], "tokenizer": object()}, RecipeError, "tokenizer: a model folder"),
        (
            {"prompts": ROWS, "rewards": [digit_share], "evaluate_on": "nowhere.json"},
            RecipeError,
            "is not a file or folder here",
        ),
        (
            {"prompts": ROWS, "rewards": [digit_share], "evaluate_on": {"a/b": OTHERS}},
            RecipeError,
            "is not a valid name of a set",
        ),
        ({"prompts": ROWS, "rewards": [digit_share], "evaluate_on": {}}, RecipeError, "it is empty"),
        (
            {"prompts": ROWS, "rewards": [digit_share], "evaluate_on": {"prompt": ["a"]}},
            RecipeError,
            "not a mapping of columns",
        ),
        (
            {"prompts": ROWS, "rewards": [digit_share], "evaluate_on": OTHERS, "held_out": 0.2},
            RecipeError,
            "held_out also chooses the evaluation set",
        ),
        (
            {"prompts": ROWS, "rewards": [digit_share], "evaluate_on": OTHERS, "evaluation": {"samples": 0}},
            RecipeError,
            "evaluation.samples is 0",
        ),
        ({"prompts": ROWS, "rewards": [digit_share], "evaluate_on": ROWS[:3]}, PromptError, "3 of its prompts also occur"),
        (
            {"prompts": ROWS, "rewards": [digit_share], "evaluate_on": [{"q": "a"}]},
            PromptError,
            r"evaluation\.sets\.held_out, row 0",
        ),
        ({"prompts": [{"question": "a"}], "rewards": [digit_share]}, PromptError, "question"),
        ({"prompts": [], "rewards": [digit_share]}, PromptError, "no rows|no prompts|empty"),
        (
            {"prompts": CHATS, "rewards": [digit_share], "system": "Be brief.", "max_prompt_tokens": 3},
            PromptError,
            "max_prompt_tokens",
        ),
    ],
)
def test_mistakes_are_answered_in_words(model, arguments, error, words):
    with pytest.raises(error, match=words):
        cohort.train(**{"model": model} | SETTINGS | arguments)


@pytest.mark.parametrize(("raised", "said"), [(KeyboardInterrupt, "raised KeyboardInterrupt"), (SystemExit, "called sys.exit")])
def test_a_monitor_that_ends_the_program_ends_the_run_with_a_sentence(model, raised, said):
    class Impatient:
        def on_metrics(self, row):
            raise raised

    with pytest.raises(RunError, match=f"trainer's process {said}.*train.stop_when"):
        cohort.train(model, ROWS, [digit_share], **SETTINGS | {"monitors": [Impatient()]})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "needs prompts="),
        ({"prompts": ROWS}, "needs rewards="),
        (
            {"prompts": ROWS, "rewards": [digit_share], "learning_rate": 1e-3},
            "optimizer.learning_rate: an evaluation .* does not read",
        ),
        ({"prompts": ROWS, "rewards": [digit_share], "sampling": {"temperature": 0.5}}, "sampling.temperature: an evaluation"),
        ({"prompts": ROWS, "rewards": [digit_share], "held_out": 0.5}, "evaluation.held_out: an evaluation"),
        (
            {"prompts": ROWS, "rewards": [digit_share], "num_generations": 4},
            "num_generations: cohort.evaluate calls it samples",
        ),
        (
            {"prompts": ROWS, "rewards": [digit_share], "max_completion_length": 4},
            "cohort.evaluate calls it max_completion_tokens",
        ),
        ({"prompts": ROWS, "rewards": [digit_share], "sample": 4}, "did you mean 'samples'"),
        ({"model": None, "prompts": ROWS, "rewards": [digit_share]}, "cohort.evaluate needs a model"),
        ({"prompts": ROWS, "rewards": [digit_share], "checkpoint": "best"}, "is not a run folder, so it has no checkpoints"),
    ],
)
def test_an_evaluation_refuses_what_it_would_not_read(model, arguments, words):
    with pytest.raises((RecipeError, RunError), match=words):
        cohort.evaluate(**{"model": model} | arguments)
