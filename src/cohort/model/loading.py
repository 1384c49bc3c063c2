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
from pickle import UnpicklingError  # only the exception: nothing is unpickled here
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError

from cohort.base.hub import use_cache_if_offline
from cohort.errors import ModelError
from cohort.model import four_bit, lora
from cohort.model.sources import find_folder, refuse_unfit_source
from cohort.recipe.schema import ModelConfig
from cohort.recipe.values import explain_device

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
LOADING_PROBLEMS = (
    *(OSError, ValueError, LookupError, ArithmeticError, AssertionError, RuntimeError, ImportError, AttributeError, TypeError),
    *(EOFError, SyntaxError, UnpicklingError, SafetensorError),
)
"""Exceptions of transformers, its dependencies and model code for a checkpoint that cannot be loaded."""
CAUSAL, SCORING = "AutoModelForCausalLM", "AutoModelForSequenceClassification"
KINDS = {
    CAUSAL: "causal language",
    SCORING: "sequence-classification",
    "AutoModelForTokenClassification": "token-classification",
}
"""Classes of transformers that load models, and the kind of model in messages."""

LOCAL_RANK = "LOCAL_RANK"
"""Environment variable of torchrun: the number of a process on its host."""
PROBES = ("1 + 1 = 2", "Hello,  world!\n\tdef f(x): return x", "naïve — 数学 🙂", " at both ends ", "\\boxed{\\frac{1}{2}}")
"""Texts that every copy of a tokenizer has to split alike."""


def hide_progress_bars() -> None:
    """Hide transformers' progress bars, which would garble the live line of the console."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def pick_device(config: ModelConfig) -> torch.device:
    device = find_device(config.device, "model.device")
    if config.device == "auto" and device.type == "cuda" and LOCAL_RANK in os.environ:  # one GPU per rank of a host
        device = torch.device("cuda", int(os.environ[LOCAL_RANK]) % torch.cuda.device_count())
    if device.index is not None:
        torch.cuda.set_device(device)  # Triton launches its kernels on the current device
    return device


def find_device(name: str, field: str) -> torch.device:
    """The device of that name on this machine; auto: a GPU if there is one."""
    if reason := explain_device(name):
        raise ModelError(f"{field}: {reason}.")
    device = torch.device(name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ModelError(
            f"{field}: {name!r}, but this machine has {torch.cuda.device_count()} CUDA devices. "
            f'Set {field} to "cpu", or to "auto" to use a GPU if there is one.'
        )
    return device


def pick_dtype(config: ModelConfig, device: torch.device) -> torch.dtype:
    if config.dtype == "bfloat16" and device.type == "cpu":
        raise ModelError('model.dtype: bfloat16 on a CPU is slow, and crashes on some CPUs. Use "float32" or a GPU.')
    if config.dtype != "auto":
        return DTYPES[config.dtype]
    return torch.bfloat16 if device.type == "cuda" else torch.float32


# -- models ------------------------------------------------------------------------------------------------------------


def load_model(config: ModelConfig, seed: int, alphabet: Iterable[str] = ()) -> tuple[Any, Any]:
    """(model, tokenizer), with the model in float32 on its device; the optimizer casts it to the compute dtype once it has the masters.

    A base that stays frozen has no masters and is loaded in the compute dtype, since it might not fit in float32.
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
        base_only=bool(config.lora.adapter),
        trusted=config.trust_remote_code,
        in_four_bits=config.lora.base_dtype == four_bit.NAME,
    )


def load_pretrained(
    source: str,
    revision: str = "",
    dtype: Any = torch.float32,
    *,
    device: torch.device | None = None,
    base_only: bool = False,
    field: str = "model.source",
    trusted: bool = False,
    in_four_bits: bool = False,
    kind: str = CAUSAL,
    safetensors_only: bool = False,
) -> tuple[Any, Any]:
    """(model, tokenizer) of a local folder, a GGUF file or a hub id, checked, on `device`. Model code runs only if `trusted`.

    base_only: load only the base from a folder with a base and an adapter. field: the recipe key that names the source.
    kind: the class of transformers that loads it. safetensors_only: do not read files with pickles.
    """
    import transformers

    source = find_folder(source, field)
    if lora.is_adapter(source) and not base_only:
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
        with use_cache_if_offline(source):
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
            f"{field}: cannot load {source!r} as a {KINDS[kind]} model ({first_line(problem)}). Use a folder written by "
            f"save_pretrained{' (safetensors)' if safetensors_only else ''}, or a hub id that this machine can reach."
        ) from problem
    model, report = loaded
    refuse_other_weights(model, report, source, field, KINDS[kind])
    if getattr(model, "_hf_peft_config_loaded", False):  # transformers has loaded the adapter of that folder too
        if not base_only:
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


def load_adapted(folder: Path, settings: ModelConfig) -> tuple[Any, Any, lora.Adapter]:
    """(model, tokenizer, adapter) of an adapter folder written by a run or by PEFT. The base is in float32 or in 4 bits."""
    config = lora.read_config(folder, "adapter")
    inside = lora.has_base(folder)
    base = str(folder) if inside else config.base_model_name_or_path
    if not base:
        raise ModelError(
            f"{folder}: adapter_config.json names no base (base_model_name_or_path), and the folder contains none."
        )
    revision = "" if inside else config.revision or ""
    trusted, device, in_four_bits = settings.trust_remote_code, pick_device(settings), settings.lora.base_dtype == four_bit.NAME
    model, tokenizer = load_pretrained(
        base,
        revision,
        pick_dtype(settings, device) if in_four_bits else torch.float32,
        device=device,
        base_only=inside,
        field="adapter",
        trusted=trusted,
        in_four_bits=in_four_bits,
    )
    if not inside and (folder / "tokenizer_config.json").is_file():
        tokenizer = read_tokenizer(str(folder), "", "adapter", trusted)
    return model, tokenizer, lora.load_adapter(model, folder, "" if inside else base, revision)


def explain_adapter(source: str, field: str) -> str:
    return (
        f"{field}: {source!r} is a PEFT adapter, not a model. Set model.source to its base, model.lora.adapter to "
        "this folder and model.lora.rank to its rank; or merge it into its base first."
    )


def refuse_code(problem: Exception, source: str, field: str) -> None:
    """Raise ModelError if transformers reports that a model comes with code. For hub models this is known only now."""
    section = field.rpartition(".")[0]
    if section and "trust_remote_code" in str(problem):
        raise ModelError(
            f"{field}: {source!r} comes with its own code, which runs only if you allow it. Read it, then set "
            f"{section}.trust_remote_code = true."
        ) from problem


def first_line(problem: BaseException) -> str:
    """The first line of an error message, and the second one too if the first ends with a colon."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()] or [type(problem).__name__]
    if isinstance(problem, KeyError):
        return f"KeyError: {lines[0]}"
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1])


# -- checks of loaded models -------------------------------------------------------------------------------------------


def refuse_other_weights(model: Any, report: Mapping[str, Any], source: str, field: str, kind: str) -> None:
    """Raise ModelError if the files and config.json disagree: transformers would fill in random weights, or leave out layers."""
    for name, stored, wanted in sorted(report.get("mismatched_keys") or (), key=str):
        raise ModelError(
            f"{field}: {source}: {name} has the shape {tuple(stored)} in the files and {tuple(wanted)} in config.json, so they belong to "
            "different models. Restore the matching files."
        )
    missing = sorted(report.get("missing_keys") or ())
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(
            f"{field}: {source}: its files lack {missing[0]}{more}, which would be initialised randomly. Copy it again, or use a model that "
            f"was trained and saved as a {kind} model."
        )
    unused = sorted(report.get("unexpected_keys") or ())
    known = {re.sub(r"\.\d+\.", ".N.", name) for name in model.state_dict()}
    beyond = [name for name in unused if re.sub(r"\.\d+\.", ".N.", name) in known]
    if beyond and not getattr(model.config, "num_nextn_predict_layers", 0):  # layers that predict further tokens come last
        raise ModelError(
            f"{field}: {source}: its files contain {len(beyond)} tensors of layers that config.json does not have, such as {beyond[0]}. "
            "Without them it is another model. Restore the config.json that belongs to the weights (num_hidden_layers)."
        )
    if unused:
        warnings.warn(
            f"{field}: {source}: {len(unused)} tensors in its files are not part of the model in config.json and are ignored, such as "
            f"{unused[0]}.",
            stacklevel=2,
        )


@torch.no_grad()
def refuse_broken_numbers(model: Any, source: str, field: str) -> None:
    """Raise ModelError for tensors with NaN or infinity, which would later make every log-prob NaN without a hint at the tensor."""
    saved = model.state_dict().keys()  # only saved buffers: the balancing biases of experts, but not masks with infinities
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
        more = f" ({len(broken) - 1} more tensors do too)" if len(broken) > 1 else ""
        raise ModelError(
            f"{field}: {source}: {broken[0]} has {values} NaN or infinite{more}. Every log-prob would be NaN: the file "
            "is damaged, or the training that wrote it diverged or overflowed in float16. Use an earlier checkpoint."
        )


def refuse_missing_rows(model: Any, tokenizer: Any, source: str, field: str) -> None:
    """Raise ModelError for tokens without an embedding: a CPU stops at the first one, a GPU reads other memory.

    A padding token may lack its row, as in many checkpoints, because nothing is padded here.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    beyond = {number: token for token, number in tokenizer.get_vocab().items() if number >= rows}
    used = sorted(number for number, token in beyond.items() if token != tokenizer.pad_token or token == tokenizer.eos_token)
    if used:
        raise ModelError(
            f"{field}: {source}: its tokenizer has ids up to {max(used)}, but its embedding has {rows} rows, so {len(used)} of its tokens "
            f"have no embedding, the first {beyond[used[0]]!r} ({used[0]}). Use the tokenizer that belongs to the weights. If tokens were "
            f"added on purpose, add rows for them and train those first: model.resize_token_embeddings({max(used) + 1}), "
            "then model.save_pretrained(folder)."
        )


# -- tokenizers --------------------------------------------------------------------------------------------------------


def read_tokenizer(source: str, revision: str, field: str, trusted: bool = False) -> Any:
    """`load_tokenizer`, with a ModelError for files that cannot be read."""
    try:
        with use_cache_if_offline(source) as offline:
            return load_tokenizer(source, revision, trusted)
    except Exception as problem:  # the Rust tokenizer raises bare Exceptions for a damaged file
        if offline:
            raise ModelError(
                f"{field}: there is no folder {source!r}, and loading it from the hub failed: {offline}."
            ) from problem
        refuse_code(problem, source, field)
        if isinstance(problem, StrictDataclassError):  # transformers reads config.json to choose the tokenizer
            raise ModelError(
                f"{field}: {source}: config.json cannot be used ({first_line(problem)}). Restore the file that belongs to the weights."
            ) from problem
        raise ModelError(
            f"{field}: the tokenizer of {source!r} cannot be read ({first_line(problem)}). Copy tokenizer.json and "
            "tokenizer_config.json there again, or use a hub id that this machine can reach."
        ) from problem


def load_tokenizer(source: str, revision: str = "", trusted: bool = False) -> Any:
    """The tokenizer of a local folder or hub id, exactly as it was saved.

    AutoTokenizer chooses by the model type in config.json: a folder of type qwen2 gets Qwen's rules for splitting text, even if its
    tokenizer.json has others. A character tokenizer then silently loses its spaces, and the policy reads other tokens than it was
    trained on. So the result is compared with tokenizer.json on a few texts, and the file takes precedence.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    options: dict[str, Any] = {"trust_remote_code": trusted, **({"revision": revision} if revision else {})}
    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    expected = read_saved_ids(source, revision)
    if expected is None or encode_probes(tokenizer) == expected:
        return tokenizer
    plain = PreTrainedTokenizerFast.from_pretrained(source, **options)
    if encode_probes(plain) == expected:
        return plain
    warnings.warn(
        f"{source}: transformers ({type(tokenizer).__name__}) splits text differently than the folder's tokenizer.json. "
        "Compare some texts before you trust the run.",
        stacklevel=2,
    )
    return tokenizer


def read_saved_ids(source: str, revision: str) -> list[list[int]] | None:
    """Ids of the probes according to tokenizer.json; None without such a file."""
    from tokenizers import Tokenizer
    from transformers.utils import cached_file

    try:
        path = cached_file(source, "tokenizer.json", revision=revision or None, _raise_exceptions_for_missing_entries=False)
    except OSError:  # the hub is not reachable; the cached files have been loaded
        return None
    if path is None:
        return None
    saved = Tokenizer.from_file(path)
    saved.no_truncation()
    saved.no_padding()
    return [saved.encode(text, add_special_tokens=False).ids for text in PROBES]


def encode_probes(tokenizer: Any) -> list[list[int]]:
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in PROBES]
