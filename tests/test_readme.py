"""README: short, its example runs, and its figures of speed are those of the table."""

from __future__ import annotations

import re
import string
from pathlib import Path

import cohort
from cohort.model.scratch import build_scratch
from cohort.recipe.schema import ScratchConfig

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
TINY = {
    "num_steps": 1,
    "prompts_per_step": 2,
    "max_completion_tokens": 4,
    "evaluation": {"samples": 2, "resamples": 100, "max_problems": 2},
    "monitors": {"console": False},
}


def test_it_can_be_read_in_five_minutes():
    assert len(README.split()) <= 1000


def test_the_example_runs_but_for_the_name_of_the_model(tmp_path, monkeypatch, capsys):
    """The block as it stands, with a tiny chat model in place of the hub's and one step instead of 200."""
    monkeypatch.chdir(tmp_path)
    shape = ScratchConfig(
        hidden_size=16,
        intermediate_size=24,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        max_positions=96,
        characters=string.printable,
    )
    net, tokenizer = build_scratch(shape, (), 0)
    tokenizer.chat_template = TEMPLATE
    net.save_pretrained("tiny")
    tokenizer.save_pretrained("tiny")
    train = cohort.train
    seen = {}

    def train_tiny(**words):
        seen.update(words)
        return train(**{**words, "model": "tiny", **TINY})

    monkeypatch.setattr(cohort, "train", train_tiny)
    [block] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(block, "README.md", "exec"), {})
    assert len(seen["prompts"]) == 500
    assert seen["prompts"][0]["answer"] == "144"
    assert seen["rewards"][0]([[{"content": "It is 144 "}], [{"content": "145"}]], answer=["144", "144"]) == [1.0, 0.0]
    printed = capsys.readouterr().out
    assert printed.startswith("finished {")
    assert (tmp_path / printed.split()[-1] / "config.json").exists()


def test_its_figures_of_speed_stand_in_the_table():
    table = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    told = re.search(
        r"0\.5B model (\d+k) sampled tokens a second, ([\d.]+) times HF generate.*?step in ([\d.]+) s, ([\d.]+) times",
        README,
        re.DOTALL,
    )
    assert told is not None
    rate, times, seconds, faster = told.groups()
    rows = table.splitlines()
    assert any(f"**{rate} tok/s**" in row and f"**{times}×**" in row and "H200, 0.5b" in row for row in rows)
    assert any(f"**{seconds} s**" in row and f"**{faster}×**" in row and "H200, 0.5b" in row for row in rows)
