"""The lab: interactive questions about groups, updates, clipping, lengths and the KL. torch is imported with the first numbers.

A station is one question. The training functions of the registry compute its numbers; no formula is implemented twice.
"""
