"""A run is followed while it trains, without reloading."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from browsing.stage import Dashboard, Stage, Visit, start_dashboard
from cohort.recipe.values import Materials

sys.path.insert(0, str(Path(__file__).parents[3]))

from session_tools import tiny

STEPS = 4


class Watcher:
    """A monitor that opens the page of the run after its first step, and lets later ones end only when the page shows them."""

    def __init__(self, stage: Stage, dashboard: Dashboard) -> None:
        self.stage, self.dashboard, self.seen = stage, dashboard, []
        self.visit: Visit | None = None

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        self.stage.call(self.look_at, row["step"])

    def look_at(self, step: int) -> None:
        if self.visit is None:
            self.visit = self.stage.open(self.dashboard.url)
            self.visit.go("/run/run")
            self.visit.page.evaluate("window.opened = 'once'")
        if step in (1, STEPS - 1):
            self.wait_for(f"{step} of {STEPS}")
            self.seen.append(step)

    def wait_for(self, text: str) -> None:
        self.visit.page.wait_for_function(
            "text => document.querySelector('main').textContent.includes(text)", arg=text, timeout=120_000
        )


@pytest.mark.prove
def test_a_run_is_followed_while_it_trains(stage, tmp_path):
    from cohort.session import start

    (tmp_path / "runs").mkdir()
    dashboard = start_dashboard(tmp_path / "runs", tmp_path / "log")
    watcher = Watcher(stage, dashboard)
    try:
        start(tiny(tmp_path / "runs", **{"train.num_steps": STEPS}), Materials(monitors=[watcher]))
        assert watcher.seen == [1, STEPS - 1]
        stage.call(watcher.wait_for, "finished")
        assert stage.call(watcher.visit.page.evaluate, "window.opened") == "once"
        stage.call(watcher.visit.check)
    finally:
        if watcher.visit is not None:
            stage.call(watcher.visit.close)
        dashboard.stop()


def write_small_run(folder: Path, steps: int = 3) -> None:
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("".join(f'{{"step": {step}, "reward/mean": 0.5}}\n' for step in range(1, steps + 1)))


def test_selection_and_focus_stay_when_runs_come_and_go(visit, tmp_path):
    for name in ("b", "c"):
        write_small_run(tmp_path / "runs" / name)
    dashboard = start_dashboard(tmp_path / "runs", tmp_path / "log")
    try:
        here = visit(dashboard, "/?sort=name")
        here.page.get_by_role("checkbox", name="Compare b").check()
        here.page.get_by_role("link", name="c", exact=True).focus()
        write_small_run(tmp_path / "runs" / "a")
        here.page.get_by_role("checkbox", name="Compare a").wait_for()
        ticked = here.page.locator("input[type=checkbox]:checked").evaluate_all("all => all.map(one => one.value)")
        assert ticked == ["b"]
        assert here.page.evaluate("document.activeElement.textContent") == "c"
        here.go("/run/c")
        shutil.rmtree(tmp_path / "runs" / "c")
        here.page.wait_for_function(
            "() => document.getElementById('pulse').textContent === 'this page no longer exists'", timeout=60_000
        )
        here.page.wait_for_timeout(1500)  # the age of the page is written every second, over whatever stands there
        assert here.page.locator("#pulse").inner_text() == "this page no longer exists"
        assert here.problems.pop().endswith("404 (Not Found)")
    finally:
        dashboard.stop()
