"""What single tokens say: a text for each, which laid side by side are the text of all of them.

Decoding ids one by one is not enough: a character may be spread over several tokens, each of which is a replacement mark by itself, and
some tokenizers drop a space at the beginning of whatever they decode. So every token is taken as bytes, and its piece is what those
bytes complete: of a character in three tokens the first two say nothing and the third says all of it. Bytes that never become a
character are a replacement mark, as in the whole text.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""How tokenizers with characters for pieces write a byte that is none of them."""


def make_byte_alphabet() -> dict[str, int]:
    """The characters that byte-level tokenizers (GPT-2's and its heirs') write bytes with: printable ones stand for themselves."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTE_ALPHABET = make_byte_alphabet()


class PieceReader:
    """Reads the pieces of completions. Tokens are looked up once and remembered."""

    def __init__(self, tokenizer: Any, in_rust: bool) -> None:
        """in_rust: whether `decode` is the Rust tokenizer's, which takes many rows in one call."""
        self.tokenizer, self.in_rust = tokenizer, in_rust
        self.first: dict[int, bytes] = {}
        """What a token says at the beginning of a text."""
        self.later: dict[int, bytes] = {}
        """What it says behind another."""
        self.whole: dict[int, str] = {}
        """The same as text, of tokens that are whole characters by themselves: nearly all of them."""

    def read_pieces(self, rows: Sequence[Sequence[int]]) -> list[list[str]]:
        """The pieces of every row. Special tokens say their names, so that the end of a completion is seen."""
        self._look_up([token for token in dict.fromkeys(token for row in rows for token in row) if token not in self.first])
        return [self._join_bytes(row) for row in rows]

    def _join_bytes(self, row: Sequence[int]) -> list[str]:
        whole = [self.whole.get(token) for token in row[1:]]
        if row and None not in whole and row[0] in self.whole:
            return [self.first[row[0]].decode(), *whole]  # type: ignore[list-item]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pieces = [decoder.decode((self.later if place else self.first)[token]) for place, token in enumerate(row)]
        if pieces:
            pieces[-1] += decoder.decode(b"", final=True)
        return pieces

    def _look_up(self, tokens: Sequence[int]) -> None:
        """A token twice tells what it says behind another: what is there beside its text alone."""
        once, twice = self._decode([[token] for token in tokens]), self._decode([[token, token] for token in tokens])
        for token, alone, double in zip(tokens, once, twice, strict=True):
            behind = double[len(alone) :] if double.startswith(alone) else alone
            self.first[token], self.later[token] = self._find_bytes(token, alone), self._find_bytes(token, behind)
            if REPLACEMENT not in alone + behind:
                self.whole[token] = self.later[token].decode()

    def _decode(self, rows: list[list[int]]) -> list[str]:
        if self.in_rust:
            texts: list[str] = self.tokenizer.backend_tokenizer.decode_batch(rows, skip_special_tokens=False)
            return texts
        return [self.tokenizer.decode(row, skip_special_tokens=False, clean_up_tokenization_spaces=False) for row in rows]

    def _find_bytes(self, token: int, text: str) -> bytes:
        """Those of the text; of a token that is a part of a character those that its name is written with."""
        if REPLACEMENT in text:
            name = str(self.tokenizer.convert_ids_to_tokens(token))
            if match := BYTE_TOKEN.fullmatch(name):
                return bytes([int(match[1], 16)])
            if name and all(character in BYTE_ALPHABET for character in name):
                return bytes(BYTE_ALPHABET[character] for character in name)
        return text.encode("utf-8", "replace")
