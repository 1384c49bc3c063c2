"""A run that is killed anywhere, however often, ends with the same bits as one that was not.

The run has all that could break this: a cold start, three minibatches in two passes, KL to a reference that a resumed
process loads from start/, evaluation on the way. What is compared: model/, start/, the last checkpoint's weights and
optimizer, every metric of every step, evaluations, samples and rollouts; only times may differ.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cohort.observe.run_folder import RunFolder
from cohort.training import checkpoint
from session_tools import Trap, differences, fork_server, leftovers, prove_others, rows_of, summary_of, train_tiny, write_recipe


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(fork server, recipe file, folder for runs, the uninterrupted run)."""
    folder = tmp_path_factory.mktemp("kill")
    recipe = write_recipe(folder / "tiny.toml")
    with fork_server(folder) as server:
        child = server.run("train", recipe, "name=whole", f"runs_folder={folder}")
        assert child.wait() == 0, child.output
        yield server, recipe, folder, folder / "whole"


def finish(server, run: Path, limit: int = 3) -> str:
    """Resume until the run is finished; returns the output of the last process."""
    for _ in range(limit):
        child = server.run("resume", run, traps=())
        if child.wait() == 0:
            return child.output
    raise AssertionError(child.output)


def kill_and_resume(world, name: str, traps: list[Trap], pauses: list[float]) -> tuple[list[str], list[str]]:
    """Start, die at each trap and after each pause in turn, then go on to the end.

    Gives what differs from the whole run, and the moments at which a process of the run really died.
    """
    server, recipe, folder, whole = world
    run = folder / name
    shutil.rmtree(run, ignore_errors=True)
    deaths: list[str] = []
    for trap in traps:
        child = server.run(*start_or_resume(run, recipe), traps=[trap])
        code = child.wait()
        while code == 0 and not deaths:  # so many calls there were not: earlier, then
            assert trap.call > 1, f"{trap.target} is never called"
            shutil.rmtree(run)
            trap = replace(trap, call=trap.call // 2)
            child = server.run(*start_or_resume(run, recipe), traps=[trap])
            code = child.wait()
        assert code in (0, -signal.SIGKILL), child.output
        if code:
            deaths.append(f"{trap.target.partition(':')[2]} {trap.call}")
    for pause in pauses:
        killed = killed_after(server, run, recipe, pause)
        while not killed and not deaths:  # it was faster than that: earlier, then
            shutil.rmtree(run)
            pause /= 2
            killed = killed_after(server, run, recipe, pause)
        if killed:
            deaths.append(f"{pause:.2f} s")
    assert deaths, "no process was killed, so nothing was tested"
    finish(server, run)
    found = differences(run, whole)
    if not found:
        shutil.rmtree(run)
    return found, deaths


def killed_after(server, run: Path, recipe: Path, pause: float) -> bool:
    """Whether the process was still there to be killed."""
    child = server.run(*start_or_resume(run, recipe))
    child.wait_for(lambda: (run / "recipe.toml").exists())  # a kill before the run exists would show nothing
    time.sleep(pause)
    child.send(signal.SIGKILL)
    return child.wait() == -signal.SIGKILL


def start_or_resume(run: Path, recipe: Path) -> list[object]:
    if (run / "recipe.toml").exists():
        return ["resume", run]
    shutil.rmtree(run, ignore_errors=True)
    return ["train", recipe, f"name={run.name}", f"runs_folder={run.parent}"]


SAVING = "cohort.training.checkpoint:"
MOMENTS = {
    "inside the cold start, then inside a save": [
        Trap("cohort.training.cold_start:supervised_update", 7),
        Trap(SAVING + "write_file", 29),
    ],
    "between minibatches, twice": [
        Trap("cohort.model.optim:Optimizer.clip_and_step", 24 + 6 + 2, after=True),
        Trap("cohort.model.optim:Optimizer.clip_and_step", 9),
    ],
    "during evaluation, then before the rename of a save": [
        Trap("cohort.evaluation.evaluate:score_groups", 3),
        Trap("pathlib:Path.rename", 2),
    ],
    "inside a rollout, then while the model is exported": [
        Trap("cohort.engine.scheduler:choose_tokens", 90),
        Trap("cohort.model.policy:Policy.save", 1, after=True),
    ],
}


@pytest.mark.parametrize(
    "moment", prove_others(MOMENTS, "inside the cold start, then inside a save", "between minibatches, twice")
)
def test_a_killed_run_ends_with_the_same_bits(world, moment):
    found, deaths = kill_and_resume(world, "killed", MOMENTS[moment], [])
    assert found == []
    assert len(deaths) == 2


def test_the_uninterrupted_run_in_another_process_is_the_same(world, tmp_path):
    """The comparison is between processes, so it must hold without any kill first; and it can fail."""
    _, _, _, whole = world
    assert differences(train_tiny(tmp_path, "whole").folder, whole) == []
    assert [row["step"] for row in rows_of(whole)] == [1, 2, 3, 4, 5]
    other = train_tiny(tmp_path, "other", seed=1).folder
    found = differences(other, whole)
    assert {"model/model.safetensors", "metrics.jsonl", "checkpoints/step-5/optimizer.safetensors"} <= set(found)


PLACES = [
    ("cohort.training.cold_start:supervised_update", 24),
    ("cohort.model.optim:Optimizer.clip_and_step", 24 + 30),
    (SAVING + "write_file", 60),
    (SAVING + "write_tensors", 28),
    (SAVING + "flush", 30),
    ("pathlib:Path.rename", 20),
    ("shutil:rmtree", 30),
    ("os:fsync", 60),
    ("cohort.engine.scheduler:choose_tokens", 150),
    ("cohort.evaluation.evaluate:score_groups", 4),
    ("cohort.training.experience:_score_by_plan", 10),
    ("pyarrow.parquet:write_table", 5),
    ("cohort.loop:observe_step", 5),
    ("cohort.observe.monitors.jsonl:append_line", 9),
    ("cohort.observe.run_folder:RunFolder.write_json", 4),
    ("cohort.model.policy:Policy.save", 2),
    ("cohort.observe.report.page:write_report", 1),
]
"""Where to die, and about how often a whole run calls it."""


@pytest.mark.prove
def test_twenty_kills(world, capsys):
    """20 runs killed with SIGKILL at random moments, most of them more than once: 20 of 20 end with the bits of the uninterrupted run."""
    server, recipe, folder, _ = world
    started = time.monotonic()
    child = server.run("train", recipe, "name=timed", f"runs_folder={folder}")
    assert child.wait() == 0
    seconds = time.monotonic() - started
    draw = random.Random(20)
    equal = 0
    for number in range(20):
        traps, pauses = [], []
        if number % 5 < 3:
            for _ in range(2):
                target, calls = draw.choice(PLACES)
                traps.append(Trap(target, draw.randint(1, calls), after=draw.random() < 0.5))
            pauses = [draw.uniform(0.2, 0.5) * seconds]
        else:
            pauses = [draw.uniform(0.1, 0.9) * seconds, draw.uniform(0.1, 0.7) * seconds]
        found, deaths = kill_and_resume(world, f"killed-{number}", traps, pauses)
        equal += not found
        with capsys.disabled():
            print(f"\n  run {number + 1:2}: killed at {', '.join(deaths)}: {found or 'bitwise equal'}", end="")
    with capsys.disabled():
        print(f"\n{equal} of 20 bitwise equal")
    assert equal == 20


# -- signals that ask --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", [signal.SIGHUP, *(pytest.param(one, marks=pytest.mark.prove) for one in (signal.SIGTERM, signal.SIGINT))]
)
def test_a_signal_inside_a_batch_saves_the_unfinished_batch_and_resume_uses_it(world, number):
    """The signal comes two updates into the third step; the resumed process continues with the same batch."""
    server, recipe, folder, whole = world
    run = folder / f"asked-{int(number)}"
    update = 24 + 2 * 6 + 2
    trap = Trap("cohort.model.optim:Optimizer.clip_and_step", update, signal=number)
    child = server.run("train", recipe, f"name={run.name}", f"runs_folder={folder}", "monitors.console=true", traps=[trap])
    assert child.wait() == 130, child.output
    assert f"cohort resume {run}" in child.output
    summary = summary_of(run)
    assert summary["status"] == "interrupted"
    assert summary["steps"] == 2
    assert checkpoint.list_checkpoints(run / "checkpoints")[-1].name == "step-2.2"  # the update in progress was finished first
    assert leftovers(run) == []
    # From here four rollouts are left of six: the third step's batch is not drawn again.
    child = server.run("resume", run, traps=[Trap("cohort.loop:make_batch", 3)])
    assert child.wait() == 0, child.output
    assert "resuming from step-2.2" in child.output
    assert differences(run, whole) == []
    assert summary_of(run)["seconds"] > summary["seconds"] > 0  # of all its processes together


def test_two_signals_at_once_are_one(world):
    server, recipe, folder, whole = world
    run = folder / "twice"
    traps = [
        Trap("cohort.training.checkpoint:write_file", 45, signal=signal.SIGTERM),
        Trap("cohort.training.checkpoint:write_file", 46, signal=signal.SIGINT),
    ]
    child = server.run("train", recipe, f"name={run.name}", f"runs_folder={folder}", "monitors.console=true", traps=traps)
    assert child.wait() == 130, child.output
    assert "SIGTERM: saved. Resume with" in child.output
    finish(server, run)
    assert differences(run, whole) == []


@pytest.mark.parametrize("where", ["in the save", "in an update"])
def test_a_second_signal_does_not_wait_and_the_run_says_what_it_cost(world, where):
    """A second signal: nothing is saved, in particular no half-updated weights, and the run resumes from the checkpoint before."""
    server, recipe, folder, whole = world
    run = folder / f"impatient-{where[-4:]}"
    update = Trap("cohort.model.optim:Adam32.step", 24 + 2 * 6 + 2, signal=signal.SIGTERM)
    target, call = ("cohort.model.optim:MasterWeights.copy_back", update.call)
    if where == "in the save":  # the cold start saves 13 times, step 2 once
        target, call = ("cohort.training.state:TrainState.make_snapshot", 15)
    traps = [update, Trap(target, call, signal=signal.SIGINT), Trap(target, call, do="sleep 1.1")]
    child = server.run("train", recipe, f"name={run.name}", f"runs_folder={folder}", "monitors.console=true", traps=traps)
    assert child.wait() == 130, child.output
    assert "Traceback" not in child.output
    assert (
        "SIGINT, a second signal: nothing was saved after step 2. The newest checkpoint is step-2. "
        f"Resume with: cohort resume {run}"
    ) in " ".join(child.output.split())
    assert summary_of(run)["status"] == "interrupted"
    assert checkpoint.list_checkpoints(run / "checkpoints")[-1].name == "step-2"
    finish(server, run)
    assert differences(run, whole) == []


def test_a_signal_while_starting_is_an_interruption_too(world):
    """Before anything is assembled there is nothing to save; the process still ends in words, and the run can go on."""
    server, recipe, folder, whole = world
    run = folder / "early"
    trap = Trap("cohort.training.build:load_policy", 1, signal=signal.SIGTERM)
    child = server.run("train", recipe, f"name={run.name}", f"runs_folder={folder}", "monitors.console=true", traps=[trap])
    assert child.wait() == 130, child.output
    assert f"SIGTERM: nothing to save yet. Resume with: cohort resume {run}" in child.output
    trap = Trap("cohort.observe.monitors:build_monitors", 1, signal=signal.SIGTERM)
    child = server.run("resume", run, traps=[trap])
    assert child.wait() == 130, child.output
    trap = Trap("cohort.rewards.runner:RewardRunner.start", 1, signal=signal.SIGTERM)
    child = server.run("resume", run, traps=[trap])
    assert child.wait() == 130, child.output
    assert f"SIGTERM: ended at once. Resume with: cohort resume {run}" in child.output
    assert "Traceback" not in child.output
    assert summary_of(run)["status"] == "interrupted"
    finish(server, run)
    assert differences(run, whole) == []


# -- damage ------------------------------------------------------------------------------------------------------------


def stopped_run(world, name: str, **settings: object) -> Path:
    """A run killed once step-4 is saved, with step-2 before it; the cold start saved 13 times."""
    server, recipe, folder, _ = world
    run = folder / name
    words = [f"{key}={value}" for key, value in settings.items()]
    child = server.run(
        "train",
        recipe,
        f"name={name}",
        f"runs_folder={folder}",
        *words,
        traps=[Trap(SAVING + "prune_checkpoints", 15, after=True)],
    )
    assert child.wait() == -signal.SIGKILL
    return run


def damage(folder: Path, how: str) -> None:
    file = folder / "weights.safetensors"
    data = bytearray(file.read_bytes())
    if how == "cut":
        data = data[: len(data) // 2]
    else:
        data[-100] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("how", prove_others(["cut", "bit flipped"], "cut"))
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(world, how):
    server, _, _, whole = world
    run = stopped_run(world, f"damaged-{how[:3]}")
    recipe_text = (run / "recipe.toml").read_text().replace("console = false", "console = true")
    (run / "recipe.toml").write_text(recipe_text)
    newest, before = checkpoint.list_checkpoints(run / "checkpoints")[-1], checkpoint.list_checkpoints(run / "checkpoints")[-2]
    assert (newest.name, before.name) == ("step-4", "step-2")
    damage(newest, how)
    child = server.run("resume", run)
    assert child.wait() == 0, child.output
    assert f"{newest}: weights.safetensors" in child.output
    assert f"using {before.name} instead" in child.output
    assert differences(run, whole) == []


def test_damage_never_costs_the_checkpoint_that_is_still_whole(world):
    """With keep = 1, saving an older step next to a damaged newer one must not delete the only readable checkpoint."""
    server, recipe, folder, whole = world
    run = folder / "damaged-keep"
    child = server.run(
        "train", recipe, f"name={run.name}", f"runs_folder={folder}", "checkpoints.keep=1", "checkpoints.every_steps=1",
        "checkpoints.best=false", traps=[Trap(SAVING + "prune_checkpoints", 24 + 1 + 3, after=True)],
    )  # fmt: skip
    assert child.wait() == -signal.SIGKILL
    newest = checkpoint.list_checkpoints(run / "checkpoints")[-1]
    newest = newest.rename(newest.with_name("step-4"))
    shutil.copytree(newest, newest.with_name("step-3"))
    damage(newest, "cut")
    # One update into step 4: saves step-3.1 beside the damaged step-4.
    trap = Trap("cohort.model.optim:Optimizer.clip_and_step", 1, signal=signal.SIGTERM)
    child = server.run("resume", run, traps=[trap])
    assert child.wait() == 130, child.output
    assert checkpoint.latest(run / "checkpoints").folder.name == "step-3.1"
    finish(server, run)
    assert Path(run / "model/model.safetensors").read_bytes() == Path(whole / "model/model.safetensors").read_bytes()


def test_if_all_checkpoints_are_damaged_nothing_is_deleted(world):
    server, _, _, _ = world
    run = stopped_run(world, "all-damaged")
    for folder in checkpoint.list_checkpoints(run / "checkpoints"):
        damage(folder, "cut")
    before = sorted(str(path) for path in run.rglob("*"))
    child = server.run("resume", run)
    assert child.wait() == 1
    assert "error: no usable checkpoint" in child.output
    assert "step-4: weights.safetensors" in child.output
    assert "step-2: weights.safetensors" in child.output
    assert "Traceback" not in child.output
    assert sorted(str(path) for path in run.rglob("*")) == before


# -- one process per run -----------------------------------------------------------------------------------------------


def test_a_second_process_on_a_run_is_refused_with_the_pid(world):
    import psutil

    server, recipe, folder, whole = world
    run = folder / "held"
    child = server.run(
        "train", recipe, f"name={run.name}", f"runs_folder={folder}", traps=[Trap("cohort.loop:make_batch", 2, signal.SIGSTOP)]
    )
    child.wait_for(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)
    assert len(rows_of(run)) == 1
    second = server.run("resume", run)
    assert second.wait() == 1
    assert f"{run} is in use by process {child.pid}" in second.output
    again = server.run("train", recipe, f"name={run.name}", f"runs_folder={folder}")
    assert again.wait() == 1
    assert f"Resume it with `cohort resume {run}`" in again.output
    child.send(signal.SIGCONT)
    assert child.wait() == 0, child.output
    assert differences(run, whole) == []
    finished = server.run("resume", run)
    assert finished.wait() == 0
    assert f"{run} is finished" in finished.output


def test_the_lock_goes_with_the_process(tmp_path):
    run = train_tiny(tmp_path, "run", **{"train.num_steps": 1, "cold_start.num_steps": 0, "evaluation.samples": 0}).folder
    folder = RunFolder.open(run)
    folder.lock()
    assert (run / "run.lock").read_text().split()[0] == str(os.getpid())
    folder.unlock()
    RunFolder.open(run).lock()


def test_no_reward_worker_outlives_a_killed_run(world):
    """The workers lead sessions of their own, so nothing but their lifeline tells them that the trainer is gone."""
    import psutil

    server, recipe, folder, _ = world
    child = server.run(
        "train",
        recipe,
        "name=orphans",
        f"runs_folder={folder}",
        "rewards.0.function=regex_format",  # runs in a worker, which math_answer does not need for sums
        traps=[Trap("cohort.loop:make_batch", 2, signal.SIGSTOP)],
    )
    child.wait_for(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED)
    workers = psutil.Process(child.pid).children(recursive=True)
    assert workers
    child.send(signal.SIGKILL)
    child.wait()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert alive == []
