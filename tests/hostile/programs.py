"""The definition of a hostile program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BEGINS_WITH = "# begins with "

CATEGORIES = (
    "forgery",
    "hang",
    "memory",
    "disk",
    "output",
    "process",
    "escape",
    "survivor",
    "network",
    "secret",
)


@dataclass(frozen=True)
class Ask:
    """One call of the program, and the value that would be rewarded.

    A hostile program cannot know `wanted` honestly: it does not implement the function.
    """

    function: str
    args: tuple[Any, ...] = ()
    wanted: Any = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class HostileProgram:
    """One attack.

    With `calls`, the program is loaded and called (`run_calls`). Without, it runs as a script (`run_script`) on `stdin`, and
    `wanted_stdout` is what would be rewarded. A program that gets what the jail should have refused prints a line that starts
    with BREACH: the harness counts it as an effect on the host, as it does with all that it sees from outside.

    The harness replaces these words of the source before each run:

    @CANARY@       a world-writable folder that must stay as it is (it holds a file `precious` and a folder `inner`)
    @SECRET_FILE@  a readable file whose content must not come out
    @HOME@         a home folder with .gitconfig, .netrc and .ssh/id_rsa, all readable, all with the secret in them
    @SECRET_NAME@  an environment variable of the host that holds the secret
    @SECRET_FD@    a descriptor of the host, open on the secret file and inheritable
    @TRAINER@      the working folder of the host process
    @PORT@         a TCP port of 127.0.0.1 and of ::1 that records connections
    @UDP_PORT@     a UDP port of 127.0.0.1 that records datagrams
    @ABSTRACT@     the name of an abstract unix stream socket that records connections, without the leading zero byte
    @ABSTRACT_DATAGRAM@  the same for datagrams
    @UNIX_PATH@    a named unix stream socket that records connections
    @HOST_PID@     the process that runs the jail
    @MARKER@       a word of 12 letters, unique to the run; whatever the program leaves behind should carry it
    @KEY@          a number unique to the run, for System V objects
    @QUEUE@        a System V message queue of the host, open to all, with the secret in it
    @MEMORY_MB@    the memory limit
    @FILES_MB@     the limit on files
    @PROJECT@      the folder that holds the import packages, tests, recipes and reference answers: a checkout, or one with a .venv

    With `ways`, the program runs where installed packages are readable, instead of with the standard library only.
    """

    name: str
    category: str
    source: str
    calls: tuple[Ask, ...] = ()
    stdin: str = ""
    wanted_stdout: str = ""
    aims_at: str = ""
    ways: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.category not in CATEGORIES:
            raise ValueError(f"category of {self.name!r} is {self.category!r}; use one of {', '.join(CATEGORIES)}")


SECRET_NUMBER = 927_451_663
SECRET_WORD = "heliotrope-5518"
SOLVE = (Ask("solve", (17,), SECRET_NUMBER), Ask("solve", (4,), SECRET_WORD))
"""Two calls whose results no program can guess: a reply with one of these values was forged or leaked from the host."""

SOURCES = Path(__file__).parent / "sources"
"""The programs: sources/<category>/<name>.py. Nothing imports them; only the harness runs them, in a jail."""


def read_source(category: str, name: str) -> str:
    """Return the program as it is run. A first line "# begins with x.py" includes the file x.py of sources/shared."""
    text = (SOURCES / category / f"{name}.py").read_bytes().decode()
    first, _, rest = text.partition("\n")
    if first.startswith(BEGINS_WITH):
        return read_source("shared", first.removeprefix(BEGINS_WITH).removesuffix(".py")) + rest
    return text


def called(category: str, name: str, aims_at: str, ways: tuple[str, ...] = ()) -> HostileProgram:
    """Make a program that is asked for one value it cannot know."""
    return HostileProgram(name, category, read_source(category, name), calls=SOLVE[:1], aims_at=aims_at, ways=ways)


WITH_PACKAGES = ("packages", "worker")
"""Ways of running a program where packages are visible: with installed packages, and inside a jailed worker, which also sees
our two packages."""
