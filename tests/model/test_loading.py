"""Unusable models are refused with the fault; usable ones are loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.errors import CheckpointError, ModelError
from cohort.model.loading import find_device, load_model, load_pretrained, refuse_broken_numbers, refuse_missing_rows
from cohort.model.optim import MasterWeights
from cohort.model.sources import refuse_unfit_source
from cohort.recipe.schema import ModelConfig
from model_zoo import edit_config, edit_weights, make_tokenizer, spoilt, whole_model, write_model

UP = "model.layers.1.mlp.up_proj.weight"


def cut(folder: Path, share: float) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])


def overwrite(content: bytes) -> Any:
    return lambda folder: (folder / "model.safetensors").write_bytes(content)


def set_value(name: str, value: float) -> Any:
    def edit(tensors: dict[str, Any]) -> None:
        tensors[name].view(-1)[3] = value

    return lambda folder: edit_weights(folder, edit)


def split_into_shards(folder: Path) -> list[str]:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    place = {name: names[number % 2] for number, name in enumerate(sorted(tensors))}
    for file in names:
        save_file(
            {name: value for name, value in tensors.items() if place[name] == file}, folder / file, metadata={"format": "pt"}
        )
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": place}))
    return names


def lose_shard(folder: Path) -> None:
    (folder / split_into_shards(folder)[1]).unlink()


def cut_shard(folder: Path) -> None:
    file = folder / split_into_shards(folder)[1]
    file.write_bytes(file.read_bytes()[:-100])


def lose_index(folder: Path) -> None:
    split_into_shards(folder)
    (folder / "model.safetensors.index.json").unlink()


def mix_up_index(folder: Path) -> None:
    first, second = split_into_shards(folder)
    file = folder / "model.safetensors.index.json"
    document = json.loads(file.read_text())
    document["weight_map"] = {name: first if place == second else second for name, place in document["weight_map"].items()}
    file.write_text(json.dumps(document))


def drop_tokenizer(folder: Path) -> None:
    for file in (*folder.glob("tokenizer*"), *folder.glob("chat_template*")):
        file.unlink()


def become_gguf(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-Q4_K_M.gguf")


def become_adapter(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "not/here"}))


def quantised(method: str) -> Any:
    return lambda folder: edit_config(folder, quantization_config={"quant_method": method, "bits": 4})


SPOILT: dict[str, tuple[Any, list[str]]] = {
    "cut": (lambda folder: cut(folder, 0.5), ["model.safetensors is truncated", "bytes (50%)", "again"]),
    "cut header": (lambda folder: cut(folder, 0.002), ["truncated inside its header"]),
    "empty": (overwrite(b""), ["model.safetensors is empty (0 bytes)"]),
    "a page": (overwrite(b"<!DOCTYPE html><html>Sign in</html>" * 9), ["is a web page, not weights"]),
    "a pointer": (overwrite(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"), ["git lfs pull"]),
    "noise": (overwrite(bytes(range(256)) * 9), ["is not a safetensors file"]),
    "longer": (lambda folder: (folder / "model.safetensors").open("ab").write(b"x" * 9), ["has 9 bytes more"]),
    "shard lost": (lose_shard, ["lists 2 files", "model-00002-of-00002.safetensors is missing"]),
    "shard cut": (cut_shard, ["model-00002-of-00002.safetensors is truncated"]),
    "index lost": (lose_index, ["2 files such as model-00001", "model.safetensors.index.json"]),
    "index mixed up": (mix_up_index, ["which does not contain it"]),
    "index damaged": (
        lambda folder: (split_into_shards(folder), (folder / "model.safetensors.index.json").write_text("{")),
        ["model.safetensors.index.json cannot be read"],
    ),
    "a tensor lost": (
        lambda folder: edit_weights(folder, lambda tensors: {name: value for name, value in tensors.items() if name != UP}),
        [UP, "initialised randomly"],
    ),
    "another shape": (
        lambda folder: edit_weights(folder, lambda tensors: tensors | {UP: torch.zeros(40, 32)}),
        [UP, "(40, 32) in the files", "(48, 32) in config.json"],
    ),
    "NaN": (set_value(UP, float("nan")), [UP, "1 value that is NaN or infinite"]),
    "infinity": (set_value("model.norm.weight", float("-inf")), ["model.norm.weight", "NaN or infinite"]),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), ["a config.json but no weights"]),
    "no config": (lambda folder: (folder / "config.json").unlink(), ["has no config.json", "model.safetensors"]),
    "a damaged config": (
        lambda folder: (folder / "config.json").write_text('{"model_type": "qwen2",'),
        ["config.json cannot be read"],
    ),
    "no tokenizer": (drop_tokenizer, ["it has no tokenizer", "tokenizer.save_pretrained"]),
    "a damaged tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{"), ["the tokenizer of", "cannot be read"]),
    "gguf": (become_gguf, ["model-Q4_K_M.gguf is a GGUF file", "safetensors"]),
    "gptq": (quantised("gptq"), ["quantised (gptq)", "model.lora.base_dtype"]),
    "awq": (quantised("awq"), ["quantised (awq)", "full precision"]),
    "an adapter": (become_adapter, ["is a PEFT adapter", "model.lora.adapter"]),
    "an encoder": (lambda folder: edit_config(folder, model_type="bert"), ["an encoder (bert)", "decoder-only"]),
    "an encoder-decoder": (
        lambda folder: edit_config(folder, model_type="t5", is_encoder_decoder=True),
        ["an encoder-decoder (t5)"],
    ),
    "a classifier": (
        lambda folder: edit_config(folder, architectures=["Qwen2ForSequenceClassification"]),
        ["a classifier or reward model", "without a language-model head"],
    ),
    "vision": (
        lambda folder: edit_config(folder, model_type="qwen2_vl"),
        ["a qwen2_vl model, which reads images", "text-only"],
    ),
    "vision, causal class": (
        lambda folder: edit_config(folder, model_type="gemma3", vision_config={"hidden_size": 8}),
        ["a gemma3 model, which reads images", "docs/troubleshooting.md#models-that-see"],
    ),
    "sound": (lambda folder: edit_config(folder, model_type="qwen2_audio", audio_config={"d_model": 8}), ["reads sound"]),
    "unknown": (
        lambda folder: edit_config(folder, model_type="frobnicator"),
        ["does not know its architecture", "Update transformers"],
    ),
    "contradictory": (
        lambda folder: edit_config(folder, vocab_size="many"),
        ["config.json cannot be used", "vocab_size", "Restore the file"],
    ),
    "an unknown rope": (
        lambda folder: edit_config(folder, rope_parameters={"rope_type": "banana", "rope_theta": 1e4}),
        ["KeyError: 'banana'"],
    ),
    "code": (
        lambda folder: edit_config(folder, model_type="my", auto_map={"AutoModelForCausalLM": "modeling_my.My"}),
        ["modeling_my.py", "set model.trust_remote_code = true"],
    ),
}


@pytest.mark.parametrize("case", SPOILT)
def test_a_model_that_cannot_be_used_is_refused_with_a_reason(case: str, tmp_path: Path) -> None:
    spoil, words = SPOILT[case]
    with pytest.raises(ModelError) as refusal:
        load_pretrained(str(spoilt(tmp_path / "model", spoil)))
    for word in ("model.source", str(tmp_path / "model"), *words):
        assert word in str(refusal.value)


def test_complete_models_are_loaded(tmp_path: Path) -> None:
    """In one file, in shards, with more tensors than it needs, with rows to spare, with a pad token that has no row."""
    expected = dict(load_pretrained(str(whole_model()))[0].named_parameters())
    spare = [
        spoilt(tmp_path / "shards", split_into_shards),
        spoilt(tmp_path / "more", lambda folder: edit_weights(folder, lambda tensors: tensors | {"extra": torch.zeros(2)})),
    ]
    for folder in spare:
        model, _ = load_pretrained(str(folder))
        assert all(torch.equal(value, expected[name]) for name, value in model.named_parameters())
    tokenizer = make_tokenizer(tuple(f"<{number}>" for number in range(6)))  # ids up to 264, one more than there are rows
    tokenizer.pad_token = "<5>"
    model, _ = load_pretrained(str(whole_model()))
    refuse_missing_rows(model, tokenizer, "here", "model.source")
    tokenizer.pad_token = None
    with pytest.raises(
        ModelError, match=r"ids up to 264, but its embedding has 264 rows.*'<5>' \(264\).*resize_token_embeddings\(265\)"
    ):
        refuse_missing_rows(model, tokenizer, "here", "model.source")


def test_a_tokenizer_with_more_tokens_than_rows_is_refused_with_both_numbers(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", added=tuple(f"<extra {number}>" for number in range(20)))
    with pytest.raises(
        ModelError,
        match=r"ids up to 278, but its embedding has 264 rows, so 15 of its tokens have no embedding, the first '<extra 5>' \(264\)",
    ):
        load_pretrained(str(folder), field="teacher.source")


def test_broken_numbers_are_found_in_every_place(tmp_path: Path) -> None:
    model, _ = load_pretrained(str(whole_model()))
    refuse_broken_numbers(model, "here", "model.source")
    model.model.layers[0].self_attn.q_proj.bias.data[-1] = float("inf")
    model.lm_head.weight.data[5, :2] = float("nan")  # tied: the embedding too
    with pytest.raises(
        ModelError, match=r"embed_tokens.weight has 2 values that are NaN or infinite \(1 more tensors do too\)"
    ):
        refuse_broken_numbers(model, "here", "model.source")
    whole, _ = load_pretrained(str(whole_model()))
    whole.register_buffer("mask", torch.tensor([float("-inf")]), persistent=False)  # not of the files, and rightly infinite
    refuse_broken_numbers(whole, "here", "model.source")
    whole.model.register_buffer("e_score_correction_bias", torch.tensor([0.0, float("nan")]))
    with pytest.raises(ModelError, match="e_score_correction_bias has 1 value"):
        refuse_broken_numbers(whole, "here", "model.source")


def test_layers_that_the_config_leaves_out_are_refused(tmp_path: Path) -> None:
    fewer = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "max_window_layers": 1}
    folder = spoilt(tmp_path / "model", lambda folder: edit_config(folder, **fewer))
    with pytest.raises(ModelError, match=r"contain 12 tensors of layers that .* such as model\.layers\.1\..*num_hidden_layers"):
        load_pretrained(str(folder))
    edit_config(folder, num_nextn_predict_layers=1)  # the last one predicts a second token, and is not trained here
    with pytest.warns(UserWarning, match=r"12 tensors in its files are not part .* such as model\.layers\.1\."):
        load_pretrained(str(folder))


def test_code_that_python_cannot_read_is_refused_with_a_reason(tmp_path: Path) -> None:
    def spoil(folder: Path) -> None:
        (folder / "modeling_my.py").write_text("class My(:\n")
        edit_config(folder, auto_map={"AutoModelForCausalLM": "modeling_my.My"})

    with pytest.raises(ModelError, match=r"cannot load .* as a causal language model .*invalid syntax"):
        load_pretrained(str(spoilt(tmp_path / "model", spoil)), trusted=True)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mps", "Apple's GPU"),
        ("mps:0", "Apple's GPU"),
        ("tpu", "TPUs are not supported"),
        ("xpu", "xpu devices are not supported"),
        ("gpu", "called cuda here"),
        ("meta", "'meta' is not a device"),
        ("cuda:-1", "is not one device"),
        ("cuda:0,1", "is not one device"),
        ("CUDA", "is not one device"),
        ("cuda:63", "CUDA devices"),
    ],
)
def test_a_device_is_refused_by_name(name: str, words: str) -> None:
    with pytest.raises(ModelError, match=f"device: .*{words}"):
        find_device(name, "device")
    if name != "cuda:63":  # known without asking the machine, when the recipe is read
        with pytest.raises(ValueError, match=words):
            ModelConfig(device=name)


def test_paths_and_files_that_are_no_model(tmp_path: Path) -> None:
    for source, words in {
        str(tmp_path / "nowhere"): "there is no such folder",
        str(whole_model() / "model.safetensors"): "it is a file",
        str(tmp_path): "has no config.json.*it contains nothing",
    }.items():
        with pytest.raises(ModelError, match=words):
            refuse_unfit_source(source, "model.source")
    refuse_unfit_source("owner/name", "model.source")  # the hub is asked later
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"inner has one"):
        refuse_unfit_source(str(tmp_path), "model.source")


def test_model_code_runs_only_if_trusted_and_is_saved(tmp_path: Path) -> None:
    def bring_code(folder: Path) -> None:
        (folder / "modeling_my.py").write_text(
            "from transformers import Qwen2Config, Qwen2ForCausalLM\n"
            "class MyConfig(Qwen2Config):\n    model_type = 'my_own'\n"
            "class MyForCausalLM(Qwen2ForCausalLM):\n    config_class = MyConfig\n"
        )
        names = {"AutoConfig": "modeling_my.MyConfig", "AutoModelForCausalLM": "modeling_my.MyForCausalLM"}
        edit_config(folder, model_type="my_own", architectures=["MyForCausalLM"], auto_map=names)

    folder = spoilt(tmp_path / "model", bring_code)
    with pytest.raises(ModelError, match=r"teacher\.trust_remote_code = true"):
        load_pretrained(str(folder), field="teacher.source")
    model, tokenizer = load_model(ModelConfig(source=str(folder), trust_remote_code=True, device="cpu"), 0)
    assert type(model).__name__ == "MyForCausalLM"
    model.save_pretrained(tmp_path / "again")
    tokenizer.save_pretrained(tmp_path / "again")
    again, _ = load_pretrained(str(tmp_path / "again"), trusted=True)
    assert torch.equal(again.model.norm.weight, model.model.norm.weight)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    """Another hidden_size or depth: the error names both shapes, before any value is copied."""
    ours = MasterWeights(load_pretrained(str(whole_model()))[0], torch.float32)
    wide = MasterWeights(load_pretrained(str(write_model(tmp_path / "wide", hidden_size=64)))[0], torch.float32)
    before = ours.masters["model.norm.weight"].clone()
    with pytest.raises(
        CheckpointError,
        match=r"another model: model.embed_tokens.weight is \(264, 64\) in the checkpoint and \(264, 32\) in the",
    ):
        ours.load(wide.tensors())
    deeper = {**ours.tensors(), "model.layers.2.mlp.up_proj.weight": torch.zeros(48, 32)}
    with pytest.raises(
        CheckpointError, match=r"layers\.2\.mlp\.up_proj\.weight is \(48, 32\) in the checkpoint and missing in the model"
    ):
        ours.load(deeper)
    assert torch.equal(ours.masters["model.norm.weight"], before)
    ours.load(ours.tensors())


def test_the_language_model_of_a_vision_model_can_be_saved(tmp_path: Path) -> None:
    """The lines of docs/troubleshooting.md, on a small LLaVA: refused before, loaded after, and the same logits."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    page = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    lines = page.split("## Models that see")[1].split("```python\n")[1].split("```")[0]
    text = LlamaConfig(vocab_size=264, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2)
    sight = CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )
    torch.manual_seed(0)
    whole = LlavaForConditionalGeneration(LlavaConfig(text_config=text, vision_config=sight)).eval()
    whole.save_pretrained(tmp_path / "sees")
    make_tokenizer().save_pretrained(tmp_path / "sees")
    with pytest.raises(ModelError, match="it is a llava model, which reads images"):
        load_pretrained(str(tmp_path / "sees"))
    exec(lines.replace("MODEL", str(tmp_path / "sees")).replace("TEXT", str(tmp_path / "reads")), {})
    model, _ = load_pretrained(str(tmp_path / "reads"))
    ids = torch.arange(9)[None]
    with torch.no_grad():
        assert torch.equal(model.eval()(input_ids=ids).logits, whole(input_ids=ids).logits)
