"""torchrun with ranks that can be killed anywhere, quickly: its own agent, in a fork of a process that has torch imported.

    with torchrun_server(folder) as server:
        launch = start_torchrun(server, 2, "train", recipe, traps={1: [Trap(...)]}, options=["--max-restarts", "2"])
        assert launch.wait() == 0, launch.output

Options are read, ranks are watched, signalled and restarted by torch.distributed itself; only that it starts its ranks by a fork
instead of a new interpreter is ours. Traps are of the ranks' first life unless told otherwise.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent
sys.path.insert(0, str(TESTS))

from session_tools import Child, ForkServer, Trap, run_command, serve, stand_alone  # noqa: E402

STANDALONE = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", "tests", "--local-addr", "localhost")
"""The arguments that torchrun derives from --standalone."""


@dataclass(frozen=True)
class RankTrap(Trap):
    """A trap of one life of a rank: the first, or the one after so many restarts."""

    life: int = 0


def start_torchrun(
    server: ForkServer,
    size: int,
    *words: object,
    options: Sequence[str] = (),
    traps: Mapping[int, Sequence[Trap]] | None = None,
    env: Mapping[str, str] | None = None,
    own: Mapping[int, Sequence[object]] | None = None,
) -> Child:
    """`torchrun OPTIONS -m cohort WORDS` with `size` ranks. By rank: traps, and more words of its own."""
    server.count += 1
    log = server.folder / f"torchrun-{server.count}.txt"
    request = {
        "run": [str(word) for word in words],
        "options": ["--nproc-per-node", str(size), *([] if "--nnodes" in options else STANDALONE), *options],
        "traps": {rank: [asdict(trap) for trap in mine] for rank, mine in (traps or {}).items()},
        "own": {rank: [str(word) for word in mine] for rank, mine in (own or {}).items()},
        "env": dict(env or {}),
        "cwd": str(server.folder),
        "log": str(log),
    }
    return Child(server, server.ask(request)["pid"], log)


def launch(request: Mapping[str, Any]) -> None:
    """The forked process: torchrun."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch

    stand_alone(request)
    config, _, _ = run.config_from_args(run.parse_args([*request["options"], "cohort"]))
    config.start_method = "fork"
    code = 0
    try:
        elastic_launch(config, be_rank)(request)
    except ChildFailedError as problem:
        print(problem, file=sys.stderr)
        code = 1
    except BaseException as problem:
        print(f"torchrun: {problem!r}", file=sys.stderr)
        code = 2
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def be_rank(request: Mapping[str, Any]) -> None:
    """A process that torchrun has started."""
    import signal

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):  # the agent's own came along with the fork
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    rank, life = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    traps = [dict(trap) for trap in request["traps"].get(rank, ())]
    mine = [trap for trap in traps if trap.pop("life", 0) == life]
    if code := run_command([*request["run"], *request["own"].get(rank, ())], mine):
        os._exit(code)


@contextlib.contextmanager
def torchrun_server(folder: Path) -> Iterator[ForkServer]:
    yield ForkServer(folder, __file__)


if __name__ == "__main__":
    serve(launch)
