"""What goes wrong with several ranks, against processes that torchrun's own agent has started, watches and restarts.

docs/scale.md has a table of faults; every row of it is a test here. After each of them a resume ends with the weights of the run that
nothing happened to, and no step was trained twice.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ranks_tools import find_free_port, hash_weights, start_ranks
from torchrun_tools import RankTrap, start_torchrun, torchrun_server

from cohort.base.processes import children_of
from cohort.base.world import ALONE
from cohort.errors import RankError
from cohort.training import checkpoint, launch
from session_tools import ONE_THREAD, Child, ForkServer, fork_server, leftovers, rows_of, summary_of, write_recipe

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import namespaces

as_root = pytest.mark.skipif(os.getuid() != 0, reason="mounts file systems and makes networks")
STEPS = 3
SETTINGS: dict[str, Any] = {
    "train.num_steps": STEPS,
    "train.micro_batch_tokens": 64,
    "train.minibatches_per_step": 2,
    "train.passes_per_step": 1,
    "cold_start.num_steps": 4,
    "rewards": [{"function": "session_tools:digit_share", "name": "reward"}],
    "evaluation.samples": 2,
    "evaluation.max_problems": 4,
    "parallel.limit_s": 5,
}
STAGES = {
    "cold start": ("cohort.training.cold_start:supervised_update", 3),
    "baseline": ("cohort.training.stages:evaluate", 1),
    "rollout": ("cohort.engine.slot_engine:SlotEngine.generate", 4),
    "reward": ("cohort.rewards.runner:RewardRunner._score_share", 5),
    "scoring": ("cohort.model.policy:score_tokens", 2),
    "update": ("cohort.loop:token_loss", 4),
    "exchange": ("cohort.parallel.ranks:fill_buckets", 7),
    "optimizer": ("cohort.model.optim:Optimizer.clip_and_step", 8),
    "evaluation": ("cohort.training.stages:evaluate", 2),
    "save": ("cohort.training.stages:save_run", 4),
    "building": ("cohort.session:Session.assemble", 1),
}
"""Stage -> a function that every rank calls in it, and which of the calls is meant."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with torchrun_server(tmp_path_factory.mktemp("torchrun")) as made:
        yield made


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe") / "recipe.toml", **SETTINGS)


@pytest.fixture(scope="module")
def expected(server: ForkServer, recipe: Path) -> str:
    """Hash of the weights of a run that nothing happens to."""
    child = start_torchrun(server, 2, "train", recipe, "runs_folder=.", "name=expected")
    assert child.wait() == 0, child.output
    return hash_weights(server.folder / "expected")


def train(server: ForkServer, recipe: Path, run: Path, *words: str, **more: Any) -> Child:
    return start_torchrun(server, 2, "train", recipe, f"runs_folder={run.parent}", f"name={run.name}", *words, **more)


def check_resumed(server: ForkServer, run: Path, expected: str, size: int = 2) -> None:
    """The run resumes on any number of ranks and ends as if nothing had happened; no process is left."""
    child = start_torchrun(server, size, "resume", run)
    assert child.wait() == 0, child.output
    check_ended(run, expected)


def check_ended(run: Path, expected: str) -> None:
    assert hash_weights(run) == expected
    assert [row["step"] for row in rows_of(run)] == list(range(1, STEPS + 1))
    assert summary_of(run)["status"] == "finished"
    assert leftovers(run) == []


def list_errors(child: Child) -> list[str]:
    return [line for line in child.output.splitlines() if line.startswith("error:")]


def all_below(pid: int) -> list[int]:
    below, todo = [], [pid]
    while todo:
        found = children_of(todo.pop())
        below += found
        todo += found
    return below


# -- a rank that is lost ----------------------------------------------------------------------------------------------


def test_a_killed_rank_is_named_and_the_restarted_ranks_go_on_by_themselves(
    server: ForkServer, recipe: Path, expected: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    child = train(server, recipe, run, options=["--max-restarts", "2"], traps={1: [RankTrap(*STAGES["exchange"])]})
    assert child.wait() == 0, child.output
    [error] = list_errors(child)  # once, although both ranks ended
    assert "rank 1 (process " in error
    assert "was killed by SIGKILL: often the kernel, when memory runs out (see dmesg)" in error
    assert f"cohort resume {run}, with any number of ranks" in error
    check_ended(run, expected)


@pytest.mark.prove
@pytest.mark.parametrize("first", ["building", "exchange", "before the folder"])
def test_ranks_that_are_killed_twice_in_a_row(
    first: str, server: ForkServer, recipe: Path, expected: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    target = STAGES.get(first, ("cohort.training.launch:claim_folder", 1))
    traps = {0: [RankTrap(*target)], 1: [RankTrap("cohort.parallel.ranks:fill_buckets", 2, life=1)]}
    child = train(server, recipe, run, options=["--max-restarts", "2"], traps=traps)
    assert child.wait() == 0, child.output
    check_ended(run, expected)


@pytest.mark.prove
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("stage", STAGES)
def test_a_rank_killed_in_any_stage(
    stage: str, rank: int, server: ForkServer, recipe: Path, expected: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    child = train(server, recipe, run, traps={rank: [RankTrap(*STAGES[stage])]})
    assert child.wait() == 1, child.output
    [error] = list_errors(child)
    assert f"rank {rank} (process " in error
    if rank == 1 and stage != "building":  # the main rank lives: it saves what was earned and says how it ended
        assert summary_of(run)["status"] == "failed"
        assert f"rank {rank} (process " in summary_of(run)["error"]
    if rank == 1 and stage == "building":  # nothing was earned, and nothing is left
        assert not run.exists()
        return
    check_resumed(server, run, expected, size=3)


@pytest.mark.prove
@pytest.mark.parametrize("call", [9, 14, 22])
def test_the_main_rank_killed_while_it_writes_a_checkpoint(
    call: int, server: ForkServer, recipe: Path, expected: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    child = train(
        server, recipe, run, "checkpoints.every_steps=1", traps={0: [RankTrap("cohort.training.checkpoint:write_file", call)]}
    )
    assert child.wait() == 1, child.output
    [error] = list_errors(child)
    assert "rank 0 (process " in error
    for kept in checkpoint.list_checkpoints(run / "checkpoints"):
        checkpoint.verify(kept)
    check_resumed(server, run, expected, size=3)


@pytest.mark.prove
def test_a_rank_lost_between_the_policys_update_and_the_critics_leaves_neither_done(server: ForkServer, tmp_path: Path) -> None:
    ppo = {"algorithm.name": "ppo", "algorithm.kl_coef": 0.0, "critic.learning_rate": 1e-3}
    recipe = write_recipe(tmp_path / "recipe.toml", **SETTINGS | ppo)
    good = train(server, recipe, tmp_path / "good")
    assert good.wait() == 0, good.output
    run = tmp_path / "run"
    child = train(server, recipe, run, traps={1: [RankTrap("cohort.model.critic:Critic.join", 3)]})
    assert child.wait() == 1, child.output
    check_resumed(server, run, hash_weights(tmp_path / "good"))


@pytest.mark.prove
@pytest.mark.parametrize(("stage", "rank"), [("rollout", 1), ("exchange", 0)])
def test_a_rank_that_hangs_is_named(
    stage: str, rank: int, server: ForkServer, recipe: Path, expected: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    child = train(server, recipe, run, traps={rank: [RankTrap(*STAGES[stage], signal=signal.SIGSTOP)]})
    assert child.wait() == 1, child.output
    [error] = list_errors(child)
    assert f"rank {rank} (process " in error
    check_resumed(server, run, expected)


@pytest.mark.prove
def test_a_slow_rank_and_one_that_was_stopped_for_a_while_are_waited_for(
    server: ForkServer, recipe: Path, expected: str, tmp_path: Path
) -> None:
    slow = train(server, recipe, tmp_path / "slow", traps={1: [RankTrap(*STAGES["reward"], do="sleep 20")]})
    assert slow.wait() == 0, slow.output
    check_ended(tmp_path / "slow", expected)

    run = tmp_path / "stopped"
    traps = {1: [RankTrap(*STAGES["rollout"], signal=signal.SIGSTOP)]}
    child = train(server, recipe, run, "parallel.limit_s=60", traps=traps)
    stopped: list[int] = []

    def find_stopped() -> bool:
        for pid in all_below(child.pid):
            with contextlib.suppress(OSError):  # it may have ended meanwhile
                if Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T":
                    stopped.append(pid)
        return bool(stopped)

    child.wait_for(find_stopped)
    os.kill(stopped[0], signal.SIGCONT)
    assert child.wait() == 0, child.output
    assert list_errors(child) == []
    check_ended(run, expected)


@pytest.mark.prove
def test_launchers_of_two_hosts_that_count_restarts_apart_bring_their_ranks_together(
    server: ForkServer, recipe: Path, expected: str, tmp_path: Path
) -> None:
    """The agent whose rank died counts a restart; the other follows it and counts none."""
    run, port = tmp_path / "run", find_free_port()
    options = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "two"]
    options += ["--local-addr", "localhost", "--max-restarts", "2"]
    words = ["train", recipe, f"runs_folder={tmp_path}", "name=run"]
    traps = {1: [RankTrap(*STAGES["exchange"])]}
    agents = [start_torchrun(server, 1, *words, options=options, traps=traps) for _ in range(2)]
    assert [agent.wait() for agent in agents] == [0, 0], "".join(agent.output for agent in agents)
    check_ended(run, expected)


# -- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGHUP, pytest.param(signal.SIGTERM, marks=pytest.mark.prove)])
def test_a_signal_to_one_rank_saves_once_and_ends_all(
    number: signal.Signals, server: ForkServer, recipe: Path, expected: str, tmp_path: Path
) -> None:
    """The other rank is in work of its own that takes longer than torchrun would wait: it gives that up."""
    run = tmp_path / "run"
    traps = {0: [RankTrap(*STAGES["rollout"], do="sleep 600")], 1: [RankTrap(*STAGES["rollout"], signal=number)]}
    child = train(server, recipe, run, "monitors.console=true", traps=traps)
    assert child.wait() == 1, child.output
    assert f"{number.name} on rank 1: saved. Resume with: cohort resume" in child.output
    assert child.output.count(": saved.") == 1
    assert "exitcode  : 130" in child.output
    assert summary_of(run)["status"] == "interrupted"
    check_resumed(server, run, expected, size=1)


@pytest.mark.prove
@pytest.mark.parametrize("stage", ["cold start", "baseline", "optimizer", "save", "building"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_in_any_stage(stage: str, rank: int, server: ForkServer, recipe: Path, expected: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    child = train(server, recipe, run, traps={rank: [RankTrap(*STAGES[stage], signal=signal.SIGTERM)]})
    assert child.wait() == 1, child.output
    assert list_errors(child) == []
    assert summary_of(run)["status"] == "interrupted"
    check_resumed(server, run, expected)


@pytest.mark.prove
@pytest.mark.parametrize("how", ["SIGTERM to torchrun", "Ctrl-C", "Ctrl-C twice", "SIGTERM to all", "SIGHUP to all"])
def test_a_signal_to_the_launcher(how: str, server: ForkServer, recipe: Path, expected: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    child = train(server, recipe, run)
    child.wait_for(lambda: (run / "metrics.jsonl").exists())
    if how.startswith("Ctrl-C"):
        os.killpg(child.pid, signal.SIGINT)
        if how == "Ctrl-C twice":
            time.sleep(0.02)
            os.killpg(child.pid, signal.SIGINT)
    elif how == "SIGHUP to all":
        os.killpg(child.pid, signal.SIGHUP)
    elif how == "SIGTERM to all":
        os.killpg(child.pid, signal.SIGTERM)
    else:
        child.send(signal.SIGTERM)
    assert child.wait() != 0
    assert list_errors(child) == []
    assert summary_of(run)["status"] == "interrupted"
    check_resumed(server, run, expected)


# -- a problem of one rank --------------------------------------------------------------------------------------------


@pytest.mark.prove
def test_a_problem_of_one_rank_ends_all_with_its_cause(server: ForkServer, recipe: Path, expected: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    traps = {1: [RankTrap(*STAGES["update"], do="CUDA out of memory")]}
    child = train(server, recipe, run, traps=traps)
    assert child.wait() == 1, child.output
    assert list_errors(child) == [f"error: RuntimeError: CUDA out of memory (rank 1 on {os.uname().nodename})"]
    assert child.output.count("RuntimeError: CUDA out of memory\n") == 1  # one traceback, where it arose
    assert summary_of(run)["error"] == f"RuntimeError: CUDA out of memory (rank 1 on {os.uname().nodename})"
    check_resumed(server, run, expected)


@pytest.mark.prove
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("do", ["the verifier is gone", "exit", "leave"])
def test_a_reward_that_fails_on_one_rank(
    do: str, rank: int, server: ForkServer, recipe: Path, expected: str, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    child = train(server, recipe, run, traps={rank: [RankTrap(*STAGES["reward"], do=do)]})
    assert child.wait() == 1, child.output
    cause = {"exit": "called sys.exit(3)", "leave": f"rank {rank} (process "}.get(do, do)
    assert cause in child.output
    if not (do == "leave" and rank == 0):
        assert summary_of(run)["status"] == "failed"
        assert cause in summary_of(run)["error"]
    check_resumed(server, run, expected)


@pytest.mark.prove
def test_a_problem_of_the_main_rank_while_it_observes(server: ForkServer, recipe: Path, expected: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    child = train(server, recipe, run, traps={0: [RankTrap("cohort.training.stages:measure_step", 2, do="no more digits")]})
    assert child.wait() == 1, child.output
    assert summary_of(run)["error"] == "no more digits"
    check_resumed(server, run, expected)

    told = tmp_path / "told"
    traps = {0: [RankTrap("cohort.observe.monitors.console:ConsoleMonitor.on_metrics", 2, do="no more colours")]}
    child = train(server, recipe, told, "monitors.console=true", traps=traps)
    assert child.wait() == 0, child.output  # observers never fail
    check_ended(told, expected)


# -- ranks that do not belong together --------------------------------------------------------------------------------


def test_ranks_with_different_recipes_are_refused_before_anything_is_made(
    server: ForkServer, recipe: Path, tmp_path: Path
) -> None:
    child = train(server, recipe, tmp_path / "run", own={1: ["optimizer.learning_rate=2e-3"]})
    assert child.wait() == 1, child.output
    [error] = list_errors(child)
    assert "the ranks do not belong to one run: optimizer.learning_rate is 0.001 on rank 0 and 0.002 on rank 1" in error
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """Ranks that no launcher watches."""
    with fork_server(tmp_path_factory.mktemp("forks")) as made:
        yield made


@pytest.mark.prove
def test_ranks_that_are_not_alike_are_refused(server: ForkServer, recipe: Path, tmp_path: Path) -> None:
    """One case per difference: starting weights, data, code, versions, threads."""
    run = tmp_path / "run"
    differing = {
        "the starting weights is": "cohort.model.frozen:sample_weights",
        "prompts and demonstrations is": "cohort.training.build:EncodedData.digest",
        "threads per rank": "torch:get_num_threads",
        "torch is": "cohort.training.launch:find_version",
        "the code of cohort is": "cohort.training.launch:digest_code",
    }
    for words, target in differing.items():
        child = train(server, recipe, run, traps={1: [RankTrap(target, do="give another")]})
        assert child.wait() == 1, child.output
        [error] = list_errors(child)
        assert f"the ranks do not belong to one run: {words}" in error
        assert not run.exists()


@pytest.mark.prove
def test_ranks_that_do_not_come_are_counted(forks: ForkServer, recipe: Path, tmp_path: Path) -> None:
    words = ["train", recipe, f"runs_folder={tmp_path}", "name=run"]
    launch = start_ranks(forks, 3, *words, env={2: {"MASTER_PORT": str(find_free_port())}})
    assert launch.wait(tell=False) == [1, 1, 1], launch.output
    first, _, third = (child.output for child in launch.ranks)
    assert "only 2 of 3 ranks reached 127.0.0.1:" in first
    assert "rank 2 is missing" in first
    assert "rank 2 of 3 cannot reach the store of the ranks at 127.0.0.1:" in third
    assert list(tmp_path.iterdir()) == []

    launch = start_ranks(forks, 2, *words, env={1: {"WORLD_SIZE": "3"}})
    assert launch.wait(tell=False) == [1, 1], launch.output
    assert "rank 0 has WORLD_SIZE=2, but rank 1 has WORLD_SIZE=3" in launch.output
    for told, message in {"2": "RANK=2 with WORLD_SIZE=2", "first": "RANK=first in the environment is not a number"}.items():
        launch = start_ranks(forks, 2, *words, env={1: {"RANK": told}})
        assert launch.wait(tell=False) == [1, 1], launch.output
        assert message in launch.ranks[1].output
    launch = start_ranks(forks, 3, *words, env={2: {"RANK": "1"}})
    assert launch.wait(tell=False) == [1, 1, 1], launch.output
    assert "rank 2 is missing" in launch.output


def test_processes_that_are_several_and_cannot_meet_do_not_train_alone(monkeypatch):
    for name in launch.LAUNCHED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    assert launch.find_world(lambda: 5.0) is ALONE
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert launch.find_world(lambda: 5.0) is ALONE
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RankError, match=r"WORLD_SIZE=2 .* MASTER_ADDR and MASTER_PORT are not set"):
        launch.find_world(lambda: 5.0)


@pytest.mark.prove
def test_a_second_launch_on_the_same_run_is_refused(server: ForkServer, recipe: Path, expected: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = train(server, recipe, run, traps={0: [RankTrap(*STAGES["rollout"], do="sleep 12")]})
    first.wait_for(lambda: (run / "evaluations.jsonl").exists())
    second = start_torchrun(server, 2, "resume", run)
    assert second.wait() == 1, second.output
    [error] = list_errors(second)
    assert "is in use by process" in error
    assert first.wait() == 0, first.output
    check_ended(run, expected)


@as_root
@pytest.mark.prove
def test_a_run_folder_that_hosts_do_not_share_is_refused(server: ForkServer, recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    child = train(server, recipe, run, traps={1: [RankTrap("cohort.session:make_paths_absolute", do=f"hide {tmp_path}")]})
    assert child.wait() == 1, child.output
    [error] = list_errors(child)
    assert f"runs_folder: the main rank created {run}, but it does not exist on" in error
    assert "that all hosts share" in error
    assert not run.exists()


# -- a disk that is full ------------------------------------------------------------------------------------------------


@as_root
@pytest.mark.prove
def test_a_full_disk_loses_nothing(server: ForkServer, recipe: Path, expected: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=500k", "tmpfs", disk], check=True)
    try:
        child = train(server, recipe, disk / "run")
        assert child.wait() == 1, child.output
        assert "No space left on device" in child.output
        assert summary_of(disk / "run")["status"] in ("failed", "running")  # as far as there was room to say so
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        check_resumed(server, disk / "run", expected)
    finally:
        subprocess.run(["umount", disk], check=True)


# -- two hosts, and the network between them ----------------------------------------------------------------------------


@as_root
@pytest.mark.prove
@pytest.mark.parametrize("back", [True, False], ids=["and back", "for good"])
def test_a_network_that_is_cut(back: bool, server: ForkServer, recipe: Path, expected: str, tmp_path: Path) -> None:
    run, logs = tmp_path / "run", [tmp_path / f"host-{place}.txt" for place in range(2)]
    words = ["train", recipe, f"runs_folder={tmp_path}", "name=run", f"parallel.limit_s={60 if back else 6}"]
    paths = os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    with namespaces.make_hosts() as hosts:
        launched = []
        for command, log in zip(namespaces.write_launches(hosts, 29555, *words), logs, strict=True):
            with log.open("wb") as output:
                env = ONE_THREAD | {"PYTHONPATH": paths}
                launched.append(subprocess.Popen(command, stdout=output, stderr=output, env=env, cwd=tmp_path))
        deadline = time.monotonic() + 300
        while not (run / "metrics.jsonl").exists():
            assert time.monotonic() < deadline, [log.read_text(encoding="utf-8") for log in logs]
            time.sleep(0.01)
        link = ["ip", "-n", hosts[0].name, "link", "set", hosts[0].card]
        subprocess.run([*link, "down"], check=True)
        if back:
            time.sleep(30)
            subprocess.run([*link, "up"], check=True)
        codes = [process.wait(300) for process in launched]
    told = [[line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("error:")] for log in logs]
    if back:
        assert (codes, told) == ([0, 0], [[], []])
        check_ended(run, expected)
        return
    assert codes == [1, 1]
    assert "rank 1 (process " in told[0][0]
    assert f"the launcher's store at {hosts[0].address}:29555 cannot be reached" in told[1][0]
    assert summary_of(run)["status"] == "failed"
    check_resumed(server, run, expected)


@pytest.mark.prove
def test_the_real_torchrun_leaves_nothing_behind(recipe: Path, tmp_path: Path) -> None:
    """New interpreters instead of forks: they end, although the group of processes is broken, and so do their workers."""
    run, log = tmp_path / "run", tmp_path / "torchrun.txt"
    before = set(all_below(os.getpid()))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "cohort", "train"]
    env = ONE_THREAD | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])}
    env["TMPDIR"] = str(tmp_path / "temporary")
    Path(env["TMPDIR"]).mkdir()
    with log.open("wb") as output:
        words = [recipe, f"runs_folder={tmp_path}", "name=run", "train.num_steps=200"]
        launched = subprocess.Popen([*command, *words], stdout=output, stderr=output, env=env, cwd=tmp_path)
    deadline = time.monotonic() + 300
    while not (run / "metrics.jsonl").exists():
        assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
        time.sleep(0.01)
    below = all_below(launched.pid)
    ranks = [pid for pid in children_of(launched.pid) if "cohort" in Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")]
    os.kill(ranks[1], signal.SIGKILL)
    assert launched.wait(300) == 1
    output_text = log.read_text(encoding="utf-8")
    assert sum(line.startswith("error: rank 1 (process ") for line in output_text.splitlines()) == 1, output_text
    assert "TCPStore.cpp" not in output_text
    assert summary_of(run)["status"] == "failed"
    assert [pid for pid in below if Path(f"/proc/{pid}").exists()] == []
    assert set(all_below(os.getpid())) - before == set()
    left = [path for path in (tmp_path / "temporary").iterdir() if not path.name.startswith("torchelastic_")]
    assert left == []
