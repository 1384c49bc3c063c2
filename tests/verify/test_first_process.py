"""The first process of a container has no init above it: it has to reap orphans, and signals do not end it by default."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from cohort.base.processes import children_of
from cohort.tools.commands import COMMANDS
from cohort_verify.sandbox import JailUnavailable, find_tier
from session_tools import ONE_THREAD, summary_of, tree

UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def why_not() -> str:
    """Why no process here can be the first of a namespace; empty if one can."""
    if sys.platform != "linux" or not shutil.which("unshare"):
        return "unshare is not installed"
    ended = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True)
    return "" if ended.returncode == 0 else f"no process namespace can be made: {ended.stderr.strip()}"


needs_namespace = pytest.mark.skipif(bool(why_not()), reason=why_not() or "none")
REPOSITORY = Path(__file__).parents[2]

ZOMBIES = """
import os
def zombies():
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with open(f"/proc/{entry}/stat") as file:
            name, _, words = file.read().rpartition(")")
        if words.split()[0] == "Z":
            found.append(name)
    return found
"""

RUNS = (
    ZOMBIES
    + """
from cohort_verify.sandbox import Call, Limits, run_calls, run_script
ends = [run_script("print(1)", "").end for _ in range(3)]
ends += [run_script("while True: pass", "", Limits(cpu_s=0.1)).end]
ends += [run_calls("import os\\ndef f(): os._exit(0)", [Call("f")]).end for _ in range(2)]
print(os.getpid(), ends, zombies())
"""
)


@needs_namespace
@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
def test_programs_leave_no_zombies_to_a_trainer_that_is_the_first_process(tier, monkeypatch):
    monkeypatch.setenv("COHORT_JAIL", tier)
    try:
        find_tier()
    except JailUnavailable as problem:
        pytest.skip(str(problem))
    ended = subprocess.run([*UNSHARE, sys.executable, "-c", RUNS], env=os.environ, capture_output=True, text=True)
    assert ended.stdout == "1 ['finished', 'finished', 'finished', 'cpu', 'exit', 'exit'] []\n", ended.stderr


def first_process(words, **options):
    """(unshare, the id of the first process of the namespace as it is known out here)."""
    outer = subprocess.Popen([*UNSHARE, *words], stdout=subprocess.PIPE, text=True, **options)
    while not children_of(outer.pid):
        assert outer.poll() is None
        time.sleep(0.005)
    return outer, children_of(outer.pid)[0]


WAITS = """
import time
from cohort.base.processes import begin_process
begin_process()
print("begun", flush=True)
time.sleep(60)
"""


@needs_namespace
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_that_is_the_first_process(number):
    outer, inner = first_process([sys.executable, "-c", WAITS])
    assert outer.stdout is not None
    assert outer.stdout.readline() == "begun\n"
    os.kill(inner, number)
    assert outer.wait(60) == 130
    outer.stdout.close()


REWARD = """
import subprocess
def starts_orphans(completions, **columns):
    subprocess.run(["/bin/sh", "-c", "/bin/sleep 60 & setsid /bin/sleep 0.1 &"], check=True)
    return [0.0] * len(completions)
"""
TO_THE_END = (
    ZOMBIES
    + """
import sys
from cohort.cli import app
app(["resume", sys.argv[1]], standalone_mode=False)
print(os.getpid(), zombies(), [entry for entry in os.listdir("/proc") if entry.isdecimal()])
"""
)


@needs_namespace
@pytest.mark.prove
def test_a_trainer_that_is_the_first_process_is_interrupted_goes_on_and_leaves_nothing(tmp_path):
    import tomli_w

    rows = [{"prompt": f"{i}+{i}=", "tests": ["assert f(1) == 1"]} for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "orphans.py").write_text(REWARD)
    recipe = tree(**{"cold_start.num_steps": 0, "train.num_steps": 4, "checkpoints.every_steps": 1}) | {
        "prompts": {"source": "rows.jsonl", "max_prompt_tokens": 8},
        "rewards": [{"function": "code_tests"}, {"function": "orphans:starts_orphans"}],
        "evaluation": {"samples": 0},
        "name": "run",
    }
    (tmp_path / "recipe.toml").write_text(tomli_w.dumps(recipe))
    outer, inner = first_process([sys.executable, "-m", "cohort", "train", "recipe.toml"], cwd=tmp_path, env=ONE_THREAD)
    run = tmp_path / "runs" / "run"
    while not (run / "metrics.jsonl").is_file() or not (run / "metrics.jsonl").read_text():
        assert outer.poll() is None
        time.sleep(0.02)
    os.kill(inner, signal.SIGTERM)
    outer.communicate(timeout=120)
    assert summary_of(run)["status"] == "interrupted"
    ended = subprocess.run(
        [*UNSHARE, sys.executable, "-c", TO_THE_END, str(run)], cwd=tmp_path, env=ONE_THREAD, capture_output=True, text=True
    )
    assert ended.stdout.splitlines()[-1:] == ["1 [] ['1']"], ended.stderr
    assert (summary_of(run)["status"], summary_of(run)["steps"]) == ("finished", 4)


def test_the_container_recipe_names_what_is_there():
    """No engine is needed for that: files, extras, commands and the shell lines of the Dockerfile."""
    text = re.sub(r"\\\n\s*", "", (REPOSITORY / "Dockerfile").read_text())
    lines = [line.partition(" ") for line in text.splitlines() if line and not line.startswith("#")]
    patterns = (REPOSITORY / ".dockerignore").read_text().split()
    for sources in [line.split()[:-1] for word, _, line in lines if word == "COPY"]:
        for source in sources:
            assert (REPOSITORY / source).exists()
            assert f"!{source}" in patterns
    assert patterns[0] == "*"
    assert any(fnmatch.fnmatch("src/cohort/__pycache__", pattern) for pattern in patterns)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    shell = [line for word, _, line in lines if word == "RUN"]
    extras = {extra for line in shell for found in re.findall(r"'\.\[(.*?)\]'", line) for extra in found.split(",")}
    assert extras
    assert extras <= set(project["optional-dependencies"])
    for line in shell:
        assert subprocess.run(["/bin/sh", "-n", "-c", line]).returncode == 0
    said = dict(line[::2] for line in lines)
    assert said["FROM"].removeprefix("python:").split("-")[0] in " ".join(project["classifiers"])
    assert json.loads(said["ENTRYPOINT"]) == ["cohort"]  # a list: a line would make a shell the first process
    assert "cohort" in project["scripts"]
    assert said["USER"] != "root"
    page = (REPOSITORY / "docs" / "container.md").read_text()
    assert set(re.findall(r" cohort ([a-z]+) ", page)) - {"doctor", "train", "resume"} == set()
    assert {"doctor", "train", "resume"} <= set(COMMANDS)
