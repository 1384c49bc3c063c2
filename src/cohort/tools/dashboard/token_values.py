"""Every number of a completion's tokens, and the bands by which a page colours them. No torch.

From the token record (observe/rollouts.py) where the run has one of this completion; else from the step's file, which has the
sampling log-probs and one advantage. What is missing then is said, with the recipe's word that records it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cohort.algorithms.regions import LOG_RATIO_LIMIT

MAX_TOKENS = 100_000
"""Of a completion that are looked at."""
Values = np.ndarray
"""One float64 per token; NaN where there is none."""


@dataclass(frozen=True)
class Column:
    """A number that a token has."""

    label: str
    about: str


COLUMNS: dict[str, Column] = {
    "advantage": Column("advantage", "The reward compared with its group, as it reached this token."),
    "ratio": Column(
        "ratio", "Probability under the policy of this update over that under the policy that is the update's baseline (old)."
    ),
    "clipped": Column("clipped", "Whether the trust region silences the token: -1 below it, 1 above it, 0 inside."),
    "kl": Column("KL (k3)", "exp(d) - d - 1 with d = log reference - log policy, in nats."),
    "entropy": Column("entropy", "Of the policy's distribution at this place, in nats."),
    "logprob": Column("log-prob", "Log-probability of the token under the policy of this update."),
    "coefficient": Column(
        "gradient coefficient", "-d loss / d log-prob before the aggregation weight: above 0 the token is made likelier."
    ),
    "sampling_logprob": Column("sampling log-prob", "As the engine sampled it."),
    "old_logprob": Column("old log-prob", "Under the policy before the step's updates."),
    "ref_logprob": Column("reference log-prob", "Under the reference."),
    "weight": Column("weight", "Of the token in the sum that is the loss."),
}
"""All columns of the table, in its order. Without a record `logprob` is the sampling log-prob."""
COLOURS = ("advantage", "ratio", "clipped", "kl", "entropy", "logprob", "coefficient")
"""Those that tokens can be coloured by."""
RECORDED = {"logprob": "policy_logprob"}
"""Columns that the record calls otherwise; `kl` is worked out."""


@dataclass(frozen=True)
class TokenSheet:
    """The tokens of a completion with their numbers, equally long."""

    pieces: list[str]
    token_ids: list[int]
    mask: list[bool]
    """Which tokens the policy sampled and is trained on."""
    columns: dict[str, Values]
    """Of COLUMNS, those that are known."""
    missing: list[str] = field(default_factory=list)
    """What is not known and why, in sentences."""
    source: str = ""
    """Where the numbers are from, in a sentence."""

    def __len__(self) -> int:
        return len(self.token_ids)


def as_values(numbers: Sequence[Any] | None, length: int) -> Values | None:
    """Numbers of a file as one float per token; None where they are not there or not as many."""
    if numbers is None or len(numbers) != length:
        return None
    return np.array([np.nan if number is None else float(number) for number in numbers], np.float64)


def measure_k3(policy_logprobs_T: Values, ref_logprobs_T: Values) -> Values:
    """The KL to the reference, estimated token by token, with the values of algorithms/regions.py."""
    difference_T = np.minimum(ref_logprobs_T - policy_logprobs_T, LOG_RATIO_LIMIT)
    return np.asarray(np.expm1(difference_T) - difference_T)


def read_recorded(record: Mapping[str, Any]) -> TokenSheet:
    """The sheet of a completion from its row of the token record."""
    token_ids = [int(one) for one in record.get("token_ids") or ()]
    length = len(token_ids)
    columns: dict[str, Values] = {}
    for name in COLUMNS:
        values = as_values(record.get(RECORDED.get(name, name)), length)
        if values is not None and not np.isnan(values).all():
            columns[name] = values
    if "logprob" in columns and "ref_logprob" in columns:
        columns["kl"] = measure_k3(columns["logprob"], columns["ref_logprob"])
    pieces, mask = record.get("pieces") or (), as_values(record.get("mask"), length)
    update, updates, whole = record.get("update"), record.get("updates"), record.get("length") or length
    cut = f" The record has the first {length:,} of its {whole:,} tokens." if whole > length else ""
    took = f"update {update} of {updates} of the step" if update else "no update: the completion took part in none"
    return TokenSheet(
        pieces=[str(piece) for piece in pieces] if len(pieces) == length else [f"#{one}" for one in token_ids],
        token_ids=token_ids,
        mask=[True] * length if mask is None else [bool(one) for one in mask],
        columns={name: columns[name] for name in COLUMNS if name in columns},
        missing=explain_gaps(columns),
        source=f"From the token record, of {took}.{cut}",
    )


def explain_gaps(columns: Mapping[str, Values]) -> list[str]:
    """What a record lacks, and why."""
    if "logprob" not in columns:
        return [
            "Nothing pushes on this completion, so the update did not read it: its log-probs, ratio, KL and entropy were not computed."
        ]
    gaps = (
        []
        if "ref_logprob" in columns
        else ["The run compares with no reference, so there is no KL (algorithm.kl_coef, monitors.kl)."]
    )
    others = [COLUMNS[name].label for name in COLOURS if name not in columns and name != "kl"]
    return [*gaps, f"Not in the record: {', '.join(others)}."] if others else gaps


def read_sampled(row: Mapping[str, Any], pieces: Sequence[str], every: Any) -> TokenSheet:
    """The sheet of a completion that was not recorded: what its row in the step's file has.

    every: what the recipe says for monitors.tokens_every; None where it does not know the word.
    """
    token_ids = [int(one) for one in row.get("completion_ids") or ()][:MAX_TOKENS]
    length = len(token_ids)
    sampling = as_values((row.get("sampling_logprobs") or ())[:MAX_TOKENS], length)
    columns: dict[str, Values] = {}
    if row.get("advantage") is not None:
        columns["advantage"] = np.full(length, float(row["advantage"]))
    if sampling is not None:
        columns |= {"logprob": sampling, "sampling_logprob": sampling}
    missing = [COLUMNS[name].label for name in COLOURS if name not in columns]
    if not isinstance(every, int):
        why = "The run was made before tokens were recorded; monitors.tokens_every records them."
    elif every == 0:
        why = "The run records no tokens: monitors.tokens_every is 0."
    else:
        often = "at each step" if every == 1 else f"at step 1 and at every {write_ordinal(every)}"
        why = f"A few groups are recorded {often}, and those that a new finding names (monitors.tokens_every = {every}); this is none of them."
    source = "From the step's own file: the log-probs with which the tokens were sampled, and the completion's one advantage."
    source += f" These are its first {length:,} tokens." if len(row.get("completion_ids") or ()) > length else ""
    return TokenSheet(list(pieces), token_ids, [True] * length, columns, [f"Not recorded: {', '.join(missing)}. {why}"], source)


def write_ordinal(number: int) -> str:
    """ "10th", "22nd"."""
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


# -- bands -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Band:
    """Values that look the same."""

    style: str
    """p1 to p3 above the middle, n1 to n3 below it, s0 to s4 from small to large, z in the middle, none without a value."""
    label: str


NO_VALUE = Band("none", "no value")
Banding = tuple[list[Band], Callable[[Values], np.ndarray]]
"""Bands from the lowest to the highest, and what gives each value the place of its band."""


def make_bands(name: str, values: Values) -> Banding:
    """The bands of a column. values: all that should look alike where they are alike, such as those of the whole group."""
    if name == "clipped":
        bands = [Band("n3", "clipped below"), Band("z", "not clipped"), Band("p3", "clipped above")]
        return bands, lambda shown: (np.sign(shown) + 1).astype(int)
    if name == "ratio":
        bands = make_signed_bands(
            ("below 0.8", "0.8 to 0.99", "0.99 to 1"), "exactly 1", ("1 to 1.01", "1.01 to 1.2", "above 1.2")
        )
        return bands, lambda shown: place_signed(shown, 1.0, (0.8, 0.99), (1.01, 1.2))
    if name in EDGES:
        edges, labels = EDGES[name]
        bands = [Band(f"s{place}", label) for place, label in enumerate(labels)]
        if name == "logprob":
            return bands, lambda shown: np.digitize(-shown, edges)
        return bands, lambda shown: np.digitize(shown, edges)
    scale = find_scale(values)
    low, high = 0.5 * scale, 1.5 * scale
    names = (f"0 to {low:g}", f"{low:g} to {high:g}", f"above {high:g}")
    below = (f"below −{high:g}", f"−{high:g} to −{low:g}", f"−{low:g} to 0")
    return make_signed_bands(below, "0", names), lambda shown: place_signed(shown, 0.0, (-high, -low), (low, high))


EDGES: dict[str, tuple[tuple[float, ...], tuple[str, ...]]] = {
    "kl": ((0.001, 0.01, 0.1, 1.0), ("below 0.001", "0.001 to 0.01", "0.01 to 0.1", "0.1 to 1", "above 1")),
    "entropy": ((0.05, 0.25, 0.7, 1.5), ("below 0.05", "0.05 to 0.25", "0.25 to 0.7", "0.7 to 1.5", "above 1.5")),
    "logprob": (
        tuple(float(-np.log(share)) for share in (0.9, 0.5, 0.1, 0.01)),
        ("p above 90 %", "50 to 90 %", "10 to 50 %", "1 to 10 %", "below 1 %"),
    ),
}
"""Of columns without a sign: where the next band begins (of log-probs: of what is lost to certainty), and their labels."""


def make_signed_bands(below: Sequence[str], middle: str, above: Sequence[str]) -> list[Band]:
    lower = [Band(f"n{3 - place}", label) for place, label in enumerate(below)]
    return [*lower, Band("z", middle), *(Band(f"p{place + 1}", label) for place, label in enumerate(above))]


def place_signed(shown: Values, middle: float, below: tuple[float, float], above: tuple[float, float]) -> np.ndarray:
    """Places 0 to 6: three bands below the middle, the middle itself, three above."""
    up = 4 + (shown > above[0]).astype(int) + (shown > above[1])
    down = 2 - (shown < below[1]).astype(int) - (shown < below[0])
    return np.where(shown == middle, 3, np.where(shown > middle, up, down))


def find_scale(values: Values) -> float:
    """The power of ten that makes the largest size lie between half of it and five times that."""
    sizes = np.abs(values[np.isfinite(values)])
    largest = float(sizes.max()) if len(sizes) else 0.0
    return float(10.0 ** np.floor(np.log10(largest / 0.5))) if largest > 0 else 1.0


def place_in_bands(shown: Values, banding: Banding) -> tuple[list[str], list[tuple[Band, int]]]:
    """The style of every token, and the legend: each band with how many tokens lie in it, those without a value last."""
    bands, place = banding
    known = ~np.isnan(shown)
    places = np.full(len(shown), len(bands))
    places[known] = np.clip(place(shown[known]), 0, len(bands) - 1)
    every = [*bands, NO_VALUE]
    counts = np.bincount(places, minlength=len(every)).tolist()
    legend = [(band, count) for band, count in zip(every, counts, strict=True) if count or band is not NO_VALUE]
    return [every[one].style for one in places.tolist()], legend
