"""Every shipped reward through TRL's own GRPOTrainer: two steps of a tiny model on the CPU."""

from __future__ import annotations

import functools
import http.server
import json
import threading

import pytest
import torch
from transformers import LlamaConfig, LlamaForSequenceClassification

from cohort.rewards import BUILT_IN
from conftest import tiny_policy

ROW = {"prompt": "1+2=", "answer": "3", "tests": [{"call": "add", "args": [1, 2], "expected": 3}]}
ROW["instructions"] = [{"id": "json_record", "record": {"sum": 3}}]
ARGUMENTS = {
    "regex_format": {"pattern": ".*"},
    "soft_overlong": {"longest": 6, "buffer": 2},
    "length": {"longest": 4},
    "language_consistency": {"target_language": "en"},
}
LOGGED = {
    "math_answer": {"strict", "lenient"},
    "code_tests": {"pass_rate", "all_passed"},
    "reward_model": {"cut"},
    "judge": {"unreadable", "unreachable", "requests"},
}
"""Metrics that TRL has to get from log_metric."""


class Judge(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.dumps({"choices": [{"message": {"content": "[RESULT] 4"}, "finish_reason": "stop"}]}).encode()
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """Arguments of the rewards that ask a model: a reward model in a folder, a judge on this machine."""
    folder, policy = tmp_path_factory.mktemp("reward_model"), tiny_policy()
    size = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(**size, vocab_size=len(policy.tokenizer), num_labels=1, pad_token_id=policy.tokenizer.pad_token_id)
    LlamaForSequenceClassification(config).save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Judge) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}/v1"
        yield {
            "reward_model": {"model": str(folder), "device": "cpu"},
            "judge": {"endpoint": endpoint, "model": "m", "marker": "[RESULT]", "rubric": "{prompt} {completion}"},
        }
        server.shutdown()


def train_in_trl(rewards, folder):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    policy = tiny_policy(dtype=torch.float32)
    args = GRPOConfig(
        output_dir=str(folder), per_device_train_batch_size=8, num_generations=4, max_completion_length=6, max_steps=2, logging_steps=1,
        use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    policy.model.set_attn_implementation("sdpa")
    trainer = GRPOTrainer(
        model=policy.model, reward_funcs=rewards, args=args, processing_class=policy.tokenizer, train_dataset=Dataset.from_list([ROW] * 8)
    )  # fmt: skip
    trainer.train()
    return [entry for entry in trainer.state.log_history if "reward" in entry]


def test_every_shipped_reward_trains_in_trl(tmp_path, learned):
    """All but process_reward_model, which pays step by step: TRL takes one number per completion."""
    names = [name for name in BUILT_IN if name != "process_reward_model"]
    arguments = ARGUMENTS | learned
    rewards = [
        functools.update_wrapper(functools.partial(BUILT_IN[name], **arguments.get(name, {})), BUILT_IN[name]) for name in names
    ]
    steps = train_in_trl(rewards, tmp_path)
    assert len(steps) == 2
    for step in steps:
        for name in names:
            assert step[f"rewards/{name}/mean"] == step[f"rewards/{name}/mean"], name  # not NaN: it gave scores
            assert LOGGED.get(name, set()) <= set(step), name
        assert 0.0 == step["strict"] <= step["lenient"] <= 1.0
