"""The arithmetic of lab.html, in a real browser, against the functions that train: over 10,000 random points, to 1e-12."""

from __future__ import annotations

import json
import random
import re

import pytest
import torch

from browsing.stage import Stage
from cohort.algorithms.advantages import compute_std, group_normalized
from cohort.algorithms.named import NAMED
from cohort.observe.report.lab import MODULES, join_modules, read_file, render_lab
from cohort.tools.dashboard.lab import clipping, difficulty, divergence, groups

TOLERANCE = 1e-12
FOUR_WORDS = (0.4, 0.3, 0.2, 0.1)


class Arithmetic:
    """The module of the page, asked many questions at once."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        script = re.sub(r"^export ", "", read_file("lab_arithmetic.js"), flags=re.MULTILINE)

        def load():
            page = stage.browser.new_page()
            page.evaluate(f"() => {{ {script}\n window.answers = answers; }}")
            return page

        self.page = stage.call(load)
        self.points = 0
        self.furthest = 0.0

    def ask(self, name: str, questions: list[dict]) -> list[dict]:
        ask = "([name, questions]) => JSON.stringify(questions.map(one => answers[name](one)))"
        return json.loads(self.stage.call(self.page.evaluate, ask, [name, questions]))

    def compare(self, found, wanted, where: object) -> None:
        """Numbers, or lists of them, or what holds them by name."""
        if isinstance(wanted, dict):
            for key, value in wanted.items():
                self.compare(found[key], value, (where, key))
        elif isinstance(wanted, list | tuple):
            assert len(found) == len(wanted), where
            for place, (a, b) in enumerate(zip(found, wanted, strict=True)):
                self.compare(a, b, (where, place))
        else:
            error = abs(found - wanted) / max(1.0, abs(wanted))
            assert error <= TOLERANCE, f"{where}: {found!r} for {wanted!r}"
            self.furthest = max(self.furthest, error)


@pytest.fixture(scope="module")
def arithmetic(stage):
    made = Arithmetic(stage)
    yield made
    stage.call(made.page.close)


def draw_rewards(rng: random.Random, size: int) -> list[float]:
    """As sliders and cards give them, as runs do, and all equal."""
    kind = rng.random()
    if kind < 0.1:
        return [rng.choice([0.0, 1.0, 0.3])] * size
    if kind < 0.4:
        return [float(rng.random() < 0.3) for _ in range(size)]
    if kind < 0.7:
        return [round(rng.random() * 20) / 20 for _ in range(size)]
    return [-2.0, 3.0, *(rng.uniform(-3, 3) for _ in range(size - 2))]


def check_groups(arithmetic: Arithmetic, rng: random.Random) -> None:
    for size in range(2, 17):
        for ddof in (0, 1):
            rewards = [draw_rewards(rng, size) for _ in range(200)]
            rewards_PG = torch.tensor(rewards, dtype=torch.float64)
            wanted = group_normalized(rewards_PG, torch.ones_like(rewards_PG, dtype=torch.bool), std_ddof=ddof).tolist()
            found = arithmetic.ask("group", [{"rewards": row, "ddof": ddof} for row in rewards])
            for row, one, advantages in zip(rewards_PG, found, wanted, strict=True):
                expected = {"advantages": advantages, "mean": float(row.mean()), "std": float(compute_std(row, ddof))}
                arithmetic.compare(one, expected, ("group", row.tolist(), ddof))
            arithmetic.points += len(rewards)
            whole = groups.compare_group(rewards[0], ddof)
            arithmetic.compare(found[0], whole, ("group", rewards[0], ddof))


def check_clips(arithmetic: Arithmetic, rng: random.Random) -> None:
    for number in range(25):
        words = {"clip_low": rng.uniform(0, 0.9), "clip_high": rng.uniform(0, 1)}
        asked = {
            "advantage": rng.choice([1, -1]) * (1 if number % 2 else rng.uniform(0.1, 3)),
            "probability": rng.uniform(0.01, 0.9),
        }
        asked |= {"length": rng.randint(1, 32), "ratio": rng.uniform(0.05, 4)} | words
        found = arithmetic.ask("clip", [asked])[0]
        ratios = clipping.list_ratios(asked["probability"])
        arithmetic.compare(found["ratios"], ratios, "ratios")
        traced = clipping.trace_regions(
            [found["ratio"], *ratios], asked["advantage"], words, asked["probability"], asked["length"]
        )
        assert list(traced) == list(found["regions"]) == list(NAMED["region"])
        for name, region in traced.items():
            one = found["regions"][name]
            arithmetic.compare([one["surrogate"], *one["curve"]["surrogate"]], region["surrogate"], (name, asked))
            arithmetic.compare([one["slope"], *one["curve"]["slope"]], region["slope"], (name, asked))
            assert one["silenced"] == region["silenced"][0], (name, asked)
        arithmetic.points += 1 + len(ratios)


def check_difficulty(arithmetic: Arithmetic, rng: random.Random) -> None:
    for size in (*range(2, 17), 32, 64):
        asked = [{"p": rng.random(), "group_size": size} for _ in range(10)]
        names = ("group_normalized", "group_centered", "leave_one_out", "relative_to_mean")
        for question, found in zip(asked, arithmetic.ask("difficulty", asked), strict=True):
            assert tuple(found["weights"]) == names
            wanted = {
                "weights": {name: difficulty.weigh(name, question["p"], size, 0.5) for name in names},
                "outcomes": [difficulty.chance(k, size, question["p"]) for k in range(size + 1)],
            }
            wanted["useful"] = 1 - wanted["outcomes"][0] - wanted["outcomes"][-1]
            arithmetic.compare(found, wanted, question)
        curve = {name: [difficulty.weigh(name, p, size, 0.5) for p in difficulty.CURVE] for name in names}
        arithmetic.compare(found["curve"], {"p": list(difficulty.CURVE), "weights": curve}, size)
        arithmetic.points += len(asked) + len(difficulty.CURVE)


def check_kl(arithmetic: Arithmetic, rng: random.Random) -> None:
    asked = [{"drift": rng.uniform(0, 3), "toward": rng.randrange(4)} for _ in range(150)]
    for question, found in zip(asked, arithmetic.ask("kl", asked), strict=True):
        wanted = divergence.measure_at(FOUR_WORDS, question["toward"], question["drift"])
        mirrored = {
            name: {field: one[field] for field in ("values", "mean", "bias", "variance", "deviation")}
            for name, one in wanted["estimators"].items()
        }
        arithmetic.compare(found, {"policy": wanted["policy"], "exact": wanted["exact"], "estimators": mirrored}, question)
    arithmetic.compare(found["shape"], divergence.trace_shape(), "shape")
    arithmetic.points += len(asked) + len(divergence.GAPS)


def test_the_page_says_what_the_functions_that_train_say(arithmetic):
    rng = random.Random(17)
    for check in (check_groups, check_clips, check_difficulty, check_kl):
        check(arithmetic, rng)
    print(f"{arithmetic.points} points, furthest apart by {arithmetic.furthest:.1e}")
    assert arithmetic.points >= 10_000


def test_an_error_in_the_arithmetic_would_be_noticed(arithmetic):
    with pytest.raises(AssertionError, match="clip"):
        arithmetic.compare({"clip": [1.0, 2.0]}, {"clip": [1.0, 2.0 + 1e-11]}, "region")


def test_the_page_holds_this_arithmetic_and_is_small():
    assert MODULES[0] == "lab_arithmetic.js"
    script = join_modules()
    assert "import" not in re.findall(r"^\w+", script, re.MULTILINE)
    body = read_file("lab_arithmetic.js").split("\n", 3)[3].replace("export const answers", "const answers")
    assert body in script
    assert script in render_lab()
    lines = [line for line in read_file("lab_arithmetic.js").splitlines() if line.strip() and not line.startswith("//")]
    assert len(lines) <= 95, "it mirrors four stations, and no more"
    assert len(render_lab().encode()) < 100_000
