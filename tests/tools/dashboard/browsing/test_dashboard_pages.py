"""Every page in a real browser: no errors, readable in light and dark mode and on a phone, no animation, usable by keyboard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from browsing.addresses import list_examples
from browsing.checks import check_keyboard, check_labels_and_contrast, check_narrow, check_no_markup, check_still
from browsing.stage import Dashboard, Stage, Visit

LATER = (
    "/lab/baselines",
    "/lab/pushed",
    "/lab/difficulty",
    "/lab/length",
    "/lab/kl",
    "/lab/run",
)
"""Pages made of the same parts as others: `make prove` holds them to it as well."""


@pytest.fixture(scope="module")
def reader(stage: Stage, dashboard: Dashboard) -> Iterator[Visit]:
    """One visitor who goes from page to page: a browser takes a second to begin with each new one."""
    made = stage.call(stage.open, dashboard.url)
    yield made
    stage.call(made.close)


def mark_later(address: str) -> object:
    return pytest.param(address, marks=pytest.mark.prove) if address.startswith(LATER) else address


@pytest.mark.parametrize("address", map(mark_later, list_examples()))
def test_a_page_is_accessible(stage, reader, address):
    stage.call(hold_to_everything, reader, address)


def hold_to_everything(page: Visit, address: str) -> None:
    page.page.emulate_media(color_scheme="light", reduced_motion="reduce")
    page.page.set_viewport_size({"width": 1280, "height": 900})
    page.go(address)
    page.page.wait_for_load_state("networkidle")
    assert page.page.locator("h1").count() == 1
    check_no_markup(page)
    check_still(page)
    assert len(check_keyboard(page)) >= 4
    check_narrow(page)
    check_labels_and_contrast(page)
    page.check()
