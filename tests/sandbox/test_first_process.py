"""The first process of a container has no init above it: orphans are its own to reap, and no signal ends it by itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from cohort.sandbox import JailUnavailable, find_tier

UNSHARE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def why_not() -> str:
    """Why no process here can be the first of a namespace; empty if one can."""
    if sys.platform != "linux" or not shutil.which("unshare"):
        return "unshare is not installed"
    ended = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True)
    return "" if ended.returncode == 0 else f"no process namespace can be made: {ended.stderr.strip()}"


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "none")

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
from cohort.sandbox import Call, Limits, run_calls, run_script
ends = [run_script("print(1)", "").end for _ in range(3)]
ends += [run_script("while True: pass", "", Limits(cpu_s=0.1)).end]
ends += [run_calls("import os\\ndef f(): os._exit(0)", [Call("f")]).end for _ in range(2)]
print(os.getpid(), ends, zombies())
"""
)


@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
def test_programs_leave_no_zombies_to_a_trainer_that_is_the_first_process(tier, monkeypatch):
    monkeypatch.setenv("COHORT_JAIL", tier)
    try:
        find_tier()
    except JailUnavailable as problem:
        pytest.skip(str(problem))
    ended = subprocess.run([*UNSHARE, sys.executable, "-c", RUNS], env=os.environ, capture_output=True, text=True)
    assert ended.stdout == "1 ['finished', 'finished', 'finished', 'cpu', 'exit', 'exit'] []\n", ended.stderr
