"""docs/lab-pictures.html in a real browser: its arithmetic equals the training functions', and its three pictures work."""

from __future__ import annotations

import json
import random
import re

import pytest
import torch

from browsing.checks import check_keyboard, check_labels_and_contrast, check_narrow, check_still
from cohort.algorithms.advantages import compute_std, gae, group_normalized
from pages import DOCS

PAGE = DOCS / "lab-pictures.html"
TOLERANCE = 1e-12


@pytest.fixture
def pictures(stage):
    made = stage.call(stage.open, f"file://{DOCS}")
    stage.call(made.page.goto, f"file://{PAGE}")
    yield made
    stage.call(made.close)


def draw_rewards(rng: random.Random, size: int) -> list[float]:
    """Rewards as cards and sliders give them, larger ones, and equal ones."""
    kind = rng.random()
    if kind < 0.1:
        return [rng.choice([0.0, 1.0, 0.3])] * size
    if kind < 0.4:
        return [float(rng.random() < 0.3) for _ in range(size)]
    if kind < 0.7:
        return [round(rng.random() * 20) / 20 for _ in range(size)]
    return [-2.0, 3.0, *(rng.uniform(-3, 3) for _ in range(size - 2))]


def find_error(found: list[float], wanted: list[float]) -> float:
    assert len(found) == len(wanted)
    return max(abs(a - b) / max(1.0, abs(b)) for a, b in zip(found, wanted, strict=True))


def test_the_arithmetic_of_the_page_is_that_of_the_training_functions(visit, pictures):
    rng = random.Random(17)
    questions = [
        (draw_rewards(rng, size), ddof, round(rng.random(), 2)) for size in range(2, 17) for ddof in (0, 1) for _ in range(350)
    ]
    ask = "asked => JSON.stringify(asked.map(([rewards, ddof, value]) => [creditGroup(rewards, ddof), creditCritic(rewards, value)]))"
    answers = json.loads(pictures.page.evaluate(ask, questions))
    errors = []
    for (rewards, ddof, value), (group, critic) in zip(questions, answers, strict=True):
        rewards_PG = torch.tensor([rewards], dtype=torch.float64)
        advantages = group_normalized(rewards_PG, torch.ones_like(rewards_PG, dtype=torch.bool), std_ddof=ddof)[0].tolist()
        signal = sum(map(abs, advantages)) / len(advantages)
        wanted = [*advantages, float(rewards_PG.mean()), float(compute_std(rewards_PG[0], ddof)), signal]
        errors.append(find_error([*group["advantages"], group["mean"], group["std"], group["signal"]], wanted))
        values = torch.full((1,), value, dtype=torch.float64)
        wanted = [float(gae(reward, values, 1.0, 1.0)[0]) for reward in rewards_PG[0].split(1)]
        errors.append(find_error(critic, wanted))
    print(f"{len(questions)} groups, largest error {max(errors):.1e}")
    assert len(questions) >= 10_000
    assert max(errors) <= TOLERANCE


def test_three_pictures_follow_cards_sliders_and_presets(visit, pictures):
    page = pictures.page
    cards, sliders, baselines = (page.locator(f"[data-picture={name}]") for name in ("cards", "sliders", "baselines"))
    assert "+2.236" in cards.locator("svg").get_attribute("aria-label")  # sqrt(5): a single success among six
    cards.get_by_role("button", name="four of six right").click()
    assert cards.get_by_role("status").inner_text().startswith("mean 0.667, std 0.471")
    cards.get_by_role("button", name="Completion 2: reward 0").click()
    assert cards.get_by_role("status").inner_text().startswith("mean 0.833")
    assert "+1.72" in sliders.locator("svg").get_attribute("aria-label")
    sliders.get_by_role("button", name="all equal").click()
    assert "gradient signal 0. All rewards are equal" in sliders.get_by_role("status").inner_text()
    sliders.get_by_role("slider", name="reward 1").press("ArrowDown")
    assert "gradient signal 0.866" in sliders.get_by_role("status").inner_text()
    assert len(baselines.locator("polyline.line").all()) == 2
    assert "GRPO: +0.707, −1.414" in baselines.get_by_role("status").inner_text()
    assert "PPO: +0.5, −0.5" in baselines.get_by_role("status").inner_text()
    before = [baselines.locator(f"polyline.{name}").get_attribute("points") for name in ("grpo", "critic")]
    baselines.get_by_role("slider", name="The critic expects").press("End")
    assert "PPO: 0, −1" in baselines.get_by_role("status").inner_text()
    assert "GRPO: +0.707, −1.414" in baselines.get_by_role("status").inner_text()
    after = [baselines.locator(f"polyline.{name}").get_attribute("points") for name in ("grpo", "critic")]
    assert before[0] == after[0]
    assert before[1] != after[1]


def test_the_page_loads_nothing_and_can_be_read_and_used_by_keyboard(visit, pictures):
    check_labels_and_contrast(pictures)
    check_narrow(pictures)
    check_still(pictures)
    assert len(check_keyboard(pictures)) == 6 + 2 + 4 + 2 + 6 + 2 + 1
    assert pictures.asked == [f"file://{PAGE}"]
    pictures.check()


def test_the_arithmetic_is_small_and_takes_no_markup():
    script = re.search(r"<script>(.*)</script>", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    lines = [line for line in script.splitlines() if line.strip() and not line.lstrip().startswith("//")]
    assert len(lines) <= 100
    assert "innerHTML" not in script
