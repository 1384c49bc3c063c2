"""The Hugging Face hub: if this machine cannot reach it, only the files in its cache are used."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies


@contextmanager
def use_cache_if_offline(source: str, reader: str = "huggingface_hub.constants") -> Iterator[str]:
    """Make the hub's libraries use cached files of `source` if the hub's name has no address; yields the reason, or "".

    By themselves they retry each file for half a minute. reader: the module whose HF_HUB_OFFLINE the library reads.
    """
    if Path(source).expanduser().exists():
        yield ""
        return
    from huggingface_hub import constants

    own: Any = importlib.import_module(reader)
    host = urlsplit(constants.ENDPOINT).hostname or ""
    before = constants.HF_HUB_OFFLINE, own.HF_HUB_OFFLINE
    try:
        if not any(before) and not getproxies():  # a proxy resolves the name itself
            socket.getaddrinfo(host, 443)
    except OSError:
        constants.HF_HUB_OFFLINE = own.HF_HUB_OFFLINE = True
    reason = f"its cache does not have the files, and {host} has no address here or HF_HUB_OFFLINE is set"
    try:
        yield reason if own.HF_HUB_OFFLINE else ""
    finally:
        constants.HF_HUB_OFFLINE, own.HF_HUB_OFFLINE = before
