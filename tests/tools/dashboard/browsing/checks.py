"""Checks that every page has to pass."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from browsing.stage import Visit

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
FIND_WIDE = """
() => {
  const width = document.documentElement.clientWidth, found = [];
  if (document.documentElement.scrollWidth > width) found.push(`the page is ${document.documentElement.scrollWidth} wide`);
  const scrolls = node => { for (let n = node.parentElement; n; n = n.parentElement)
    if (['auto', 'scroll', 'hidden', 'clip'].includes(getComputedStyle(n).overflowX)) return true; return false; };
  for (const node of document.querySelectorAll('body *')) {
    const box = node.getBoundingClientRect();
    if (box.width && box.right > width + 1 && !node.closest('svg svg, svg *') && !scrolls(node)) found.push(`${node.tagName}.${node.className} ends at ${Math.round(box.right)}: ${node.textContent.slice(0, 60)}`);
  }
  return found.slice(0, 8);
}
"""
FIND_MOVING = """
() => {
  const found = document.getAnimations().map(one => `${one.effect?.target?.tagName} is animated`);
  for (const node of document.querySelectorAll('*')) {
    const style = getComputedStyle(node);
    const longest = text => Math.max(...text.split(',').map(one => parseFloat(one) * (one.trim().endsWith('ms') ? 0.001 : 1)));
    if (style.animationName !== 'none' && longest(style.animationDuration) > 0.01) found.push(`${node.tagName}.${node.className}: ${style.animationName}`);
    if (longest(style.transitionDuration) > 0.01) found.push(`${node.tagName}.${node.className}: transition`);
    if (style.scrollBehavior === 'smooth') found.push(`${node.tagName}: smooth scrolling`);
  }
  return found.slice(0, 8);
}
"""
FIND_MARKUP = """
() => {
  const found = [];
  for (const node of document.querySelectorAll('*')) {
    for (const {name, value} of node.attributes) {
      if (/^on/i.test(name)) found.push(`${node.tagName} ${name}=${value.slice(0, 60)}`);
      if (['href', 'src', 'action', 'formaction', 'xlink:href', 'data', 'srcdoc'].includes(name) && !/^(\\/(?!\\/)|#|\\?|$)/.test(value))
        found.push(`${node.tagName} ${name}=${value.slice(0, 60)}`);
    }
    if (['IFRAME', 'OBJECT', 'EMBED', 'BASE', 'VIDEO', 'AUDIO', 'IMG', 'STYLE', 'MATH'].includes(node.tagName.toUpperCase())) found.push(node.tagName);
    if (node.tagName === 'SCRIPT' && !node.getAttribute('src')?.startsWith('/static/')) found.push('SCRIPT');
    if (node.tagName === 'META' && node.httpEquiv) found.push(`META ${node.httpEquiv}`);
  }
  return found.slice(0, 8);
}
"""
"""Whatever only a text that was taken for markup can have put there."""
LEAVE = "document.activeElement?.blur(); window.scrollTo(0, 0)"
"""Resets focus and scroll position."""
LIST_STOPS = """
() => [...document.querySelectorAll('a[href],button,input,select,textarea,summary,[tabindex]')].filter(node =>
  node.tabIndex >= 0 && !node.disabled && node.checkVisibility({visibilityProperty: true, contentVisibilityAuto: true})
  && !(node.type === 'radio' && !node.checked && document.querySelector(`input[type=radio][name="${CSS.escape(node.name)}"]:checked`))).length
"""
"""Of radio buttons with one name only the chosen one is a stop."""
DESCRIBE_FOCUS = """
() => {
  const node = document.activeElement;
  if (!node || node === document.body) return null;
  const style = getComputedStyle(node), box = node.getBoundingClientRect();
  node.dataset.seen = (Number(node.dataset.seen ?? 0) + 1);
  return {
    name: `${node.tagName} ${(node.ariaLabel ?? node.textContent ?? '').trim().slice(0, 50)}`, seen: Number(node.dataset.seen),
    shown: style.outlineStyle !== 'none' || style.boxShadow !== 'none' || node.tagName === 'MAIN', inside: box.bottom > 0 && box.top < innerHeight,
  };
}
"""


@cache
def read_axe() -> str:
    import axe_playwright_python

    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def run_axe(visit: Visit, *rules: str) -> list[str]:
    """What axe finds on the page as it is: one line each. rules: those alone; none: all of WCAG 2.2 AA and the good habits."""
    if not visit.page.evaluate("typeof axe !== 'undefined'"):
        visit.page.evaluate(read_axe())
    only = {"type": "rule", "values": list(rules)} if rules else {"type": "tag", "values": RULES}
    found: dict[str, Any] = visit.page.evaluate("only => axe.run({runOnly: only, resultTypes: ['violations']})", only)
    return [
        f"{one['id']}: {one['help']}: {node['html'][:160]} ({node['failureSummary'][:300]})"
        for one in found["violations"]
        for node in one["nodes"][:3]
    ]


def check_labels_and_contrast(visit: Visit) -> None:
    """Runs axe in light mode at desktop width and in dark mode at phone width."""
    for scheme, width, rules in (
        ("light", 1280, ()),
        ("dark", 360, ("color-contrast", "link-in-text-block", "scrollable-region-focusable")),
    ):
        visit.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        visit.page.set_viewport_size({"width": width, "height": 900})
        found = run_axe(visit, *rules)
        assert not found, f"{visit.page.url} in {scheme} at {width} px: {found}"


def check_narrow(visit: Visit, width: int = 360) -> None:
    """Nothing is wider than a phone, except inside scrollable boxes."""
    before = visit.page.viewport_size
    visit.page.set_viewport_size({"width": width, "height": 780})
    found = visit.page.evaluate(FIND_WIDE)
    visit.page.set_viewport_size(before)
    assert not found, f"{visit.page.url} at {width} px: {found}"


def check_still(visit: Visit) -> None:
    """With prefers-reduced-motion nothing is animated."""
    found = visit.page.evaluate(FIND_MOVING)
    assert not found, f"{visit.page.url}: {found}"


def check_no_markup(visit: Visit) -> None:
    found = visit.page.evaluate(FIND_MARKUP)
    assert not found, f"{visit.page.url}: {found}"


def check_keyboard(visit: Visit) -> list[str]:
    """Tab reaches every control with a visible focus and ends. Returns the names of the controls."""
    stops = visit.page.evaluate(LIST_STOPS)
    visit.page.evaluate(LEAVE)
    reached = []
    for _ in range(stops + 3):
        visit.page.keyboard.press("Tab")
        found = visit.page.evaluate(DESCRIBE_FOCUS)
        if found is None or found["seen"] > 1:
            break
        assert found["shown"], f"{visit.page.url}: one cannot see that {found['name']} has the focus"
        assert found["inside"], f"{visit.page.url}: {found['name']} has the focus out of sight"
        reached.append(found["name"])
    visit.page.evaluate(LEAVE)
    assert len(reached) == stops, f"{visit.page.url}: Tab reaches {len(reached)} of {stops}: {reached[-5:]}"
    return reached
