"""What a browser makes of a page: which cards are wider inside than outside. Debian's chromium, headless, with nothing of the network."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=4000",
    "--dump-dom",
]
LOOK = """
addEventListener('load', () => {
  const found = [...document.querySelectorAll('iframe')].map(frame => {
    const page = frame.contentDocument, all = [page.documentElement, ...page.querySelectorAll('.card')];
    const wide = all.filter(box => box.scrollWidth > box.clientWidth);
    return [all.length, wide.map(box => [box.clientWidth, box.scrollWidth, box.textContent.slice(0, 60)])];
  });
  const out = document.createElement('pre');
  out.id = 'found'; out.textContent = JSON.stringify(found); document.body.replaceChildren(out);
});
"""


def find_overflow(pages: Sequence[str], widths: Sequence[int], folder: Path) -> list[list]:
    """[boxes looked at, [width, needed, text] of those that overflow] of every page at every width, in one start of the browser."""
    # The page forbids every script but its own; here a script from outside must look into it.
    open_pages = [re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page) for page in pages]
    frames = "".join(
        f'<iframe width="{width}" height="900" srcdoc="{html.escape(page)}"></iframe>'
        for page in open_pages
        for width in widths
    )
    file = folder / "frames.html"
    file.write_text(f"<!doctype html><meta charset=utf-8><body>{frames}<script>{LOOK}</script>", encoding="utf-8")
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", f"file://{file}"]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    found = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    assert found, dom[-2000:]
    return json.loads(html.unescape(found[1]))
