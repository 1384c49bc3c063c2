"""The text of a token for the eye: nothing that a policy wrote is invisible, moves its neighbours or is taken for markup.

A space that stands alone, a newline, a tab, a character without width and a mark that turns the line round are shown as signs. The
tokens of a run without a token record are read with the tokenizer that lies beside its weights.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from cohort.model.chat import TokenTextReader
from cohort.tools.dashboard.shelf import ShownRun

SIGNS = {"\n": "↵", "\r": "␍", "\t": "⇥", " ": "␣"}
"""Of whitespace that a token ends with, or consists of."""
HIDDEN = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")
"""Categories of characters that have no shape: control, format, unassigned, private, surrogates, separators."""
MAX_TOKENIZER_BYTES = 1 << 26
MAX_SHOWN = 200
"""Characters of one token that are shown; a page of a stranger's run may hold anything."""


@dataclass(frozen=True)
class Shown:
    """A token as it is drawn."""

    text: str
    kind: str = ""
    """blank: whitespace alone; hidden: it has characters that are written out; special: the model's own mark; unknown: no text is known."""
    breaks: int = 0
    """Lines that end with it."""


def show_piece(piece: str, special: bool = False) -> Shown:
    """What to draw for a token's text."""
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
    r"""The text with everything that has no shape of its own written as its code: ⟨U+200B⟩. Newlines and tabs inside are signs."""
    cut = text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
    if cut.isascii() and cut.isprintable():
        return cut
    parts = []
    for place, one in enumerate(cut):
        category = unicodedata.category(one)
        if one in SIGNS and one != " ":
            parts.append(SIGNS[one])
        elif category in HIDDEN or is_empty_shape(one) or (category == "Zs" and one != " "):
            parts.append(f"⟨U+{ord(one):04X}⟩")
        elif category.startswith("M") and place == 0:  # it would sit on the token before
            parts.append(f"◌{one}")
        else:
            parts.append(one)
    return "".join(parts)


def is_empty_shape(one: str) -> bool:
    """Letters and marks that Unicode draws as nothing: fillers, and selectors of a variation."""
    code = ord(one)
    return (
        code in (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, 0x2800)
        or 0xFE00 <= code <= 0xFE0F
        or 0xE0100 <= code <= 0xE01EF
    )


# -- tokens without a record -------------------------------------------------------------------------------------------


def read_pieces(run: ShownRun, token_ids: Sequence[int]) -> tuple[list[str], frozenset[int], str]:
    """The text of each token, which ids are special, and what to say where no tokenizer is kept."""
    file = find_tokenizer(run)
    kept = load_tokenizer(file, file.stat().st_mtime_ns) if file else None
    if kept is None:
        why = "The run keeps no tokenizer.json that can be read, so tokens are shown by their ids."
        return [f"#{one}" for one in token_ids], frozenset(), why
    pieces = iter(kept.reader.read_texts([[one for one in token_ids if one in kept.names]])[0])
    return [next(pieces) if one in kept.names else f"#{one}" for one in token_ids], kept.special, ""


def find_tokenizer(run: ShownRun) -> Path | None:
    """tokenizer.json of the policy: after training, before it, or as it was handed in."""
    for folder in (run.folder.model, run.folder.start, run.folder.base):
        file = run.find_file(folder / "tokenizer.json")
        if file and file.stat().st_size <= MAX_TOKENIZER_BYTES:
            return file
    return None


@dataclass(frozen=True)
class KeptTokenizer:
    """A tokenizer.json, as TokenTextReader asks one of transformers."""

    backend_tokenizer: Any
    names: Mapping[int, str]
    """What the vocabulary calls each id."""
    special: frozenset[int]

    def convert_ids_to_tokens(self, token_id: int) -> str:
        return self.names[token_id]

    @cached_property
    def reader(self) -> TokenTextReader:
        return TokenTextReader(self, in_rust=True)


@lru_cache(maxsize=2)
def load_tokenizer(file: Path, _written: int) -> KeptTokenizer | None:
    """The tokenizer of a file; None where it is none."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # the library raises bare exceptions; a damaged file costs the texts, not the page
        return None
    names = {number: name for name, number in tokenizer.get_vocab(with_added_tokens=True).items()}
    special = frozenset(number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special)
    return KeptTokenizer(tokenizer, names, special)
