"""Own code for the Llama and Qwen families, where driving the modules of transformers leaves the hardware idle.

`family.py` reads a model into plain tensors (the model's own parameters, no copy). `decoding.py` samples with them,
`training.py` computes hidden states with gradients; `kernels_*.py` hold the Triton kernels of both, each with a twin in plain
torch that the tests compare it with. A model outside these families, or with an option that is not honoured here, is refused
with the reason, and the modules of transformers do the work instead.
"""
