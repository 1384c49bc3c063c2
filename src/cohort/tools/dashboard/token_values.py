"""The texts and numbers of a completion's tokens, and the bands that colour them. No torch.

The numbers come from the token record (observe/rollouts.py) if the run recorded the completion, else from the step file, which has
sampling log-probs and one advantage. Missing numbers are explained with the recipe key that records them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cohort.algorithms.regions import LOG_RATIO_LIMIT
from cohort.model.chat import TokenTextReader
from cohort.tools.dashboard.run_index import ShownRun

MAX_TOKENS = 100_000
"""Tokens of a completion that are read."""
SIGNS = {"\n": "↵", "\r": "␍", "\t": "⇥", " ": "␣"}
"""Signs for whitespace at the end of a token, or as a whole token."""
HIDDEN = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")
"""Unicode categories without a visible shape: control, format, unassigned, private, surrogates, separators."""
FILLERS = frozenset(
    {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, 0x2800, *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)}
)
"""Letters and marks that are drawn as nothing: fillers and variation selectors."""
MAX_TOKENIZER_BYTES = 1 << 26
MAX_SHOWN = 200
"""Characters of a token that are shown."""

# -- texts -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shown:
    """A token as it is displayed."""

    text: str
    kind: str = ""
    """blank: only whitespace; hidden: with invisible characters that are written out; special: a special token."""
    breaks: int = 0
    """Line breaks in it."""


def show_piece(piece: str, special: bool = False) -> Shown:
    """The displayed text of a token. Nothing in it is invisible, moves its neighbours, or is taken for markup."""
    if special:
        return Shown(write_out(piece) or "(empty)", "special")
    if not piece:
        return Shown("∅", "hidden")
    body = piece.rstrip(" \n\r\t")
    signs = "".join(SIGNS[one] for one in piece[len(body) :])
    text = write_out(body)
    kind = "blank" if not body else "hidden" if text != body else ""
    return Shown(text + signs, kind, piece.count("\n"))


def write_out(text: str) -> str:
    r"""The text with invisible characters as codes such as ⟨U+200B⟩, and inner newlines and tabs as signs."""
    cut = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
    if cut.isascii() and cut.isprintable():
        return cut
    parts = []
    for place, one in enumerate(cut):
        category = unicodedata.category(one)
        if one in SIGNS and one != " ":
            parts.append(SIGNS[one])
        elif category in HIDDEN or ord(one) in FILLERS or (category == "Zs" and one != " "):
            parts.append(f"⟨U+{ord(one):04X}⟩")
        elif category.startswith("M") and place == 0:  # it would combine with the previous token
            parts.append(f"◌{one}")
        else:
            parts.append(one)
    return "".join(parts)


def read_pieces(run: ShownRun, token_ids: Sequence[int]) -> tuple[list[str], frozenset[int], str]:
    """The text of each token by the run's tokenizer, the ids of special tokens, and a message if there is no tokenizer."""
    folders = (run.folder.model, run.folder.start, run.folder.base)  # after training, before training, the base model
    files = (run.find_file(folder / "tokenizer.json") for folder in folders)
    file = next((file for file in files if file and file.stat().st_size <= MAX_TOKENIZER_BYTES), None)
    kept = load_tokenizer(file, file.stat().st_mtime_ns) if file else None
    if kept is None:
        message = "The run has no readable tokenizer.json, so tokens are shown as ids."
        return [f"#{one}" for one in token_ids], frozenset(), message
    pieces = iter(kept.reader.read_texts([[one for one in token_ids if one in kept.names]])[0])
    return [next(pieces) if one in kept.names else f"#{one}" for one in token_ids], kept.special, ""


@dataclass(frozen=True)
class KeptTokenizer:
    """A tokenizer.json with the interface that TokenTextReader needs."""

    backend_tokenizer: Any
    names: Mapping[int, str]
    special: frozenset[int]

    def convert_ids_to_tokens(self, token_id: int) -> str:
        return self.names[token_id]

    @cached_property
    def reader(self) -> TokenTextReader:
        return TokenTextReader(self, in_rust=True)


@lru_cache(maxsize=2)
def load_tokenizer(file: Path, _modified: int) -> KeptTokenizer | None:
    """The tokenizer of a file; None if it is damaged."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # the library raises plain Exception
        return None
    names = {number: name for name, number in tokenizer.get_vocab(with_added_tokens=True).items()}
    special = frozenset(number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special)
    return KeptTokenizer(tokenizer, names, special)


# -- numbers -----------------------------------------------------------------------------------------------------------

Values = np.ndarray
"""One float64 per token; NaN if there is none."""
COLUMNS = {
    "advantage": ("advantage", "The advantage of this token: its reward compared with the group."),
    "ratio": ("ratio", "Probability under the policy in this update, divided by the probability under the old policy."),
    "clipped": ("clipped", "Whether the trust region stops the gradient: -1 below its range, 1 above it, 0 inside."),
    "kl": ("KL (k3)", "exp(d) - d - 1 with d = reference log-prob - policy log-prob, in nats."),
    "entropy": ("entropy", "Entropy of the policy's distribution for this token, in nats."),
    "logprob": ("log-prob", "Log-probability under the policy in this update."),
    "coefficient": (
        "gradient coefficient", "-d loss / d log-prob before the aggregation weight. Above 0, the update makes the token more likely."
    ),
    "sampling_logprob": ("sampling log-prob", "Log-probability when the engine sampled the token."),
    "old_logprob": ("old log-prob", "Log-probability under the policy before the step's updates."),
    "ref_logprob": ("reference log-prob", "Log-probability under the reference."),
    "weight": ("weight", "Weight of the token in the loss."),
}  # fmt: skip
"""Column -> (label, description), in the order of the table. Without a record, `logprob` is the sampling log-prob."""
COLOURS = ("advantage", "ratio", "clipped", "kl", "entropy", "logprob", "coefficient")
"""Columns that can colour tokens."""


@dataclass(frozen=True)
class TokenSheet:
    """The tokens of a completion and their numbers, all of equal length."""

    pieces: list[str]
    token_ids: list[int]
    mask: list[bool]
    """Whether the policy sampled the token and is trained on it."""
    columns: dict[str, Values]
    """The known ones of COLUMNS."""
    missing: list[str] = field(default_factory=list)
    """Messages about missing numbers."""
    source: str = ""
    """A sentence about the source of the numbers."""

    def __len__(self) -> int:
        return len(self.token_ids)


def as_values(numbers: Sequence[Any] | None, length: int) -> Values | None:
    """Numbers of a file as floats; None if they are missing or not one per token."""
    if numbers is None or len(numbers) != length:
        return None
    return np.array([np.nan if number is None else float(number) for number in numbers], np.float64)


def measure_k3(policy_logprobs_T: Values, ref_logprobs_T: Values) -> Values:
    """The k3 estimate of the KL to the reference for each token, as in algorithms/regions.py."""
    difference_T = np.minimum(ref_logprobs_T - policy_logprobs_T, LOG_RATIO_LIMIT)
    return np.asarray(np.expm1(difference_T) - difference_T)


def read_recorded(record: Mapping[str, Any]) -> TokenSheet:
    """The sheet of a completion in the token record."""
    token_ids = [int(one) for one in record.get("token_ids") or ()]
    length = len(token_ids)
    columns: dict[str, Values] = {}
    for name in COLUMNS:
        values = as_values(record.get("policy_logprob" if name == "logprob" else name), length)
        if values is not None and not np.isnan(values).all():
            columns[name] = values
    if "logprob" in columns and "ref_logprob" in columns:
        columns["kl"] = measure_k3(columns["logprob"], columns["ref_logprob"])
    pieces, mask = record.get("pieces") or (), as_values(record.get("mask"), length)
    update, updates, whole = record.get("update"), record.get("updates"), record.get("length") or length
    cut = f" It has the first {length:,} of {whole:,} tokens." if whole > length else ""
    return TokenSheet(
        pieces=[str(piece) for piece in pieces] if len(pieces) == length else [f"#{one}" for one in token_ids],
        token_ids=token_ids,
        mask=[True] * length if mask is None else [bool(one) for one in mask],
        columns={name: columns[name] for name in COLUMNS if name in columns},
        missing=explain_gaps(columns),
        source=f"Source: token record, {f'update {update} of {updates}' if update else 'no update used this completion'}.{cut}",
    )


def explain_gaps(columns: Mapping[str, Values]) -> list[str]:
    """Messages about the columns that a record lacks."""
    if "logprob" not in columns:
        return ["This completion has no gradient, so the update did not compute its log-probs, ratio, KL and entropy."]
    gaps = [] if "ref_logprob" in columns else ["No KL: the run has no reference (algorithm.kl_coef, monitors.kl)."]
    others = [COLUMNS[name][0] for name in COLOURS if name not in columns and name != "kl"]
    return [*gaps, f"Not recorded: {', '.join(others)}."] if others else gaps


def read_sampled(row: Mapping[str, Any], pieces: Sequence[str], every: int) -> TokenSheet:
    """The sheet of a completion without a token record, from its row in the step file. every: monitors.tokens_every of the run."""
    token_ids = [int(one) for one in row.get("completion_ids") or ()][:MAX_TOKENS]
    length = len(token_ids)
    sampling = as_values((row.get("sampling_logprobs") or ())[:MAX_TOKENS], length)
    columns: dict[str, Values] = {}
    if row.get("advantage") is not None:
        columns["advantage"] = np.full(length, float(row["advantage"]))
    if sampling is not None:
        columns |= {"logprob": sampling, "sampling_logprob": sampling}
    missing = ", ".join(COLUMNS[name][0] for name in COLOURS if name not in columns)
    if every:
        often = "every step" if every == 1 else f"step 1 and every {every} steps"
        reason = f"monitors.tokens_every = {every} records a few groups at {often}, and the groups of new findings."
    else:
        reason = "This run records no tokens (monitors.tokens_every = 0)."
    source = "Source: step file, with sampling log-probs and one advantage for the whole completion."
    source += f" These are the first {length:,} tokens." if len(row.get("completion_ids") or ()) > length else ""
    return TokenSheet(list(pieces), token_ids, [True] * length, columns, [f"Not recorded: {missing}. {reason}"], source)


# -- bands -------------------------------------------------------------------------------------------------------------

Band = tuple[str, str]
"""(style, label) of values with one colour. Styles: p1 to p3 above the middle, n1 to n3 below it, s0 to s4 from small to large, z in the
middle, none without a value."""
NO_VALUE: Band = ("none", "no value")
Banding = tuple[list[Band], Callable[[Values], np.ndarray]]
"""Bands from lowest to highest, and a function from values to band numbers."""
EDGES: dict[str, tuple[tuple[float, ...], tuple[str, ...]]] = {
    "kl": ((0.001, 0.01, 0.1, 1.0), ("below 0.001", "0.001 to 0.01", "0.01 to 0.1", "0.1 to 1", "above 1")),
    "entropy": ((0.05, 0.25, 0.7, 1.5), ("below 0.05", "0.05 to 0.25", "0.25 to 0.7", "0.7 to 1.5", "above 1.5")),
    "logprob": (
        tuple(float(-np.log(share)) for share in (0.9, 0.5, 0.1, 0.01)),
        ("p above 90 %", "50 to 90 %", "10 to 50 %", "1 to 10 %", "below 1 %"),
    ),
}
"""For unsigned columns: the lower edges of the bands after the first (for log-probs: of -log p), and the labels."""


def make_bands(name: str, values: Values) -> Banding:
    """The bands of a column. values: all values that share a scale, such as those of the group."""
    if name == "clipped":
        bands = [("n3", "clipped below"), ("z", "not clipped"), ("p3", "clipped above")]
        return bands, lambda shown: (np.sign(shown) + 1).astype(int)
    if name == "ratio":
        below, above = ("below 0.8", "0.8 to 0.99", "0.99 to 1"), ("1 to 1.01", "1.01 to 1.2", "above 1.2")
        return make_signed_bands(below, "exactly 1", above), lambda shown: place_signed(shown, 1.0, (0.8, 0.99), (1.01, 1.2))
    if name in EDGES:
        edges, labels = EDGES[name]
        sign = -1 if name == "logprob" else 1
        return [(f"s{place}", label) for place, label in enumerate(labels)], lambda shown: np.digitize(sign * shown, edges)
    scale = find_scale(values)
    low, high = 0.5 * scale, 1.5 * scale
    above = (f"0 to {low:g}", f"{low:g} to {high:g}", f"above {high:g}")
    below = (f"below −{high:g}", f"−{high:g} to −{low:g}", f"−{low:g} to 0")
    return make_signed_bands(below, "0", above), lambda shown: place_signed(shown, 0.0, (-high, -low), (low, high))


def make_signed_bands(below: Sequence[str], middle: str, above: Sequence[str]) -> list[Band]:
    lower = [(f"n{3 - place}", label) for place, label in enumerate(below)]
    return [*lower, ("z", middle), *((f"p{place + 1}", label) for place, label in enumerate(above))]


def place_signed(shown: Values, middle: float, below: tuple[float, float], above: tuple[float, float]) -> np.ndarray:
    """Band numbers 0 to 6: three below the middle, the middle, three above."""
    up = 4 + (shown > above[0]).astype(int) + (shown > above[1])
    down = 2 - (shown < below[1]).astype(int) - (shown < below[0])
    return np.where(shown == middle, 3, np.where(shown > middle, up, down))


def find_scale(values: Values) -> float:
    """The power of ten whose 0.5- to 5-fold contains the largest absolute value."""
    sizes = np.abs(values[np.isfinite(values)])
    largest = float(sizes.max()) if len(sizes) else 0.0
    return float(10.0 ** np.floor(np.log10(largest / 0.5))) if largest > 0 else 1.0


def place_in_bands(shown: Values, banding: Banding) -> tuple[list[str], list[tuple[str, str, int]]]:
    """The style of every token, and the legend: (style, label, number of tokens) of each band."""
    bands, place = banding
    known = ~np.isnan(shown)
    places = np.full(len(shown), len(bands))
    places[known] = np.clip(place(shown[known]), 0, len(bands) - 1)
    every = [*bands, NO_VALUE]
    counts = np.bincount(places, minlength=len(every)).tolist()
    legend = [(*band, count) for band, count in zip(every, counts, strict=True) if count or band is not NO_VALUE]
    return [every[one][0] for one in places.tolist()], legend
