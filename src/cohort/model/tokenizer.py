"""A tokenizer as it was saved.

AutoTokenizer goes by the model type in config.json: a folder that says qwen2 gets Qwen's own rules for splitting text, whatever its
tokenizer.json says. A tokenizer of characters loses its spaces that way, without a word, and a policy that is trained further reads
other tokens than it was trained on. The file counts here: both are tried on a few words.
"""

from __future__ import annotations

import warnings
from typing import Any

PROBES = ("1 + 1 = 2", "Hello,  world!\n\tdef f(x): return x", "naïve — 数学 🙂", " at both ends ", "\\boxed{\\frac{1}{2}}")


def load_tokenizer(source: str, revision: str = "", trusted: bool = False) -> Any:
    """Of a local folder or a hub id. Code that ships with a checkpoint runs only where it is trusted."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    options: dict[str, Any] = {"trust_remote_code": trusted, **({"revision": revision} if revision else {})}
    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    expected = read_saved_ids(source, revision)
    if expected is None or encode_probes(tokenizer) == expected:
        return tokenizer
    plain = PreTrainedTokenizerFast.from_pretrained(source, **options)
    if encode_probes(plain) != expected:
        warnings.warn(
            f"{source}: transformers splits text otherwise ({type(tokenizer).__name__}) than tokenizer.json in that folder. "
            "Compare some texts before you trust the run.",
            stacklevel=2,
        )
        return tokenizer
    return plain


def read_saved_ids(source: str, revision: str) -> list[list[int]] | None:
    """Ids of the probes by tokenizer.json alone; None where there is no such file, or nothing to compare."""
    from tokenizers import Tokenizer
    from transformers.utils import cached_file

    try:
        path = cached_file(source, "tokenizer.json", revision=revision or None, _raise_exceptions_for_missing_entries=False)
    except OSError:  # the hub cannot be asked; what was cached has been loaded
        return None
    if path is None:
        return None
    saved = Tokenizer.from_file(path)
    saved.no_truncation()
    saved.no_padding()
    return [saved.encode(text, add_special_tokens=False).ids for text in PROBES]


def encode_probes(tokenizer: Any) -> list[list[int]]:
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in PROBES]
