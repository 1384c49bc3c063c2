"""When a page is made again: only after a change, and not before 80 times its cost has passed."""

from __future__ import annotations

import pytest

from cohort.errors import NotFound
from cohort.tools.dashboard.pace import AGED_S, MAX_KEPT, SPARED, Pace
from cohort.tools.dashboard.run_index import RunIndex
from cohort.tools.dashboard.view import Page, View


class World:
    """A manual clock, and pages with a given cost."""

    def __init__(self, folder, cost=0.5):
        self.now, self.spent, self.cost, self.made, self.aging = 100.0, 0.0, cost, 0, False
        self.run_index = RunIndex([folder])
        self.pace = Pace(clock=lambda: self.now, cpu=lambda: self.spent)

    def make(self):
        self.made += 1
        self.spent += self.cost
        return Page("x", [("told", f"made {self.made} times")], aging=self.aging)

    def ask(self, path="/run/one", **words):
        view = View(path, {"name": "one"}, tuple(words.items()))
        return self.pace.make(self.run_index, view, self.make, lambda page, view: str(self.made))


@pytest.fixture
def world(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "metrics.jsonl").write_text('{"step": 1}\n')
    return World(tmp_path)


def append(world):
    file = world.run_index.roots[0] / "one" / "metrics.jsonl"
    file.write_text(file.read_text() + '{"step": 2}\n')


def test_without_changes_no_page_is_made_again(world):
    first = world.ask()
    world.now += 10_000
    assert world.ask() is first
    assert world.made == 1


def test_an_aging_page_is_made_again_after_a_minute(world):
    world.aging = True
    world.ask()
    world.now += AGED_S - 1
    assert world.ask().sections == "1"
    world.now += 2
    assert world.ask().sections == "2"
    world.cost = 2 * AGED_S / SPARED  # never sooner than its cost allows
    world.now += AGED_S
    world.ask()
    world.now += 1.5 * AGED_S
    assert world.ask().sections == "3"


def test_a_change_is_shown_after_eighty_times_its_cost(world):
    world.ask()
    append(world)
    world.now += 0.99 * SPARED * world.cost
    assert world.ask().sections == "1"
    world.now += 0.02 * SPARED * world.cost
    assert world.ask().sections == "2"


def test_following_runs_takes_less_than_an_eightieth_of_a_core_however_many_pages_are_open(world):
    pages = [{"smooth": str(number)} for number in range(5)]
    for page in pages:
        world.ask(**page)
    opened, begun = world.spent, world.now
    for _ in range(4000):
        world.now += 1.0
        append(world)
        world.ask(**pages[int(world.now) % 5])
    assert world.made > 50
    assert (world.spent - opened) / (world.now - begun) <= 1.02 / SPARED  # the last one is not yet waited for


def test_a_new_page_never_waits(world):
    world.ask()
    append(world)
    world.now += 1
    assert world.ask(smooth="5").sections == "2"


def test_the_cache_is_bounded_even_for_missing_pages(world):
    for number in range(3 * MAX_KEPT):
        world.ask(find=str(number))

    def refuse():
        raise NotFound("nothing")

    for number in range(50):
        with pytest.raises(NotFound):
            world.pace.make(world.run_index, View(f"/nowhere/{number}"), refuse, lambda page, view: "")
    assert len(world.pace._kept) == MAX_KEPT
    assert len(world.pace._locks) == MAX_KEPT
