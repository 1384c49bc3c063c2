"""The hub's cache, where the hub cannot be reached."""

from __future__ import annotations

import socket

import pytest
from huggingface_hub import constants

from cohort.base.hub import use_cache_if_offline
from cohort.data.rows import load_rows
from cohort.errors import ModelError, PromptError
from cohort.model.loading import load_pretrained
from cohort.recipe.schema import PromptsConfig


@pytest.fixture
def no_address(monkeypatch):
    """No name has an address, and nothing may be requested: the hub's retries take half a minute."""

    def fail(*names, **options):
        raise socket.gaierror(-2, "Name or service not known")

    def request(*arguments, **options):
        raise AssertionError("the hub was asked")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", request)
    monkeypatch.setattr("cohort.base.hub.getproxies", dict)


def test_without_an_address_cached_files_are_used_and_the_setting_is_restored(no_address, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with use_cache_if_offline("owner/name") as reason:
        assert constants.HF_HUB_OFFLINE
        assert "huggingface.co has no address here" in reason
    assert not constants.HF_HUB_OFFLINE
    with use_cache_if_offline(str(tmp_path)) as reason:  # a folder is not on the hub
        assert (constants.HF_HUB_OFFLINE, reason) == (False, "")
    monkeypatch.setattr("cohort.base.hub.getproxies", lambda: {"https": "http://proxy:3128"})
    with use_cache_if_offline("owner/name") as reason:
        assert (constants.HF_HUB_OFFLINE, reason) == (False, "")


def test_a_dataset_and_a_model_of_the_hub_are_refused_at_once(no_address):
    with pytest.raises(
        PromptError, match=r"'owner/rows' is not a file.* failed: its cache .* huggingface.co has no address here"
    ):
        load_rows(PromptsConfig(source="owner/rows"), 0)
    with pytest.raises(
        ModelError, match=r"model.source: there is no folder 'owner/model'.* huggingface.co has no address here"
    ):
        load_pretrained("owner/model")
