"""What others have and this trainer refuses by name, each word with the reason and what to do instead. Imports no torch."""

from __future__ import annotations

import re

CUT = (
    "in training every token is sampled from the whole distribution of the policy: the log-probs of the loss are those of the "
    "policy, and {what} would sample from another one, so that every ratio is off by what it left out or moved. {instead}"
)
CUTS_INSTEAD = "Change sampling.temperature; for evaluation alone there are evaluation.top_p and evaluation.top_k"
PENALTY_INSTEAD = "Punish repetition where it is learned from: a reward of your own with a negative weight; algorithm.overlong_share for length"
LIMITS_INSTEAD = (
    "Say it in the prompt, or in a reward; what ends a completion is sampling.stop and sampling.max_completion_tokens"
)
BEAMS_INSTEAD = "A group is train.group_size samples of the policy"
ONE_DEVICE = (
    "not built: a run is one process on one device, and a sequence lies on it whole. For long completions lower "
    "train.micro_batch_tokens, set train.activation_checkpointing = true or model.lora.rank; what fits is in docs/memory.md"
)
FOUR_BITS = 'write model.lora.rank and model.lora.base_dtype = "nf4": 4 bits are for a frozen base under adapters'
IMAGES = "not built: prompts and completions are text, and models that see are refused. Take the text-only model of the family"

BALANCE = (
    "the balance loss of a mixture of experts is not trained: it is a product of two means over a batch and no sum over tokens, so its "
    "gradient would change with train.micro_batch_tokens. The router learns from the loss of the algorithm alone; leave the word out"
)

REFUSED: tuple[tuple[str, str], ...] = (
    (
        CUT.format(what="a cut", instead=CUTS_INSTEAD),
        "min_p|typical(_p)?|top_a|top_h|top_n_sigma|tfs(_z)?|(epsilon|eta)_cutoff|xtc_.*|mirostat.*",
    ),
    (CUT.format(what="a penalty", instead=PENALTY_INSTEAD), "(?!.*kl).*penalty.*|.*repeat_ngram.*|dry_.*"),
    (
        CUT.format(what="a constraint", instead=LIMITS_INSTEAD),
        "logit_bias|logits?_process.*|bad_words.*|suppress_tokens|sequence_bias|guided_.*|structured_.*|grammar|min_(new_)?(tokens|length)",
    ),
    (CUT.format(what="a search", instead=BEAMS_INSTEAD), "(num_)?beam.*|best_of|dola_.*"),
    (
        ONE_DEVICE,
        ".*paralle.*|.*ulysses.*|ring_att.*|(cp|sp|tp|pp|ep|dp)(_size|_degree)?|world_size|(num|n)_(gpus|nodes|devices).*|nnodes|devices|"
        ".*fsdp.*|.*deepspeed.*|.*megatron.*|zero_(stage|optimization)|ddp.*|device_map",
    ),
    (IMAGES, "(.*_)?(vision|images?|videos?|audios?|multimodal|mm|pixels)(_.*)?|processor"),
    (BALANCE, ".*aux_loss.*|.*z_loss.*|.*load_balanc.*|.*balance_loss.*|(.*_)?router(_.*)?"),
    (f"8 bits are not built; {FOUR_BITS}", ".*8bit.*"),
    (FOUR_BITS, ".*(4bit|qlora|nf4|bnb|bitsandbytes).*|quanti.*|bits"),
)
"""What there is in the place of words of other tools, and which words: others write them in many ways."""


def why_refused(word: str) -> str:
    """What to say of a word that other tools have and this one does not; "" where there is nothing to say."""
    word = word.lower().replace("-", "_")
    return next((reason for reason, words in REFUSED if re.fullmatch(words, word)), "")


def why_no_device(name: str) -> str:
    """Why a device cannot be used, as far as its name says; "" where this machine must be asked."""
    if re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", name):
        return ""
    known = "use auto, cpu, cuda or cuda:N"
    kind = name.lower().partition(":")[0].strip()
    others = {
        "mps": "Apple's GPU (mps) is not served: kernels, engines and tests are for CUDA and for CPUs. Set it to cpu on a Mac",
        "gpu": f"a GPU is called cuda here; {known}",
        "tpu": f"TPUs are not served; {known}",
    }
    others |= dict.fromkeys(("xla", "jax"), others["tpu"]) | dict.fromkeys(("metal", "apple"), others["mps"])
    others |= dict.fromkeys(
        ("xpu", "hpu", "npu", "mlu", "musa", "vulkan", "hip", "rocm", "privateuseone"),
        f"{kind} devices are not served; {known}",
    )
    if kind == "cuda":
        return f"{name!r} is not one device: a run has one, {known}, with N from 0"
    return others.get(kind, f"{name!r} is not a device; {known}")
