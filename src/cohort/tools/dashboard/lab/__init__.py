"""The lab: what the functions that train say of a group, an update, a clip, a length and a KL. torch is imported when a number is asked for.

A station is one question. Its numbers are computed here, by the registry's own functions; none of the maths is written a second time.
"""
