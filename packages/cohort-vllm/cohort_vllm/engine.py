"""A worker's side of a push: it says what does not fit, meets the trainer, and hands tensors to vLLM's own loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo

from cohort_vllm.checks import find_difference, list_parameters
from cohort_vllm.transfer import Entry, fill_buckets, join_group, receive_bucket


@dataclass
class Meeting(WeightTransferInitInfo):
    """What a trainer is about to send and from where. Without a port the worker compares names and shapes, and no more."""

    entries: list[Entry]
    device: str
    address: str = ""
    port: int = 0
    size: int = 0
    first_rank: int = 1
    limit_s: float = 60.0


@dataclass
class Delivery(WeightTransferUpdateInfo):
    """All weights, in the order told before. `abandon`: none come; a session that somebody left open is ended."""

    abandon: bool = False


class GroupEngine(WeightTransferEngine[Meeting, Delivery]):
    init_info_cls, update_info_cls = Meeting, Delivery

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.group: Any = None
        self.entries: list[Entry] = []

    def init_transfer_engine(self, init_info: Meeting) -> None:
        if init_info.device != self.device.type:
            raise ValueError(
                f"the trainer sends from a {init_info.device} and this server computes on a {self.device.type}; use vllm.push = files."
            )
        if reason := find_difference(init_info.entries, list_parameters(self.model_config.hf_config)):
            raise ValueError(reason)
        self.entries, self.group = init_info.entries, None
        if init_info.port:
            parallel = self.parallel_config
            rank = init_info.first_rank + parallel.data_parallel_index * parallel.world_size + parallel.rank
            self.group = join_group(init_info.address, init_info.port, rank, init_info.size, self.device, init_info.limit_s)

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        if self.group is None:
            raise RuntimeError("no trainer has met this worker yet")
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Delivery) -> None:
        if update_info.abandon:
            raise RuntimeError("the weight update is abandoned, as was asked for")
        for bucket in fill_buckets(self.entries):
            self.model.load_weights(receive_bucket(self.group, bucket, self.device))

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        self.group = None
