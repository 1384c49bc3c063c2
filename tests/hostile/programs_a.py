"""The first set of hostile programs, all categories together."""

from __future__ import annotations

from hostile.escapes import ESCAPES, NETWORK, SECRETS
from hostile.exhaustion import DISK, HANGS, MEMORY, OUTPUT
from hostile.forgery import FORGERY
from hostile.processes import PROCESSES, SURVIVORS
from hostile.programs import HostileProgram

HOSTILE: list[HostileProgram] = [
    *FORGERY,
    *HANGS,
    *MEMORY,
    *DISK,
    *OUTPUT,
    *PROCESSES,
    *ESCAPES,
    *SURVIVORS,
    *NETWORK,
    *SECRETS,
]
