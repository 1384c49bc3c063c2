"""A real server, started as `cohort serve` starts it."""

from __future__ import annotations

import math

import psutil
import pytest
import serving

pytestmark = pytest.mark.vllm


def test_it_serves_token_ids_with_log_probs_of_what_was_sampled_from(tmp_path):
    """Effects of the flags: ids in and out, processed log-probs, a seed, spans of versions; reachable only from loopback."""
    from transformers import AutoModelForCausalLM

    words = ["column_addition", f"runs_folder={tmp_path}", "model.scratch.num_layers=2"]
    with serving.serve_many(tmp_path, words) as [server]:
        [served] = server.ask("/v1/models")["data"]
        parameters = {"temperature": 0.7, "max_tokens": 9, "seed": 5, "logprobs": 0, "ignore_eos": True}
        body = {"model": served["id"], "token_ids": [5, 6, 7, 8], "sampling_params": parameters}
        [choice] = server.ask("/inference/v1/generate", body, limit_s=120)["choices"]
        [again] = server.ask("/inference/v1/generate", body, limit_s=120)["choices"]
        pid, below = server.pid, server.list_below()
        heard = {
            connection.laddr.ip
            for one in (pid, *below)
            for connection in psutil.Process(one).net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
        assert server.ask("/v1/models")["data"][0]["max_model_len"] <= 256
    assert heard <= {"127.0.0.1"}
    assert again["token_ids"] == choice["token_ids"]
    assert choice["weight_versions"] == [{"version": "default", "start": 0, "end": 9}]
    model = AutoModelForCausalLM.from_pretrained(served["root"], dtype="float32")
    import torch

    ids = torch.tensor([[5, 6, 7, 8, *choice["token_ids"]]])
    with torch.no_grad():
        expected = (model(ids).logits[0, 3:-1] / 0.7).log_softmax(-1)
    for place, (token, entry) in enumerate(zip(choice["token_ids"], choice["logprobs"]["content"], strict=True)):
        assert math.isclose(entry["logprob"], float(expected[place, token]), abs_tol=1e-4)
    assert below
    assert not [one for one in [pid, *below] if "vllm" in serving.read_title(one).lower()]  # nothing of it is left
