"""A plugin for vLLM that adds the weight-transfer backend "cohort". Every process of a server loads it through its entry point."""


def register() -> None:
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if "cohort" not in WeightTransferEngineFactory._registry:  # plugins may be loaded more than once in a process
        WeightTransferEngineFactory.register_engine("cohort", "cohort_vllm.engine", "GroupEngine")
