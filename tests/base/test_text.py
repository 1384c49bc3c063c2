"""Text that came from outside, and numbers, as they are shown; and the table of the console."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from cohort.base.text import make_table, shorten_text, write_duration, write_percent, write_rate


def test_text_is_shown_on_one_printable_line():
    assert shorten_text("a\n\x1b[31mb\u202e", 160, one_line=True) == "a\\n\\x1b[31mb\\u202e"
    long = shorten_text("x" * 5000, 160)
    assert len(long) < 200
    assert "4,841 characters left out" in long
    assert "\ud800" not in shorten_text("4\ud800", 160)
    assert shorten_text("reward_of_mine", 8) == "reward_…"
    assert shorten_text("x" * 5000, 0) == "x" * 5000


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [(0.541, None, "54 %"), (0.0541, None, "5.4 %"), (0.0, None, "0 %"), (0.5, 1, "50.0 %"), (0.096, 0, "10 %")],
)
def test_percent(share, digits, text):
    assert write_percent(share, digits) == text


def test_durations_and_rates():
    assert [write_duration(seconds) for seconds in (0, 48, 59.4, 725, 3900)] == ["0 s", "48 s", "59 s", "12 min", "1 h 05 min"]
    assert [write_rate(rate) for rate in (950, 8421)] == ["950 tok/s", "8.4k tok/s"]


def test_cells_of_a_table_are_text_and_numbers_stand_at_the_right():
    out = StringIO()
    rows = [("[red]a[/nope]\x1b[31m", "1.0", "x"), ("b", "100.0", "")]
    Console(file=out, width=60).print(make_table(("set", "after", "[95 %]"), rows))
    assert [line.rstrip() for line in out.getvalue().splitlines()] == [
        r"set                    after  [95 %]",
        r"[red]a[/nope]\x1b[31m    1.0       x",
        r"b                      100.0",
    ]
