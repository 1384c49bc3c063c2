"""The worker's side of a weight push: it checks the tensors, joins the trainer's group, and passes tensors to vLLM's loader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo

from cohort_vllm.checks import find_difference, list_parameters
from cohort_vllm.transfer import Entry, fill_buckets, join_group, receive_bucket


@dataclass
class TransferInfo(WeightTransferInitInfo):
    """The tensors that a trainer is about to send, and its address. Without a port the worker only compares names and shapes."""

    entries: list[Entry]
    device: str
    address: str = ""
    port: int = 0
    size: int = 0
    first_rank: int = 1
    limit_s: float = 60.0


@dataclass
class Update(WeightTransferUpdateInfo):
    """All weights, in the order of the TransferInfo. abandon: none are sent; end a session that was left open."""

    abandon: bool = False


class GroupEngine(WeightTransferEngine[TransferInfo, Update]):
    init_info_cls, update_info_cls = TransferInfo, Update

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.group: Any = None
        self.entries: list[Entry] = []

    def init_transfer_engine(self, init_info: TransferInfo) -> None:
        if init_info.device != self.device.type:
            raise ValueError(
                f"the trainer sends from {init_info.device}, but this server runs on {self.device.type}; use vllm.push = files."
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
            raise RuntimeError("no trainer has connected to this worker yet")
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: Update) -> None:
        if update_info.abandon:
            raise RuntimeError("the weight update was abandoned on request")
        for bucket in fill_buckets(self.entries):
            self.model.load_weights(receive_bucket(self.group, bucket, self.device))

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        self.group = None
