"""Rollouts and GRPO steps of the 4.4 M parameter model on this CPU, compared with HF generate and TRL, with targets.

    python benchmarks/speed_cpu.py                     about seven minutes on two quiet cores; results into docs/results
    python benchmarks/speed_cpu.py --only cpu-rollout-fixed --out /tmp
    python benchmarks/speed_table.py docs/results/*.json   the table of docs/speed.md from them

Ratios are to peers in the same run: noise of the machine affects both, in three rounds. Ragged lengths have a mean of half the
maximum.
"""

from __future__ import annotations

import sys

from speed import Options
from speed_cases import SpeedCase, SpeedTarget, run_cases

SIZES = {"prompts": 16, "group": 8, "prompt_tokens": 16, "device": "cpu"}
ROLLOUT = {**SIZES, "new": 128, "stages": "rollout", "rounds": 3}
STEP = {**SIZES, "new": 64, "stages": "step", "rounds": 3}

CASES = (
    SpeedCase(
        "cpu-rollout-fixed", ("tiny",), Options(**ROLLOUT),
        (SpeedTarget("rollout", "ratio:hf_generate", low=2.0),),
    ),
    SpeedCase(
        "cpu-rollout-ragged", ("tiny",), Options(**ROLLOUT, lengths="ragged"),
        (SpeedTarget("rollout", "ratio:hf_generate", low=3.5),),
    ),
    SpeedCase(
        "cpu-step-fixed", ("tiny",), Options(**STEP),
        (SpeedTarget("step", "ratio:trl", low=1.5),),
    ),
    SpeedCase(
        "cpu-step-ragged", ("tiny",), Options(**STEP, lengths="ragged", silent_every=3),
        (SpeedTarget("step", "ratio:trl", low=2.5),),
    ),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(run_cases(CASES, __doc__))
