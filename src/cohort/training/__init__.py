"""The stages of the loop, and the checkpointed training state."""
