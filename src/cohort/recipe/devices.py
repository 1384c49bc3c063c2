"""The devices that a recipe can name, and what is said of all others. Imports no torch."""

from __future__ import annotations

import re

SERVED = "use auto, cpu, cuda or cuda:N"
OTHERS = {
    "mps|metal|apple": "Apple's GPU (mps) is not served: kernels, engines and tests are for CUDA and for CPUs. Set it to cpu on a Mac",
    "gpu": f"a GPU is called cuda here; {SERVED}",
    "tpu|xla|jax": f"TPUs are not served; {SERVED}",
    "xpu|hpu|npu|mlu|musa|vulkan|hip|rocm|privateuseone": f"{{kind}} devices are not served; {SERVED}",
    "cuda": f"{{name!r}} is not one device: a run has one, {SERVED}, with N from 0",
}
"""Kinds of devices, as a pattern -> what is said of them."""


def explain_device(name: str) -> str:
    """Why a device cannot be used, as far as its name says; "" where this machine must be asked."""
    if re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?", name):
        return ""
    kind = name.lower().partition(":")[0].strip()
    said = (text for pattern, text in OTHERS.items() if re.fullmatch(pattern, kind))
    return next(said, f"{{name!r}} is not a device; {SERVED}").format(name=name, kind=kind)
