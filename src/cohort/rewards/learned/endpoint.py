"""The judge's endpoint and key, as a recipe names them."""

from __future__ import annotations

import os
import re

from cohort.base.http import HEADER_WORD, Endpoint
from cohort.errors import RewardError

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_endpoint(address: str, api_key_env: str) -> Endpoint:
    """Where a judge is asked for chat completions. Raises RewardError."""
    try:
        endpoint = Endpoint.parse(address, "/chat/completions", key_word="api_key_env", example="http://localhost:8000/v1")
    except ValueError as problem:
        raise RewardError(f"endpoint: {problem}") from None
    endpoint.key = read_key(api_key_env)
    return endpoint


def read_key(variable: str) -> str:
    """The key in that environment variable. No message shows what was given: it might be the key itself."""
    if not variable:
        return ""
    if not VARIABLE.fullmatch(variable):
        raise RewardError(
            "api_key_env: it is the NAME of an environment variable, such as JUDGE_KEY, and never the key itself."
        )
    named = f"the environment variable {variable}" if variable == variable.upper() and len(variable) <= 64 else "that variable"
    key = os.environ.get(variable, "").strip()
    if not key:
        raise RewardError(f"api_key_env: {named} is not set, or empty. Give the name of the variable that holds the key.")
    if not HEADER_WORD.fullmatch(key):
        raise RewardError(f"api_key_env: {named} holds characters that a key cannot have (spaces, line ends).")
    return key
