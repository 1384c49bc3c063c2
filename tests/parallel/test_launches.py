"""The same bits under the real torchrun: a script that trains twice, more threads, two hosts that are two network namespaces."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from ranks_tools import run_ranks

from session_tools import ONE_THREAD, ForkServer, Trap, differences, fork_server, write_recipe

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import namespaces

pytestmark = pytest.mark.prove

RECIPE: dict[str, object] = {
    "train.micro_batch_tokens": 32,
    "train.num_steps": 2,
    "train.prompts_per_step": 8,
    "train.minibatches_per_step": 1,
    "train.passes_per_step": 1,
    "cold_start.num_steps": 8,
    "cold_start.batch_size": 32,
    "evaluation.max_problems": 4,
    "evaluation.samples": 2,
    "checkpoints.every_steps": 1,
    "monitors.console": True,
}
TWICE = """
import sys, cohort
for name in ("first", "second"):
    result = cohort.train(recipe=sys.argv[1], name=name, runs_folder=sys.argv[2])
    assert result.status == "finished", result
    assert result.summary["steps"] == 2, "every rank knows how the run went"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ForkServer]:
    """Its folder holds a recipe, and the run "plain" of one process with one thread."""
    folder = tmp_path_factory.mktemp("launches")
    recipe = write_recipe(folder / "recipe.toml", **RECIPE)
    with fork_server(folder) as server:
        run_ranks(server, 0, "train", recipe, "name=plain", f"runs_folder={folder}")
        yield server


def launch(*options: str, ranks: int = 2) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *options]


def run(words: Sequence[str], threads: int = 1) -> str:
    """What the command printed; it must end well."""
    env = {**ONE_THREAD, **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())  # the console wraps its lines


def train(folder: Path, name: str) -> list[str]:
    return ["-m", "cohort", "train", str(folder / "recipe.toml"), f"name={name}", f"runs_folder={folder}"]


def test_a_script_trains_twice_under_torchrun(server):
    script = server.folder / "twice.py"
    script.write_text(TWICE, encoding="utf-8")
    said = run([*launch("--standalone"), str(script), str(server.folder / "recipe.toml"), str(server.folder)])
    assert said.count("loading ...") == 2, "one rank speaks"
    for name in ("first", "second"):
        assert differences(server.folder / name, server.folder / "plain") == []


def test_two_threads_everywhere_have_the_same_bits_on_two_ranks(server):
    run([sys.executable, *train(server.folder, "threads plain")], threads=2)
    said = run([*launch("--standalone"), *train(server.folder, "threads 2")], threads=2)
    assert "2 ranks on one host, 2 threads each; gradients are added in float64" in said
    assert differences(server.folder / "threads 2", server.folder / "threads plain") == []


def test_a_run_that_goes_on_with_other_threads_is_warned(server):
    stop = Trap("cohort.training.state:TrainState.finish_step", 1, signal=signal.SIGTERM, after=True)
    child = server.run(*train(server.folder, "stopped")[2:], traps=[stop])
    assert child.wait() == 130, child.output
    said = run([*launch("--standalone"), "-m", "cohort", "resume", str(server.folder / "stopped")], threads=2)
    assert "warning: the run was started with 1 thread per rank and resumes with 2" in said


def test_a_command_of_one_process_ends_at_once_under_torchrun(server):
    words = [*launch("--standalone"), "-m", "cohort", "report", str(server.folder / "plain")]
    done = subprocess.run(words, env=ONE_THREAD, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert "cohort report runs in one process: start it without torchrun" in done.stderr


# -- two hosts ---------------------------------------------------------------------------------------------------------


def test_two_hosts_have_the_same_bits_as_one_process(server):
    if why := namespaces.explain_no_hosts():
        pytest.skip(why)
    with namespaces.make_hosts() as hosts:
        started = []
        for place, words in enumerate(namespaces.write_launches(hosts, 29533, *train(server.folder, "hosts")[2:])):
            log = (server.folder / f"host-{place}.txt").open("w")
            started.append(subprocess.Popen(words, env=ONE_THREAD, stdout=log, stderr=subprocess.STDOUT))
        try:
            codes = [process.wait(300) for process in started]
        finally:
            for process in started:
                process.kill()
        logs = [(server.folder / f"host-{place}.txt").read_text(encoding="utf-8") for place in range(2)]
        assert codes == [0, 0], "\n".join(logs)
    assert differences(server.folder / "hosts", server.folder / "plain") == []
