"""40 injection payloads in every text field of a run folder: none runs, all are shown as text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from urllib.parse import quote

import pytest

from browsing.addresses import fill_route, list_examples
from browsing.checks import check_no_markup
from browsing.made_run import Words, make_run
from browsing.payloads import PAYLOADS
from browsing.stage import Dashboard, Visit, start_dashboard
from cohort.base.text import make_printable

COUNT = len(PAYLOADS)
STEPS = 4


def make_hostile_words(payloads: list[str]) -> Words:
    """Each payload is the prompt, the gold, the completion, ... of a group; all of them are names of rewards, columns and metrics."""

    def pick(number: int) -> str:
        return payloads[number % len(payloads)]

    return Words(
        prompt=pick, gold=pick, completion=lambda number, off: f"{off} {pick(number)}", extracted=lambda number, off: pick(number),
        columns=payloads, cell=pick, rewards=payloads, metrics=payloads, faults=payloads, messages=payloads,
        pieces=lambda number: [pick(number)], set_name=payloads[0],
        recipe={"prompts": {"template": "".join(payloads).replace("{", "{{").replace("}", "}}")}},
    )  # fmt: skip


def name_run(payload: str) -> str:
    """The payload as the name of a folder."""
    return payload.replace("/", "∕").replace("\0", "")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """A run with all of them in all places, and a run by the name of each, which failed with it."""
    folder = tmp_path_factory.mktemp("hostile")
    for name in ("all", "too"):
        make_run(folder / "runs" / name, STEPS, groups=COUNT, group_size=4, words=make_hostile_words(PAYLOADS))
    for payload in PAYLOADS:
        failure = {"error": payload, "failure": {"type": payload, "where": payload}, "stopped": payload}
        words = make_hostile_words([payload])
        run = make_run(
            folder / "runs" / name_run(payload), 2, groups=1, kept_every=2, words=words, status="failed", summary=failure
        )
        for inner in ("rollouts", "samples", "checkpoints"):
            (run / inner).mkdir(exist_ok=True)
            (run / inner / name_run(payload)).write_text(payload, encoding="utf-8")
    dashboard = start_dashboard(folder / "runs", folder / "log")
    yield dashboard
    dashboard.stop()


def find_missing(page: Visit, texts: Iterable[str]) -> list[str]:
    """Those that the page does not show letter by letter, spaces aside."""
    shown = "".join(page.read_text().split())
    return [text for text in texts if "".join(make_printable(text).split()) not in shown]


def test_names_of_runs_are_text(visit, hostile):
    page = visit(hostile, "/")
    check_no_markup(page)
    assert find_missing(page, map(name_run, PAYLOADS)) == []


def list_addresses(group: int) -> list[str]:
    """Every page, about a group of the run that holds all payloads."""
    pages = [
        one
        for one in list_examples(name="all", other="too", step=str(STEPS), group=str(group), sample="1", index=str(group))
        if one != "/"
    ]
    return [*pages, f"/run/all/groups?step={STEPS}&find={quote(PAYLOADS[group])}"]


def attack_pages(visit: Callable[..., Visit], dashboard: Dashboard, groups: Iterable[int]) -> None:
    page = visit(dashboard)
    for group in groups:
        for address in list_addresses(group):
            page.go(address)
            check_no_markup(page)
            page.check()
            if f"/{group}" in address:
                assert find_missing(page, [PAYLOADS[group]]) == [], address


def test_all_texts_of_a_run_stay_text(visit, hostile):
    attack_pages(visit, hostile, [4])


@pytest.mark.prove
@pytest.mark.parametrize("group", range(COUNT))
def test_no_payload_runs_anywhere(visit, hostile, group):
    attack_pages(visit, hostile, [group])


@pytest.mark.prove
@pytest.mark.parametrize("payload", PAYLOADS)
def test_errors_are_text(visit, hostile, payload):
    page = visit(hostile, "/")
    page.page.get_by_role("link", name=make_printable(name_run(payload)).strip(), exact=True).first.click()
    page.page.wait_for_url("**/run/**")
    check_no_markup(page)
    assert find_missing(page, [payload]) == []


def test_texts_in_the_address_are_text(visit, hostile):
    """What is not found is not repeated as markup either."""
    page = visit(hostile)
    for payload in PAYLOADS[::10]:
        for address in (
            f"/run/{quote(payload, safe='')}",
            f"/{quote(payload, safe='')}",
            fill_route("/run/{name}/group/{step}/{group}", name="all", step=quote(payload, safe="")),
        ):
            page.page.goto(page.base + address)
            check_no_markup(page)
    page.problems[:] = [one for one in page.problems if "404" not in one]
