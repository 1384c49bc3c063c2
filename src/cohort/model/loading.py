"""Loads models and tokenizers from folders, from the Hugging Face Hub or from scratch, and checks what was loaded.

model/sources.py checks a folder before loading. The checks here need the loaded model: missing weights, values that are not finite,
tokens without an embedding, tokenizers that transformers changes.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from pickle import UnpicklingError  # the name alone: nothing is unpickled here
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from cohort.errors import ModelError
from cohort.model import four_bit, lora
from cohort.model.sources import find_folder, refuse_unfit_source
from cohort.recipe.devices import explain_device
from cohort.recipe.schema import ModelConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LOADING_PROBLEMS = (
    *(OSError, ValueError, LookupError, ArithmeticError, AssertionError, RuntimeError, ImportError, AttributeError, TypeError),
    *(EOFError, SyntaxError, UnpicklingError, SafetensorError),
)
"""What transformers, those it calls and the code of a model raise over a checkpoint that cannot be loaded."""
CAUSAL, SCORING = "AutoModelForCausalLM", "AutoModelForSequenceClassification"
KINDS = {
    CAUSAL: "causal language",
    SCORING: "sequence-classification",
    "AutoModelForTokenClassification": "token-classification",
}
"""Classes of transformers that models are loaded with, and what such a model is called."""

LOCAL_RANK = "LOCAL_RANK"
"""What torchrun calls the number of a process on its host."""


def hide_progress_bars() -> None:
    """transformers' bars would tear the live line of the console."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def pick_device(config: ModelConfig) -> torch.device:
    device = find_device(config.device, "model.device")
    if (
        config.device == "auto" and device.type == "cuda" and LOCAL_RANK in os.environ
    ):  # each rank of a host has a GPU of its own
        device = torch.device("cuda", int(os.environ[LOCAL_RANK]) % torch.cuda.device_count())
    if device.index is not None:
        torch.cuda.set_device(device)  # Triton launches its kernels on the current device
    return device


def find_device(name: str, field: str) -> torch.device:
    """The device of that name on this machine; auto is a GPU where there is one."""
    if reason := explain_device(name):
        raise ModelError(f"{field}: {reason}.")
    device = torch.device(name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ModelError(
            f"{field}: {name!r}, but this machine shows {torch.cuda.device_count()} CUDA devices. "
            f'Set {field} to "cpu", or to "auto" to take a GPU where there is one.'
        )
    return device


def pick_dtype(config: ModelConfig, device: torch.device) -> torch.dtype:
    if config.dtype == "bfloat16" and device.type == "cpu":
        raise ModelError('model.dtype: bfloat16 on a CPU is slow, and on some CPUs ends the process; use "float32" or a GPU.')
    if config.dtype != "auto":
        return DTYPES[config.dtype]
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def load_model(config: ModelConfig, seed: int, alphabet: Iterable[str] = ()) -> tuple[Any, Any]:
    """Model on its device, and tokenizer: in float32, and the optimizer casts to the compute dtype once it holds the masters.

    A base that stays frozen has no masters and is loaded in the compute dtype: in float32 it might not fit.
    """
    model: Any
    device = pick_device(config)
    if config.source == "scratch":
        from cohort.model.scratch import build_scratch

        model, tokenizer = build_scratch(config.scratch, alphabet, seed)
        return model.to(device), tokenizer
    dtype = pick_dtype(config, device) if config.lora.rank else torch.float32
    return load_pretrained(
        config.source,
        config.revision,
        dtype,
        device=device,
        base_alone=bool(config.lora.adapter),
        trusted=config.trust_remote_code,
        in_four_bits=config.lora.base_dtype == four_bit.NAME,
    )


def load_pretrained(
    source: str,
    revision: str = "",
    dtype: Any = torch.float32,
    *,
    device: torch.device | None = None,
    base_alone: bool = False,
    field: str = "model.source",
    trusted: bool = False,
    in_four_bits: bool = False,
    kind: str = CAUSAL,
    safetensors_only: bool = False,
) -> tuple[Any, Any]:
    """A local folder, a GGUF file or a hub id through transformers, checked, on `device`. Code that ships with it runs only where `trusted`.

    base_alone: of a folder that holds a base and an adapter, the base. field: the word of the recipe that names the source.
    kind: the class of transformers that loads it. safetensors_only: files that hold pickles are not read.
    """
    import transformers

    source = find_folder(source, field)
    if lora.is_adapter(source) and not base_alone:
        raise ModelError(explain_adapter(source, field))
    refuse_unfit_source(source, field, trusted=trusted, causal=kind == CAUSAL)
    hide_progress_bars()
    device = device or torch.device("cpu")
    options: dict[str, Any] = {"revision": revision} if revision else {}
    options |= {"use_safetensors": True} if safetensors_only else {}
    options |= four_bit.make_loading_options(dtype, device) if in_four_bits else {}
    tokenizer = read_tokenizer(source, revision, field, trusted)
    loaded: Any
    try:
        loaded = getattr(transformers, kind).from_pretrained(
            source,
            dtype=dtype,
            trust_remote_code=trusted,
            # Reported below by name; transformers would print a table and raise.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **options,
        )
    except LOADING_PROBLEMS as problem:
        refuse_code(problem, source, field)
        raise ModelError(
            f"{field}: cannot load {source!r} as a {KINDS[kind]} model ({first_line(problem)}). Give a folder written by "
            f"save_pretrained{' (safetensors)' if safetensors_only else ''}, or a hub id that this machine can reach."
        ) from problem
    model, report = loaded
    refuse_other_weights(model, report, source, field, KINDS[kind])
    if getattr(model, "_hf_peft_config_loaded", False):  # transformers has put the adapter of that folder in
        if not base_alone:
            raise ModelError(explain_adapter(source, field))
        model = lora.make_plain_model(model, merge=False)
    if in_four_bits:
        four_bit.make_steady(model)
    else:
        model = model.to(device)
    refuse_broken_numbers(model, source, field)
    if kind == CAUSAL:
        refuse_missing_rows(model, tokenizer, source, field)
    return model, tokenizer


def read_tokenizer(source: str, revision: str, field: str, trusted: bool = False) -> Any:
    try:
        return load_tokenizer(source, revision, trusted)
    except Exception as problem:  # the Rust tokenizer raises bare Exceptions on a damaged file
        refuse_code(problem, source, field)
        if isinstance(problem, StrictDataclassError):  # transformers reads config.json to know which tokenizer it is
            raise ModelError(
                f"{field}: {source}: config.json cannot be used ({first_line(problem)}). Restore the file that belongs to the weights."
            ) from problem
        raise ModelError(
            f"{field}: the tokenizer of {source!r} cannot be read ({first_line(problem)}). Copy tokenizer.json and "
            "tokenizer_config.json there again, or give a hub id that this machine can reach."
        ) from problem


def refuse_code(problem: Exception, source: str, field: str) -> None:
    """What transformers says of a model that brings code; of the hub's it is known only once it is asked for."""
    section = field.rpartition(".")[0]
    if section and "trust_remote_code" in str(problem):
        raise ModelError(
            f"{field}: {source!r} is code that ships with it, and code of others runs only on your word. Read it, then set "
            f"{section}.trust_remote_code = true."
        ) from problem


def first_line(problem: BaseException) -> str:
    """What a problem says first; with the next line where the first only announces it, and its kind where it says a bare name."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()] or [type(problem).__name__]
    if isinstance(problem, KeyError):
        return f"KeyError: {lines[0]}"
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


def explain_adapter(source: str, field: str) -> str:
    return (
        f"{field}: {source!r} is a PEFT adapter, not a model. Set model.source to its base, model.lora.adapter to "
        "this folder and model.lora.rank to its rank; or merge it into its base first."
    )


# -- what was loaded ---------------------------------------------------------------------------------------------------


def refuse_other_weights(model: Any, report: Mapping[str, Any], source: str, field: str, kind: str) -> None:
    """Weights that the files lack, or hold in another shape, would be made up at random; layers beyond the config would be left out."""
    for name, stored, wanted in sorted(report.get("mismatched_keys") or (), key=str):
        raise ModelError(
            f"{field}: {source}: {name} has the shape {tuple(stored)} in its files and {tuple(wanted)} by its config.json, so one of them "
            "is of another model. Restore the files that belong together."
        )
    missing = sorted(report.get("missing_keys") or ())
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(
            f"{field}: {source}: its files lack {missing[0]}{more}, which would be made up at random. Copy it again, or give a model that "
            f"was trained and saved as a {kind} model."
        )
    unused = sorted(report.get("unexpected_keys") or ())
    known = {re.sub(r"\.\d+\.", ".N.", name) for name in model.state_dict()}
    beyond = [name for name in unused if re.sub(r"\.\d+\.", ".N.", name) in known]
    if beyond and not getattr(model.config, "num_nextn_predict_layers", 0):  # layers that predict further tokens come last
        raise ModelError(
            f"{field}: {source}: its files hold {len(beyond)} tensors of layers beyond those of its config.json, the first {beyond[0]}. "
            "Without them it is another model. Restore the config.json that belongs to the weights (num_hidden_layers)."
        )
    if unused:
        warnings.warn(
            f"{field}: {source}: {len(unused)} tensors of its files have no place in the model that config.json describes and are left "
            f"out, the first {unused[0]}.",
            stacklevel=2,
        )


@torch.no_grad()
def refuse_broken_numbers(model: Any, source: str, field: str) -> None:
    """One NaN or infinity makes every log-prob NaN; which tensor it was nobody could tell by then. One pass, one wait."""
    saved = (
        model.state_dict().keys()
    )  # of buffers those that are stored: the balancing biases of experts, no masks of infinities
    held = {**dict(model.named_parameters()), **{name: value for name, value in model.named_buffers() if name in saved}}
    tensors = {name: value for name, value in held.items() if value.is_floating_point() and value.numel()}
    ends = [end.float() for value in tensors.values() for end in torch.aminmax(value.detach())]  # both are NaN if any value is
    if not ends:
        return
    finite = torch.stack(ends).isfinite().view(-1, 2).all(dim=1).tolist()
    broken = [name for name, whole in zip(tensors, finite, strict=True) if not whole]
    if broken:
        count = int((~tensors[broken[0]].isfinite()).sum())
        values = "1 value that is" if count == 1 else f"{count} values that are"
        more = f", and so do {len(broken) - 1} more tensors" if len(broken) > 1 else ""
        raise ModelError(
            f"{field}: {source}: {broken[0]} holds {values} NaN or infinite{more}. Every log-prob would be NaN: the file "
            "is damaged, or the training that wrote it diverged, or overflowed in float16. Take an earlier checkpoint."
        )


def refuse_missing_rows(model: Any, tokenizer: Any, source: str, field: str) -> None:
    """Tokens whose ids the embedding has no row for: a CPU stops at the first, a GPU reads memory that is not its own.

    A token for padding alone may lack its row, as in many a checkpoint: nothing is padded here.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    beyond = {number: token for token, number in tokenizer.get_vocab().items() if number >= rows}
    used = sorted(number for number, token in beyond.items() if token != tokenizer.pad_token or token == tokenizer.eos_token)
    if used:
        raise ModelError(
            f"{field}: {source}: its tokenizer has ids up to {max(used)} and its embedding {rows} rows, so {len(used)} of its tokens, the first "
            f"{beyond[used[0]]!r} ({used[0]}), have no embedding. Take the tokenizer that belongs to the weights; or, where tokens were "
            f"added on purpose, give the model rows for them and train those first: model.resize_token_embeddings({max(used) + 1}), "
            "then model.save_pretrained(folder)."
        )


def load_adapted(folder: Path, settings: ModelConfig) -> tuple[Any, Any, lora.Adapter]:
    """An adapter folder as a run or PEFT writes it: its base in float32 or in 4 bits, with the adapter, and the tokenizer."""
    config = lora.read_config(folder, "adapter")
    inside = lora.has_base(folder)
    base = str(folder) if inside else config.base_model_name_or_path
    if not base:
        raise ModelError(f"{folder}: adapter_config.json names no base (base_model_name_or_path), and none lies in the folder.")
    revision = "" if inside else config.revision or ""
    trusted, device, in_four_bits = settings.trust_remote_code, pick_device(settings), settings.lora.base_dtype == four_bit.NAME
    model, tokenizer = load_pretrained(
        base,
        revision,
        pick_dtype(settings, device) if in_four_bits else torch.float32,
        device=device,
        base_alone=inside,
        field="adapter",
        trusted=trusted,
        in_four_bits=in_four_bits,
    )
    if not inside and (folder / "tokenizer_config.json").is_file():
        tokenizer = read_tokenizer(str(folder), "", "adapter", trusted)
    return model, tokenizer, lora.load_adapter(model, folder, "" if inside else base, revision)


# -- tokenizers -------------------------------------------------------------------------------------------------------


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
