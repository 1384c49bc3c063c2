"""Tensor operations and their fast twins in Triton and C: numbers in, numbers out."""
