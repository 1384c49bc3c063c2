"""The list of built-in rewards in docs/rewards.md, written from their names and first sentences: `python -m cohort.rewards.page`."""

from __future__ import annotations

import inspect
from pathlib import Path

from cohort.rewards import BUILT_IN

BEGIN = "<!-- Written by `python -m cohort.rewards.page` from the first lines of the functions; edit there. -->"
END = "<!-- end -->"


def with_list(page: str) -> str:
    """The page with the list between its two marks made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = []
    for name, function in BUILT_IN.items():
        first = (inspect.getdoc(function) or "").partition("\n")[0]
        rows.append(f"| `{name}` | " + first.replace("<", "&lt;").replace("|", "\\|") + " |")
    table = "\n".join(["| name | what it gives |", "|---|---|", *rows])
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def main() -> None:
    """Write the list in docs/rewards.md of the source tree this module lies in."""
    target = Path(__file__).resolve().parents[3] / "docs" / "rewards.md"
    target.write_text(with_list(target.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
