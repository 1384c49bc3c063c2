"""Plain text for a model that is tuned on chats: one warning at the start, and none where plain text is right or meant."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest

import cohort
from cohort.model.scratch import build_scratch
from cohort.recipe.schema import ScratchConfig

ENDS = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{{ eos_token }}{% endfor %}"
OTHER = ENDS.replace("{{ eos_token }}", "<pad>")
"""A base model's: it ends a turn with a token that does not end the model's own texts."""
ROWS = [{"prompt": f"{n} plus {n} is", "answer": str(2 * n)} for n in range(20)]
CHATS = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]
WORDS: dict[str, Any] = {
    "group_size": 2,
    "num_steps": 1,
    "prompts_per_step": 2,
    "max_completion_tokens": 4,
    "evaluation": {"samples": 0},
}


class Listener:
    """A monitor that keeps the messages."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_message(self, text: str) -> None:
        self.heard.append(text)


def list_warnings(folder: Any, template: str | None, rows: Any, **words: Any) -> list[str]:
    shape = ScratchConfig(
        hidden_size=16, intermediate_size=24, num_layers=1, num_heads=2, max_positions=96, characters=string.printable
    )
    net, tokenizer = build_scratch(shape, (), 0)
    tokenizer.chat_template = template
    net.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    watch = Listener()
    cohort.train(
        folder / "model",
        rows,
        ["session_tools:always_right"],
        monitors=[watch],
        runs_folder=str(folder),
        name="run",
        **WORDS | words,
    )
    return [text for text in watch.heard if "this is a chat model" in text]


def test_one_warning_with_the_fix(tmp_path):
    (line,) = list_warnings(tmp_path, ENDS, ROWS)
    assert "warning: prompts: this is a chat model" in line
    for fix in ("prompts.system", '"prompt": [{"role": "user", "content": ...}]', 'prompts.template = "{prompt}"'):
        assert fix in line


def test_a_set_with_settings_of_its_own_and_an_evaluation_are_warned_of_too(tmp_path, capsys):
    """A system message under [prompts] does not reach a set of a recipe."""
    file = tmp_path / "test.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    settings = {"evaluation": {"sets": {"test": {"source": str(file)}}, "samples": 1}}
    rows = [{"prompt": f"{n} minus 1 is", "answer": str(n - 1)} for n in range(20)]
    (line,) = list_warnings(tmp_path, ENDS, rows, system="Add.", **settings)
    assert "all prompts of evaluation.sets.test are plain text" in line
    assert "Set evaluation.sets.test.system to convert" in line
    quick = {"samples": 1, "max_completion_tokens": 2, "resamples": 100}
    cohort.evaluate(tmp_path / "model", ROWS, ["session_tools:always_right"], **quick)
    assert capsys.readouterr().err.count("warning: prompts: this is a chat model") == 1
    cohort.evaluate(tmp_path / "model", ROWS, ["session_tools:always_right"], system="Add.", **quick)
    assert "chat model" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("template", "rows", "words"),
    [
        pytest.param(None, ROWS, {}, id="a base model without a template"),
        pytest.param(OTHER, ROWS, {}, id="a base model with one"),
        pytest.param(ENDS, CHATS, {}, id="chats"),
        pytest.param(ENDS, ROWS, {"system": "Add."}, id="chats made by prompts.system"),
        pytest.param(ENDS, ROWS, {"prompts.template": "{prompt}"}, id="plain text that is meant"),
        pytest.param(ENDS, [{**row, "prompt": f"<user>{row['prompt']}<eos>"} for row in ROWS], {}, id="rendered by the user"),
    ],
)
def test_no_warning_where_the_form_is_right(tmp_path, template, rows, words):
    assert list_warnings(tmp_path, template, rows, **words) == []
