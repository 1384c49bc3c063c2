"""Use of the pages by keyboard, and addresses that reproduce the same view."""

from __future__ import annotations

from browsing.stage import Dashboard, Visit


def press(page: Visit, *keys: str) -> None:
    for key in keys:
        page.page.keyboard.press(key)


def reach(page: Visit, role: str, name: str) -> None:
    """Press Tab until something of that role and name has the focus."""
    target = page.page.get_by_role(role, name=name, exact=True).first
    for _ in range(80):
        if target.evaluate("node => node === document.activeElement"):
            return
        press(page, "Tab")
    raise AssertionError(f"{page.page.url}: Tab does not reach the {role} {name!r}")


def follow(page: Visit, name: str, address: str) -> None:
    """Reach a link and open it."""
    reach(page, "link", name)
    press(page, "Enter")
    page.page.wait_for_url(f"**{address}")


def read_seen(page: Visit) -> str:
    return page.page.locator("main").inner_text()


def check_sent(visit, dashboard: Dashboard, page: Visit) -> None:
    """The address shows the same page to another visitor."""
    other = visit(dashboard, page.page.url.removeprefix(dashboard.url))
    other.page.wait_for_load_state("networkidle")
    assert read_seen(other) == read_seen(page)


def test_from_the_runs_to_a_single_token(visit, dashboard):
    page = visit(dashboard, "/")
    follow(page, "first", "/run/first")
    follow(page, "groups", "/run/first/groups")
    reach(page, "searchbox", "Search")
    page.page.keyboard.type("11+23")
    press(page, "Enter")
    page.page.wait_for_url("**find=11%2B23**")
    follow(page, "0 · 0", "/run/first/group/*/0#sample-0")
    follow(page, "tokens", "/run/first/tokens/*/0/*")
    follow(page, "ratio", "colour=ratio*")
    reach(page, "group", "Tokens of the completion")
    press(page, "ArrowRight", "ArrowRight", "End", "ArrowLeft", "Home", "ArrowRight")
    page.page.wait_for_url("**at=1*")
    name = page.page.locator("#token-name").inner_text()
    assert "token 2 of" in name
    assert "ratio" in page.page.locator("#token-values .chosen").inner_text()
    check_sent(visit, dashboard, page)


def test_filters_are_in_the_address(visit, dashboard):
    page = visit(dashboard, "/run/first/groups")
    for name in ("wrong but rewarded", "truncated", "duplicates"):
        link = page.page.locator("nav.chips a", has_text=name)
        link.focus()
        address = link.get_attribute("href")
        press(page, "Enter")
        page.page.wait_for_url(f"**{address}")
        assert page.page.locator("nav.chips a[aria-current]").inner_text().startswith(name)
        assert page.page.locator("tbody tr").count() > 0
        check_sent(visit, dashboard, page)
