"""LoRA through PEFT: small trained matrices added to frozen ones.

    W x  ->  W x + (alpha / rank) B (A x)        A is [rank, in], B is [out, rank]; only A and B are trained

Differences from wrapping a model with `get_peft_model`:

- the model stays the same transformers model, with PEFT's layers inside, so its config and its backbone are used as before;
- a copy of the policy (reference, critic) is a second tree of modules over the *same* frozen parameters, with its own adapters.
  There is no second base in memory, and no active adapter to switch;
- A depends only on the seed and the name of its layer, not on torch's generators or the order of layers.

PEFT is imported only when adapters are used.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from cohort.base.keyed import keyed_hash
from cohort.errors import ModelError
from cohort.model import four_bit
from cohort.recipe.schema import LoraConfig

NAME = "default"
"""Name of the only adapter in a tree of modules, as PEFT's files and loaders expect it."""
PREFIX = "base_model.model."
"""PEFT's prefix of every key in an adapter file."""
CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
PART_OF_ADAPTER = re.compile(rf"\.lora_[AB]\.{NAME}\.weight$")

REFUSED = {
    "lora_bias": "biases in its matrices (lora_bias)",
    "modules_to_save": "whole trained modules (modules_to_save)",
    "trainable_token_indices": "trained token embeddings (trainable_token_indices)",
    "layer_replication": "replicated layers (layer_replication)",
    "target_parameters": "adapters on bare parameters (target_parameters)",
}
"""Parts of PEFT adapters besides A and B. They would be trained, merged or exported incorrectly, so they are refused."""
HARMLESS_STARTS = ("gaussian", "eva", "orthogonal")
"""Values of init_lora_weights, besides true and false, that do not change the base. PiSSA and similar ones change it on loading."""


@dataclass(frozen=True)
class Adapter:
    """What an adapter's folder needs besides the weights, so that PEFT can load it."""

    config: Any
    """PEFT's LoraConfig."""
    base: str
    """Folder or hub id of the frozen model; "": it was created by this run and is saved in the adapter's folder."""
    revision: str = ""
    made_for: str = ""
    """The base named in the file that the adapter was loaded from."""


def import_peft() -> Any:
    try:
        import peft
    except ImportError as problem:
        raise ModelError(
            f"model.lora: adapters need the package peft, which cannot be imported ({problem}). Run `pip install peft`, or set "
            "model.lora.rank = 0 to train all weights."
        ) from problem
    return peft


# -- putting an adapter into a model -----------------------------------------------------------------------------------


def start_adapter(model: Any, settings: LoraConfig, seed: int, base: str = "", revision: str = "") -> Adapter:
    """Inject the adapter that a run starts with: the one of model.lora.adapter, or a new one that has no effect yet."""
    peft = import_peft()
    if settings.adapter:
        adapter = load_adapter(model, Path(settings.adapter), base, revision, field="model.lora.adapter")
        check_agreement(settings, adapter.config)
        return adapter
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha or 2.0 * settings.rank,
        target_modules=check_targets(model, settings.targets),
        task_type="CAUSAL_LM",
    )
    inject(model, config)
    write_values(model, draw_first_values(model, seed))
    return Adapter(config, base, revision)


def load_adapter(model: Any, folder: Path, base: str, revision: str = "", field: str = "adapter") -> Adapter:
    """Inject the adapter of a folder in PEFT's format, weights included."""
    config = read_config(folder, field)
    made_for = config.base_model_name_or_path or ""
    # Dropout is always off: the policy that is scored must be the one that sampled.
    config.inference_mode, config.lora_dropout = False, 0.0
    try:
        inject(model, config)
    except ValueError as problem:
        raise ModelError(
            f"{field}: {folder} was made for {made_for or 'another model'}: {type(model).__name__} has none of its layers "
            f"({str(problem).strip().splitlines()[0]})."
        ) from problem
    write_values(model, read_values(model, folder, field, made_for))
    return Adapter(config, base, revision, made_for)


def inject(model: Any, config: Any) -> None:
    """Put PEFT's layers around the linear layers. Afterwards only the adapter is trained, in float32."""
    peft = import_peft()
    with torch.random.fork_rng(devices=[]):  # PEFT draws A from the global generator; draw_first_values replaces it
        peft.inject_adapter_in_model(config, model, adapter_name=NAME)
    model.requires_grad_(False)
    model.eval()
    head = model.get_output_embeddings()
    for name, layer in list_lora_layers(model).items():
        plain = isinstance(layer, peft.tuners.lora.Linear) or four_bit.is_four_bit(layer.get_base_layer().weight)
        if layer is head or not plain:
            kind = "the output projection" if layer is head else f"a {type(layer.get_base_layer()).__name__}"
            raise ModelError(f"model.lora: {name} is {kind}, but only linear layers below the head can have adapters.")
    for parameter in adapter_parameters(model).values():
        parameter.data = parameter.data.to(torch.promote_types(parameter.dtype, torch.float32))
        parameter.requires_grad_(True)


def draw_first_values(model: Any, seed: int) -> dict[str, Tensor]:
    """A uniform in +- 1 / sqrt(in), as in PEFT; B zero, so that the policy starts bit-equal to the base."""
    values = {}
    for name, parameter in adapter_parameters(model).items():
        values[name] = torch.zeros(parameter.shape)
        if ".lora_A." in name:
            generator = torch.Generator().manual_seed(keyed_hash("lora", seed, name) % 2**63)
            values[name].uniform_(-(parameter.shape[1] ** -0.5), parameter.shape[1] ** -0.5, generator=generator)
    return values


@torch.no_grad()
def write_values(model: Any, values: Mapping[str, Tensor]) -> None:
    for name, parameter in adapter_parameters(model).items():
        parameter.copy_(values[name])


def check_targets(model: Any, targets: list[str]) -> list[str]:
    """The targets of the recipe; if it names none, all linear layers below the head. Raises ModelError for other modules."""
    linear, head = linear_layers(model), model.get_output_embeddings()
    if not linear:
        raise ModelError(f"model.lora.rank: {type(model).__name__} has no linear layers below its head, which adapters need.")
    all_targets = sorted({name.rpartition(".")[2] for name in linear})
    known = ", ".join(all_targets)
    for target in targets:
        matched = {name: module for name, module in model.named_modules() if name == target or name.endswith(f".{target}")}
        if head in matched.values():
            raise ModelError(
                f"model.lora.targets: {target!r} is the output projection, which stays frozen (it is often also the embedding, "
                f"and its gradient is the largest of all). Leave it out. Available: {known}."
            )
        if not matched:
            raise ModelError(f"model.lora.targets: {type(model).__name__} has no module {target!r}. Available: {known}.")
        others = sorted({type(module).__name__ for name, module in matched.items() if name not in linear})
        if others:
            raise ModelError(f"model.lora.targets: {target!r} is a {others[0]}, not a linear layer. Available: {known}.")
    return list(targets) or all_targets


def linear_layers(model: Any) -> dict[str, nn.Module]:
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    return {name: part for name, part in model.named_modules() if isinstance(part, (nn.Linear, Conv1D)) and part is not head}


def check_agreement(settings: LoraConfig, config: Any) -> None:
    """Raise ModelError if the recipe's settings differ from the adapter's, since they would be ignored."""
    given = {"rank": settings.rank, "alpha": settings.alpha, "targets": sorted(settings.targets)}
    targets = config.target_modules
    own = {"rank": config.r, "alpha": config.lora_alpha, "targets": targets if isinstance(targets, str) else sorted(targets)}
    for name, value in given.items():
        if value and value != own[name]:
            fix = f"set it to {own[name]}" if name == "rank" else "leave it out"
            raise ModelError(
                f"model.lora.{name} is {value}, but the adapter in {settings.adapter} has {own[name]}: {fix}, or start without an adapter."
            )


# -- reading and writing folders ---------------------------------------------------------------------------------------


def is_adapter(folder: str | Path) -> bool:
    return (Path(folder) / CONFIG_FILE).is_file()


def has_base(folder: str | Path) -> bool:
    """Whether the adapter's folder also contains its base."""
    return (Path(folder) / "config.json").is_file()


def read_config(folder: Path, field: str) -> Any:
    peft = import_peft()
    if not is_adapter(folder):
        raise ModelError(f"{field}: {folder} has no {CONFIG_FILE}. Use a folder written by PEFT or by a run.")
    try:
        document = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        kind = document.get("peft_type")
        if kind != "LORA":
            raise ModelError(f"{field}: {folder} contains an adapter of type {kind}; only LORA is supported.")
        config = peft.LoraConfig.from_pretrained(str(folder))
    except (OSError, ValueError, TypeError, AttributeError) as problem:
        raise ModelError(f"{field}: {folder / CONFIG_FILE} cannot be read ({problem}).") from problem
    found = [part for name, part in REFUSED.items() if getattr(config, name, None)]
    found += [f"a variant of LoRA ({name})" for name in list_variants(config)]
    if config.bias != "none":
        found.append(f"trained biases (bias = {config.bias!r})")
    if isinstance(config.init_lora_weights, str) and config.init_lora_weights not in HARMLESS_STARTS:
        found.append(f"a start that changes the base (init_lora_weights = {config.init_lora_weights!r})")
    if found:
        raise ModelError(
            f"{field}: {folder} has {', '.join(found)}, which is not supported. Merge it into its base, or use plain LoRA."
        )
    return config


def list_variants(config: Any) -> list[str]:
    """The settings that PEFT marks as variants of LoRA, such as DoRA and aLoRA: they change the adapter's formula."""
    fields = [field.name for field in dataclasses.fields(config) if field.metadata.get("is_lora_variant")]
    return [name for name in fields if getattr(config, name)]


def read_values(model: Any, folder: Path, field: str, made_for: str) -> dict[str, Tensor]:
    """Adapter parameter -> its value in the file. Raises ModelError unless the file has exactly these, in the right shapes."""
    file = folder / WEIGHTS_FILE
    if not file.is_file():
        pickled = (folder / "adapter_model.bin").is_file()
        reason = "only a pickle, which is never loaded; save it again as safetensors" if pickled else "no weights"
        raise ModelError(f"{field}: {folder} has no {WEIGHTS_FILE} ({reason}).")
    try:
        stored = {key.removeprefix(PREFIX): value for key, value in load_file(file).items()}
    except (SafetensorError, OSError) as problem:
        raise ModelError(f"{field}: {file} cannot be read ({problem}).") from problem
    parameters = adapter_parameters(model)
    names = {make_file_key(name): name for name in parameters}
    wrong = sorted(names.keys() ^ stored.keys())
    wrong += [key for key, name in names.items() if key in stored and stored[key].shape != parameters[name].shape]
    if wrong:
        raise ModelError(
            f"{field}: {folder} was made for {made_for or 'another model'} and does not fit {type(model).__name__}. Missing, unknown or of "
            f"another shape: {wrong[0]}{f' and {len(wrong) - 1} more' if len(wrong) > 1 else ''}. Set model.source to its base."
        )
    broken = [key for key, value in stored.items() if not value.isfinite().all()]
    if broken:
        raise ModelError(f"{field}: {file} has NaN or infinity in {broken[0]}. Use an earlier state of this adapter.")
    return {names[key]: value for key, value in stored.items()}


def save_adapter(model: Any, adapter: Adapter, folder: Path) -> None:
    """Save in PEFT's format, which AutoModelForCausalLM loads. A base that this run created is saved in the same folder."""
    folder.mkdir(parents=True, exist_ok=True)
    if not adapter.base:
        make_plain_model(model, merge=False).save_pretrained(folder)
    values = {
        PREFIX + make_file_key(name): value.detach().cpu().contiguous() for name, value in adapter_parameters(model).items()
    }
    save_file(values, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    config = dataclasses.replace(
        adapter.config,
        base_model_name_or_path=adapter.base or str(folder.resolve()),
        revision=adapter.revision or None,
        inference_mode=True,
    )
    document = {name: sorted(value) if isinstance(value, set) else value for name, value in config.to_dict().items()}
    (folder / CONFIG_FILE).write_text(json.dumps(document, indent=2, sort_keys=True, default=str), encoding="utf-8")


def name_base(folder: Path, base: str) -> None:
    """Write the path of the base into an adapter's folder, once the folder is in its final place."""
    file = folder / CONFIG_FILE
    document = json.loads(file.read_text(encoding="utf-8")) | {"base_model_name_or_path": base}
    file.write_text(json.dumps(document, indent=2, sort_keys=True), encoding="utf-8")


def make_file_key(name: str) -> str:
    """model.layers.0.mlp.up_proj.lora_A.default.weight -> model.layers.0.mlp.up_proj.lora_A.weight"""
    return name.replace(f".{NAME}.weight", ".weight")


# -- trees of modules --------------------------------------------------------------------------------------------------


def list_lora_layers(model: nn.Module) -> dict[str, Any]:
    layer_class = import_peft().tuners.lora.LoraLayer
    return {name: module for name, module in model.named_modules() if isinstance(module, layer_class)}


def adapter_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: value for name, value in model.named_parameters() if PART_OF_ADAPTER.search(name)}


def copy_over_base(module: Any) -> Any:
    """A copy with its own adapters over the same base parameters, without a second base in memory."""
    adapters = {id(value) for value in adapter_parameters(module).values()}
    shared = {id(value): value for value in module.parameters() if id(value) not in adapters}
    shared |= {
        id(layer.weight.quant_state): layer.weight.quant_state for layer in four_bit.find_four_bit_layers(module).values()
    }
    return copy.deepcopy(module, shared)


@torch.no_grad()
def switch_off_where_zero(model: Any) -> None:
    """Switch the adapters off if B = 0: they would add exactly 0, so the plain base gives the same numbers faster."""
    parameters = adapter_parameters(model)
    switch_adapters(model, any(bool(value.any()) for name, value in parameters.items() if ".lora_B." in name))


def switch_adapters(model: Any, on: bool) -> None:
    parameters = adapter_parameters(model)
    trained = {name: value.requires_grad for name, value in parameters.items()}
    for layer in list_lora_layers(model).values():
        layer.enable_adapters(on)
    for name, value in parameters.items():  # PEFT's switch also changes requires_grad
        value.requires_grad_(trained[name])


@torch.no_grad()
def make_plain_model(model: Any, *, merge: bool) -> Any:
    """A copy of the model without PEFT's layers, with the adapter merged into its weights or left out.

    Merged weights are summed in float32, rounded once to the dtype of the base, and stored in host memory, since a GPU with the
    model may have no room for them. A 4-bit base is converted to its compute dtype. Everything else is shared.
    """
    tree = copy_over_base(model)
    for name, layer in list_lora_layers(tree).items():
        parent, _, child = name.rpartition(".")
        base = layer.get_base_layer()
        if merge:
            weight = four_bit.restore_weight(base)
            wide = torch.promote_types(weight.dtype, torch.float32)
            delta = layer.lora_B[NAME].weight.to(wide) @ layer.lora_A[NAME].weight.to(wide) * layer.scaling[NAME]
            merged = (weight.to(wide) + (delta.T if getattr(layer, "fan_in_fan_out", False) else delta)).to(weight.dtype).cpu()
            if four_bit.is_four_bit(base.weight):
                base = four_bit.make_full_layer(base, merged)
            else:
                base.weight = nn.Parameter(merged, requires_grad=False)
        setattr(tree.get_submodule(parent), child, base)
    if merge:
        for name, layer in four_bit.find_four_bit_layers(tree).items():  # those without an adapter
            parent, _, child = name.rpartition(".")
            setattr(tree.get_submodule(parent), child, four_bit.make_full_layer(layer, four_bit.restore_weight(layer).cpu()))
        four_bit.forget_bits(tree)
    tree.__dict__.pop("peft_config", None)
    if tree.__dict__.pop("_hf_peft_config_loaded", None):
        # For a folder with base and adapter, transformers would save the base under the adapter's names.
        tree.__dict__.pop("_weight_conversions", None)
    return tree
