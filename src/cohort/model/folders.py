"""What a folder that is given as a model really holds: read from its files before any weight is, and refused in words.

transformers meets most of these in the middle of loading, as an exception of whichever library came first, or not at all: a
classifier becomes a language model with a made-up head, an empty tokenizer is put in the place of a missing one. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
