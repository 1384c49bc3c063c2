"""Reward functions of every kind, well and badly behaved, for test_rewards_runner. Importable, so workers run them.

A function misbehaves on the completions whose text says so ("bad", "hang", ...), and scores 1.0 otherwise.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def good(completions, **kwargs):
    return [1.0] * len(completions)


def none_on_bad(completions, **kwargs):
    return [None if c == "bad" else 1.0 for c in completions]


def nan_on_bad(completions, **kwargs):
    return [float("nan") if c == "bad" else 1.0 for c in completions]


def inf_on_bad(completions, **kwargs):
    return [float("-inf") if c == "bad" else 1.0 for c in completions]


def str_on_bad(completions, **kwargs):
    return ["1.0" if c == "bad" else 1.0 for c in completions]


def nested_on_bad(completions, **kwargs):
    return [[1.0] if c == "bad" else 1.0 for c in completions]


def huge_int_on_bad(completions, **kwargs):
    return [10**400 if c == "bad" else 1.0 for c in completions]


def raise_on_bad(completions, **kwargs):
    if "bad" in completions:
        raise ValueError("cannot read 'bad'")
    return [1.0] * len(completions)


def exit_on_bad(completions, **kwargs):
    if "bad" in completions:
        sys.exit(0)
    return [1.0] * len(completions)


def short_with_bad(completions, **kwargs):
    return [1.0 for c in completions if c != "bad"]


def short_with_bad_split(completions, **kwargs):
    return short_with_bad(completions)


short_with_bad_split.per_completion = True


def right_only_for_one(completions, **kwargs):
    """The mean instead of a list: right, by luck, for a single completion."""
    return [1.0] if len(completions) == 1 else 1.0


def right_length_only_for_one(completions, **kwargs):
    return [1.0]


def raises_type_error_on_the_way(completions, **kwargs):
    def scores():
        for _ in completions:
            raise TypeError("cannot score")
        yield 1.0

    return scores()


def raises_then_returns_text_on_bad(completions, **kwargs):
    if len(completions) > 1:
        raise ValueError("one at a time")
    return "bad" if completions == ["bad"] else [1.0]


def raise_with_text(completions, **kwargs):
    raise ValueError(f"cannot read {completions[0]}")


class Odd:
    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


def odd_repr(completions, **kwargs):
    return [Odd(text) for text in completions]


def always_raises(completions, **kwargs):
    raise KeyError("no such thing")


def one_for_all(completions, **kwargs):
    return 1.0


def text_for_all(completions, **kwargs):
    return "1" * len(completions)


def dict_for_all(completions, **kwargs):
    return dict.fromkeys(completions, 1.0)


def nested_for_all(completions, **kwargs):
    return [[1.0] for _ in completions]


def too_many(completions, **kwargs):
    return [1.0] * (len(completions) + 1)


def hang_on_hang(completions, **kwargs):
    while "hang" in completions:
        time.sleep(60)
    return [1.0] * len(completions)


def hang_with_child(completions, pid_file, **kwargs):
    """Hangs with a child process of its own, whose process id it writes down."""
    if "hang" in completions:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        with open(pid_file[0], "a") as file:
            file.write(f"{child.pid}\n")
        time.sleep(60)
    return [1.0] * len(completions)


def start_sessions(completions, pid_file, **kwargs):
    """Starts a child, one with a session of its own and an orphan without environment; then does what the completion says."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(write, str(os.getpid()).encode())
            os.execve("/bin/sleep", ["sleep", "60"], {})
        os._exit(0)
    os.wait()
    children = [subprocess.Popen(["/bin/sleep", "60"], start_new_session=own).pid for own in (False, True)]
    with open(pid_file[0], "a") as file:
        file.write(" ".join(map(str, [*children, int(os.read(read, 20))])) + "\n")
    if "hang" in completions:
        time.sleep(60)
    if "die" in completions:
        os._exit(3)
    if "group" in completions:
        os.killpg(0, signal.SIGKILL)
    return [1.0] * len(completions)


kept: list[bytearray] = []


def fills_memory(completions, **kwargs):
    """A large completion takes 300 MB at once, a child 300 MB in another process, and any other leaves 60 MB behind."""
    held = bytearray(b"x" * (300 if "large" in completions else 60) * 2**20)
    if "child" in completions:
        subprocess.run([sys.executable, "-c", "import time\nheld = bytearray(b'x' * 300 * 2**20)\ntime.sleep(60)"], check=True)
    kept.append(held)
    time.sleep(60 if "large" in completions else 0.25)
    return [1.0] * len(completions)


def needs_memory(completions, **kwargs):
    kept.append(bytearray(b"x" * 100 * 2**20))
    time.sleep(60)


def looks_for_a_terminal(completions, **kwargs):
    """1.0 where there is none to read from, behind no descriptor; prints the completions."""
    try:
        typed = input()
    except EOFError:
        typed = ""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))
        typed = "a terminal"
    except OSError:
        pass
    for text in completions:
        print(text, flush=True)
    return [float(not typed and os.readlink("/proc/self/fd/2").startswith("pipe:"))] * len(completions)


def always_hangs(completions, **kwargs):
    time.sleep(60)


def big_integer_on_hang(completions, **kwargs):
    """Holds the interpreter lock for good: no thread of the worker gets a turn, only a signal ends it."""
    if "hang" in completions:
        return [float(len(str(3 ** (10**9))))]
    return [1.0] * len(completions)


def die_on_die(completions, **kwargs):
    if "die" in completions:
        os._exit(7)
    return [1.0] * len(completions)


def always_dies(completions, **kwargs):
    os.kill(os.getpid(), 11)


def noisy(completions, **kwargs):
    print("print to stdout\n" * 100, flush=True)
    os.write(1, b"\x00\x00\x00\x05hello straight to descriptor 1\n" * 100)
    subprocess.run([sys.executable, "-c", "print('a child prints')"], check=True)
    print("print to stderr", file=sys.stderr)
    assert sys.stdin.read() == ""
    return [1.0] * len(completions)


def has_torch(completions, **kwargs):
    return [float("torch" in sys.modules)] * len(completions)


def in_process_id(completions, **kwargs):
    return [float(os.getpid())] * len(completions)


def batch_size(completions, **kwargs):
    return [float(len(completions))] * len(completions)


def batch_size_split(completions, **kwargs):
    return [float(len(completions))] * len(completions)


batch_size_split.per_completion = True  # type: ignore[attr-defined]


async def meets(completions, place, **kwargs):
    return await meeting(1.0, completions, place)


async def meets_too(completions, place, **kwargs):
    return await meeting(2.0, completions, place)


async def meets_as_well(completions, place, **kwargs):
    return await meeting(3.0, completions, place)


async def meeting(value, completions, place):
    """The value, once three functions have come to the place; nothing, if they do not come within half a minute."""
    (Path(place[0]) / str(value)).touch()
    for _ in range(3000):
        if len(list(Path(place[0]).iterdir())) == 3:
            return [value] * len(completions)
        await asyncio.sleep(0.01)
    return [None] * len(completions)


def strict(prompts, completions, answer):
    """No **kwargs: gets the three it names and nothing else."""
    return [float(p == "q" and c == a) for p, c, a in zip(prompts, completions, answer, strict=True)]


def needs_solution(completions, solution):
    return [1.0] * len(completions)


def logs(completions, log_extra=None, log_metric=None, **kwargs):
    log_extra("length", [len(c) for c in completions])
    log_extra("wrong_length", [1])
    log_metric("longest", max(len(c) for c in completions))
    log_metric("mean", 5.0)
    log_metric("bad", float("nan"))
    return [1.0] * len(completions)


def logs_again(completions, log_extra, **kwargs):
    log_extra("length", ["other"] * len(completions))
    return [1.0] * len(completions)


def progress(completions, trainer_state, **kwargs):
    assert trainer_state.epoch == trainer_state.global_step / trainer_state.max_steps
    return [trainer_state.global_step + trainer_state.max_steps / 1000] * len(completions)


def chat_content(completions, prompts, **kwargs):
    return [
        float(c[0]["content"] == "good" and c[0]["role"] == "assistant" and p[0]["role"] == "user")
        for c, p in zip(completions, prompts, strict=True)
    ]


def sees_columns(completions, completion_ids, number, nested, sometimes, **kwargs):
    assert set(kwargs) == {"prompts", "trainer_state", "log_extra", "log_metric"}, sorted(kwargs)
    return [sum(ids) + n + x["k"][0] + (s or 0) for ids, n, x, s in zip(completion_ids, number, nested, sometimes, strict=True)]


def picky_extract(text, suffix=""):
    if text == "bad":
        raise ValueError("no")
    return None if text == "none" else text + suffix


def with_extract(completions, suffix="", **kwargs):
    return [1.0] * len(completions)


with_extract.extract = picky_extract  # type: ignore[attr-defined]


def hanging_extract(completions, **kwargs):
    return [1.0] * len(completions)


hanging_extract.extract = lambda text: time.sleep(60)  # type: ignore[attr-defined]


class Holder:
    @staticmethod
    def static(completions, **kwargs):
        return [float(os.getpid())] * len(completions)

    def method(self, completions, **kwargs):
        return [float(os.getpid())] * len(completions)


def steps_as_told(completions, **kwargs):
    """Each completion says in Python what is to be returned for it."""
    import numpy

    return [eval(text, {"np": numpy, "nan": float("nan")}) for text in completions]


steps_as_told.per_completion = True  # type: ignore[attr-defined]


async def steps_as_told_later(completions, **kwargs):
    await asyncio.sleep(0)
    return steps_as_told(completions)


def chat_steps(completions, **kwargs):
    """A wrong step and a right one at the end of the assistant's text."""
    return [[(1, 0.0), (len(c[-1]["content"]), 1.0)] for c in completions]


def hang_or_steps(completions, **kwargs):
    while "hang" in completions:
        time.sleep(60)
    return [[(len(c), 1.0)] for c in completions]


# -- scored one completion at a time (test_early_scoring) ---------------------------------------------------------------


def score_alone(completions, answer, log_extra, log_metric, log_verdict, **columns):
    """A score, a column, a metric and a verdict of each completion."""
    log_extra("length", [len(text) for text in completions])
    log_metric("letters", [text.count("x") for text in completions if "x" in text])
    for row, text in enumerate(completions):
        log_verdict(row, "long" if len(text) > 9 else "short")
    return [len(text) / 7 + gold for text, gold in zip(completions, answer, strict=True)]


def raise_on_one(completions, answer, **columns):
    if any("text 13 " in text for text in completions):
        raise ValueError("13")
    return [float(len(text)) for text in completions]


def forget_one(completions, **columns):
    return [1.0] * (len(completions) - any("text 13 " in text for text in completions))


def log_badly(completions, log_extra, **columns):
    log_extra("odd", [1] if any("text 13 " in text for text in completions) else completions)
    return [1.0] * len(completions)


def log_sometimes(completions, log_extra, **columns):
    """Like a function that logs a column only if there is an error."""
    if any("text 13 " in text for text in completions):
        log_extra("error", [text if "text 13 " in text else None for text in completions])
    return [1.0] * len(completions)


for one in (score_alone, raise_on_one, forget_one, log_badly, log_sometimes):
    one.per_completion = True  # type: ignore[attr-defined]
