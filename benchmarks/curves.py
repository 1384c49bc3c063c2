"""Cost curves: the same as `cohort bench curves`, with the result and its drawing in docs/results.

    python benchmarks/curves.py                              all axes, by the machine
    python benchmarks/curves.py --axes prompts,length        some of them
    python benchmarks/curves.py --axes length --points 128,1024,8192

What each slope means, and which one is expected: docs/speed.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cohort.tools.bench.cases import RESULTS
from cohort.tools.bench.command import Options
from cohort.tools.bench.curves import run_curves


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="SHAPE KEY=VALUE", help="as for cohort bench")
    parser.add_argument("--axes", default="", help="some of group,length,prompts,model,head; all unless named")
    parser.add_argument("--points", default="", help="other points on one axis, with commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--name", default="curves", help="of the files")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder; docs/results unless named")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    options = Options(repeats=chosen.repeats, out=chosen.out / f"{chosen.name}.json", plot=chosen.out / f"{chosen.name}.svg")
    document = run_curves(chosen.words, options, chosen.axes, chosen.points, lambda text: print(text, flush=True))
    return 0 if all(curve["as_expected"] for curve in document["curves"]) else 1


if __name__ == "__main__":
    sys.exit(main())
