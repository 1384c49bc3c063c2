"""The mathematics: pure functions of plain numbers and tensors. No config, no logging, no in-place writes."""
