"""Valid teachers: the same vocabulary with the same ids, enough rows and positions, and no adapter."""

from __future__ import annotations

import json

import pytest
import torch

from cohort.errors import ModelError
from cohort.model.frozen import digest_weights, inspect_teacher, load_teacher
from cohort.model.policy import Policy
from cohort.model.scratch import build_scratch
from cohort.recipe.schema import ScratchConfig, TeacherConfig

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1}


def made(folder, characters="0123456789+=", seed=0, **sizes):
    """(model, tokenizer), also written to a folder."""
    model, tokenizer = build_scratch(ScratchConfig(**{**SIZES, "characters": characters, **sizes}), (), seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


@pytest.fixture
def student(tmp_path):
    return Policy(*made(tmp_path / "student"), temperature=0.7)


def test_a_teacher_is_frozen(tmp_path, student):
    model, _ = made(tmp_path / "teacher", seed=5, hidden_size=32)
    settings = TeacherConfig(source=str(tmp_path / "teacher"), coef=0.5)
    student.prepare("modules")
    teacher = load_teacher(settings, student)
    assert inspect_teacher(settings, student) == sum(value.numel() for value in model.parameters())
    assert (teacher.coef, teacher.policy.temperature, teacher.policy.kernels) == (0.5, 0.7, "modules")
    assert teacher.policy.model.dtype == student.model.dtype
    assert not any(value.requires_grad for value in teacher.policy.model.parameters())
    assert teacher.state() == ({}, {"digest": digest_weights(dict(model.named_parameters()))})
    teacher.load_state({}, {"digest": digest_weights(dict(model.named_parameters()))})


def test_it_is_loaded_in_the_dtype_of_the_policy(tmp_path, student, plain_bfloat16):
    made(tmp_path / "teacher")
    student.model.to(torch.bfloat16)
    teacher = load_teacher(TeacherConfig(source=str(tmp_path / "teacher")), student)
    assert {value.dtype for value in teacher.policy.model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("characters", "words"),
    [
        ("0123456789-=", ["id 3 is '+' for the policy and '-' for the teacher", "1 of 15 ids differ"]),
        ("0123456789*+=", ["id 3 is '+' for the policy and '*' for the teacher", "13 of 16"]),
        ("0123456789+=>", ["id 15 is no token for the policy and '>' for the teacher", "1 of 16"]),
        ("0123456789+", ["id 14 is '=' for the policy and no token for the teacher", "1 of 15"]),
    ],
)
def test_another_vocabulary_is_refused_by_its_first_difference(tmp_path, student, characters, words):
    made(tmp_path / "teacher", characters)
    with pytest.raises(ModelError) as problem:
        inspect_teacher(TeacherConfig(source=str(tmp_path / "teacher")), student)
    assert str(problem.value).startswith("teacher.source: ")
    assert [word for word in [*words, "same family"] if word not in str(problem.value)] == []


def test_fewer_rows_of_logits_than_the_policy_are_refused(tmp_path, student):
    model, tokenizer = made(tmp_path / "teacher")
    student.model.resize_token_embeddings(student.model.config.vocab_size + 8)
    with pytest.raises(ModelError, match=r"teacher\.source: .* has 15 rows of logits and the policy 23"):
        inspect_teacher(TeacherConfig(source=str(tmp_path / "teacher")), student)
    # The other way round they are padding, which is never sampled.
    model.resize_token_embeddings(64)
    model.save_pretrained(tmp_path / "padded")
    tokenizer.save_pretrained(tmp_path / "padded")
    inspect_teacher(TeacherConfig(source=str(tmp_path / "padded")), student)


def test_a_sequence_that_the_teacher_cannot_read_is_refused(tmp_path, student):
    made(tmp_path / "teacher", max_positions=24)
    settings = TeacherConfig(source=str(tmp_path / "teacher"))
    inspect_teacher(settings, student, longest=24)
    with pytest.raises(ModelError, match="has 24 positions, but prompt and completion need 25"):
        inspect_teacher(settings, student, longest=25)


def test_other_sources_are_refused_by_name(tmp_path, student):
    with pytest.raises(ModelError, match=r"teacher\.source: .*missing: there is no such folder"):
        inspect_teacher(TeacherConfig(source=str(tmp_path / "missing")), student)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(ModelError, match=r"teacher\.source: .*adapter is a PEFT adapter, not a model\. Merge it"):
        inspect_teacher(TeacherConfig(source=str(tmp_path / "adapter")), student)
