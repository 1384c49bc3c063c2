"""Named algorithms as rows of choices. A preset is data: it expands into the recipe and any choice can be overridden."""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # DeepSeekMath, arXiv 2402.03300, eq. 3 and section 4.2.
    "grpo": {
        "advantage": "group_normalized",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "kl_coef": 0.04,
        "aggregation": "sequence_mean",
    },
    # "Understanding R1-Zero-like training", arXiv 2503.20783: no length bias, no difficulty bias.
    "dr_grpo": {
        "advantage": "group_centered",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "kl_coef": 0.0,
        "aggregation": "constant",
    },
}
