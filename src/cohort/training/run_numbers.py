"""The numbers of a model and of a recipe that decide its memory, read from what a run is made of."""

from __future__ import annotations

import math
import os
from typing import Any

import psutil
import torch

from cohort.model.four_bit import count_elements
from cohort.model.lora import linear_layers
from cohort.model.policy import Policy
from cohort.ops.fused.training import FusedBackbone
from cohort.recipe.rules import needs_reference
from cohort.training.build import EncodedData, adds_exactly
from cohort.training.memory_estimate import ModelNumbers, RunNumbers
from cohort.training.objective import needs_critic
from cohort.training.parts import Parts


def measure_room(device: torch.device) -> float:
    """Bytes that this process could hold: what is free, and what it holds already."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device))
    beside = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # ranks of one host share its memory
    return psutil.virtual_memory().available / beside + psutil.Process().memory_info().rss


def list_base_weights(policy: Policy) -> list[torch.Tensor]:
    """Of the linear layers below the head, without those that an adapter puts beside them."""
    layers: dict[str, Any] = linear_layers(policy.model)
    return [layer.weight for name, layer in layers.items() if ".lora_" not in name]


def read_model_numbers(policy: Policy) -> ModelNumbers:
    config = policy.model.config.get_text_config()
    width, heads = config.hidden_size, getattr(config, "num_attention_heads", None) or 1  # a state space has no heads
    inner = getattr(config, "intermediate_size", None) or 4 * width
    own = sum(value.numel() for value in policy.list_own_parameters().values()) if policy.adapter else 0
    return ModelNumbers(
        layers=config.num_hidden_layers,
        width=width,
        query_heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or width // heads,
        intermediate=max(inner) if isinstance(inner, (list, tuple)) else inner,
        vocabulary=config.vocab_size,
        parameters=policy.num_parameters - own,
        linear_parameters=sum(map(count_elements, list_base_weights(policy))),
    )


def read_run_numbers(parts: Parts, encoded: EncodedData, ranks: int = 1) -> RunNumbers:
    """Of one of so many ranks: each samples its own block of draws."""
    recipe, policy, algorithm = parts.recipe, parts.policy, parts.recipe.algorithm
    device, dtype = policy.device, policy.model.dtype
    longest = max(len(prompt.token_ids) for prompt in encoded.train) + parts.sampling.max_completion_tokens
    rows = recipe.train.prompts_per_step * recipe.train.group_size
    # A budget larger than a whole step is never filled, and one row is taken whole however small the budget is.
    most = longest * max(rows, recipe.cold_start.batch_size if recipe.cold_start.num_steps else 0)
    able = parts.engine.capabilities
    chosen = (parts.engine.slots or able.most_slots) if able.most_slots > 1 else 1
    problems = max(map(len, encoded.sets.values()), default=0)
    adapter = sum(value.numel() for value in policy.list_own_parameters().values()) if policy.adapter else None
    return RunNumbers(
        element=dtype.itemsize,
        state_bits=recipe.optimizer.state_bits,
        lora_rank=recipe.model.lora.rank,
        four_bit=recipe.model.lora.base_dtype == "nf4",
        adapter_parameters=adapter,
        reference=needs_reference(recipe),
        ahead=recipe.ahead.lag > 0 and able.shares_weights,
        critic=needs_critic(algorithm),
        reward_model=recipe.reward_model.iterations > 0,
        micro_batch_tokens=max(longest, min(recipe.train.micro_batch_tokens, most)),
        activation_checkpointing=recipe.train.activation_checkpointing,
        own_kernels=isinstance(policy.backbone, FusedBackbone) and recipe.parallel.shard == "none",  # slices have modules
        gpu_bytes=float(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else 0.0,
        slots=min(chosen, math.ceil(max(rows, problems * recipe.evaluation.samples) / ranks)),
        longest=longest,
        cache_element=able.cache_itemsize,
        ranks=ranks,
        shard=recipe.parallel.shard == "full",
        offload=recipe.parallel.offload,
        exact=adds_exactly(recipe),
    )
