"""Pages of docs/ that are written from the code are as the code would write them."""

from __future__ import annotations

import runpy

import pytest

from pages import DOCS, read_page

PAGES = runpy.run_path(str(DOCS / "generators" / "__main__.py"))["PAGES"]


@pytest.mark.parametrize("name", [name for name in PAGES if name != "house.svg"])  # its lines drift: tests/test_house.py
def test_a_page_is_current(name):
    assert PAGES[name]() == read_page(name), "run: make docs"
