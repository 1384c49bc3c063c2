"""Tensor operations, with fast versions in Triton and C."""
