"""The numbers of tokens: k3 by hand and by the training function, bands, and completions without a record."""

import math

import numpy as np
import pytest
import torch
from made_runs import find_run, make_run, make_token_row, write_record

from cohort.algorithms.regions import k3
from cohort.observe.rollouts import read_tokens
from cohort.tools.dashboard import token_values as values
from cohort.tools.dashboard.token_values import Shown, read_pieces, show_piece, write_out


def test_k3_by_hand():
    policy, ref = np.array([-1.0, -1.0, -2.0]), np.array([-1.0, -1.5, -1.0])
    assert values.measure_k3(policy, ref) == pytest.approx([0.0, math.exp(-0.5) + 0.5 - 1, math.e - 1 - 1], abs=1e-15)


def test_k3_equals_the_training_function_at_extremes():
    rng = np.random.default_rng(0)
    policy, ref = -rng.exponential(3.0, 500), -rng.exponential(3.0, 500)
    policy[0], ref[0] = -60.0, -0.1  # beyond the limit of the ratio
    policy[1], ref[1] = -0.1, -60.0
    wanted = k3(torch.tensor(policy), torch.tensor(ref)).numpy()
    assert values.measure_k3(policy, ref) == pytest.approx(wanted, rel=1e-12)


def test_a_recorded_completion_has_every_column_and_the_kl_of_its_log_probs(tmp_path):
    folder = make_run(tmp_path, steps=1)
    write_record(folder, 1, [make_token_row(2, 1, 9, ["a", " b", "\n", "<eos>"], clipped=np.array([0, -1, 1, 0]))])
    (record,) = read_tokens(folder.tokens_file(1), 2)
    sheet = values.read_recorded(record)
    assert list(sheet.columns) == list(values.COLUMNS)
    assert sheet.pieces == ["a", " b", "\n", "<eos>"]
    assert sheet.columns["clipped"].tolist() == [0, -1, 1, 0]
    d = -0.3  # log reference - log policy of made_runs
    assert sheet.columns["kl"] == pytest.approx(np.full(4, math.exp(d) - d - 1), rel=1e-5)
    assert sheet.missing == []
    assert "update 1 of 2" in sheet.source


def test_missing_columns_of_a_record_are_explained(tmp_path):
    folder = make_run(tmp_path, steps=1)
    unread = dict.fromkeys(("policy_logprob", "old_logprob", "ref_logprob", "entropy", "ratio", "clipped"))
    write_record(folder, 1, [make_token_row(0, 0, 0, ["a"], ref_logprob=None), make_token_row(0, 1, 1, ["a"], **unread)])
    without, silent = (values.read_recorded(record) for record in read_tokens(folder.tokens_file(1)))
    assert "kl" not in without.columns
    assert "no reference" in without.missing[0]
    assert "ratio" not in silent.columns
    assert "This completion has no gradient" in silent.missing[0]


def test_masked_tokens_have_no_value():
    nothing = [0.5, None]
    record = {"token_ids": [1, 2], "pieces": ["a", "b"], "mask": [True, False], "ratio": nothing, "policy_logprob": nothing}
    sheet = values.read_recorded(record)
    assert sheet.mask == [True, False]
    assert np.isnan(sheet.columns["ratio"][1])
    styles, legend = values.place_in_bands(sheet.columns["ratio"], values.make_bands("ratio", sheet.columns["ratio"]))
    assert styles == ["n3", "none"]
    assert [(label, count) for _, label, count in legend if count] == [("below 0.8", 1), ("no value", 1)]


@pytest.mark.parametrize(
    ("every", "words"),
    [
        (0, "tokens_every = 0"),
        (1, "at every step"),
        (22, "step 1 and every 22 steps"),
    ],
)
def test_without_a_record_sampling_log_probs_and_advantage_remain(every, words):
    row = {"completion_ids": [5, 6], "sampling_logprobs": [-0.5, -1.0], "advantage": 0.7}
    sheet = values.read_sampled(row, ["a", "b"], every)
    assert {name: column.tolist() for name, column in sheet.columns.items()} == {
        "advantage": [0.7, 0.7],
        "logprob": [-0.5, -1.0],
        "sampling_logprob": [-0.5, -1.0],
    }
    assert words in sheet.missing[0]
    assert "ratio, clipped, KL (k3), entropy, gradient coefficient" in sheet.missing[0]


@pytest.mark.parametrize(
    ("name", "shown", "labels"),
    [
        ("ratio", [0.5, 0.9, 0.995, 1.0, 1.005, 1.1, 1.3], ["below 0.8", "0.8 to 0.99", "0.99 to 1", "exactly 1", "1 to 1.01", "1.01 to 1.2", "above 1.2"]),
        ("clipped", [-1, 0, 1], ["clipped below", "not clipped", "clipped above"]),
        ("kl", [0.0, 0.005, 0.05, 0.5, 5.0], ["below 0.001", "0.001 to 0.01", "0.01 to 0.1", "0.1 to 1", "above 1"]),
        ("entropy", [0.0, 0.1, 0.5, 1.0, 2.0], ["below 0.05", "0.05 to 0.25", "0.25 to 0.7", "0.7 to 1.5", "above 1.5"]),
        ("logprob", [math.log(p) for p in (0.95, 0.6, 0.2, 0.02, 0.001)], ["p above 90 %", "50 to 90 %", "10 to 50 %", "1 to 10 %", "below 1 %"]),
        ("advantage", [-2.0, -1.0, -0.2, 0.0, 0.2, 1.0, 2.0], ["below −1.5", "−1.5 to −0.5", "−0.5 to 0", "0", "0 to 0.5", "0.5 to 1.5", "above 1.5"]),
        ("coefficient", [-20.0, -8.0, 0.0, 3.0], ["below −15", "−15 to −5", "0", "0 to 5"]),
    ],
)  # fmt: skip
def test_every_value_is_in_the_band_with_its_label(name, shown, labels):
    shown = np.array(shown, np.float64)
    banding = values.make_bands(name, shown)
    by_style = dict(banding[0])
    styles, legend = values.place_in_bands(shown, banding)
    assert [by_style[style] for style in styles] == labels
    assert sum(count for _, _, count in legend) == len(shown)


@pytest.mark.parametrize(
    ("largest", "scale"), [(0.0, 1.0), (0.5, 1.0), (2.65, 1.0), (4.9, 1.0), (6.0, 10.0), (0.3, 0.1), (0.04, 0.01)]
)
def test_the_scale_of_signed_numbers_is_a_power_of_ten(largest, scale):
    assert values.find_scale(np.array([largest, -largest / 2, np.nan])) == pytest.approx(scale)


# -- texts of tokens ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("piece", "shown"),
    [
        ("abc", Shown("abc")),
        (" the", Shown(" the")),
        (" ", Shown("␣", "blank")),
        ("\n", Shown("↵", "blank", 1)),
        ("\n\n  ", Shown("↵↵␣␣", "blank", 2)),
        ("\t\r", Shown("⇥␍", "blank")),
        ("end \n", Shown("end␣↵", "", 1)),
        ("", Shown("∅", "hidden")),
        ("a\u200bb", Shown("a⟨U+200B⟩b", "hidden")),
        ("\u202eevil", Shown("⟨U+202E⟩evil", "hidden")),
        ("\ufeff", Shown("⟨U+FEFF⟩", "hidden")),
        ("\x1b[2J\x00", Shown("⟨U+001B⟩[2J⟨U+0000⟩", "hidden")),
        ("\u00a0\u3000", Shown("⟨U+00A0⟩⟨U+3000⟩", "hidden")),
        ("\u0301", Shown("◌\u0301", "hidden")),
        ("e\u0301", Shown("e\u0301")),
        ("\u3164\ufe0f", Shown("⟨U+3164⟩⟨U+FE0F⟩", "hidden")),
        ("שלום", Shown("שלום")),
        ("\ufffd", Shown("\ufffd")),
        ("😀", Shown("😀")),
    ],
)
def test_invisible_characters_are_written_out(piece, shown):
    assert show_piece(piece) == shown


def test_special_tokens_are_named_and_huge_tokens_cut():
    assert show_piece("<|im_end|>\n", special=True) == Shown("<|im_end|>↵", "special")
    assert len(write_out("x" * 10_000)) == 201


def test_without_a_tokenizer_tokens_are_their_ids(tmp_path):
    make_run(tmp_path, steps=1)
    pieces, special, why = read_pieces(find_run(tmp_path), [3, 7])
    assert (pieces, special) == (["#3", "#7"], frozenset())
    assert "tokenizer.json" in why


def make_tokenizer(kind):
    """Byte-level as in GPT-2, or with ▁ for spaces as in SentencePiece."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    if kind == "bytes":
        tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "Ġb": 1, "Ċ": 2, "Ã": 3, "©": 4}, merges=[]))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    else:
        tokenizer = Tokenizer(models.Unigram([("a", -1.0), ("▁b", -1.0), ("\n", -1.0), ("▁", -1.0)], 0, False))
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return tokenizer


@pytest.mark.parametrize(
    ("kind", "wanted"), [("bytes", ["a", " b", "\n", "", "\ufffd<eos>"]), ("spaces", ["a", " b", "\n", " ", "<eos>"])]
)
def test_pieces_are_read_with_the_saved_tokenizer_and_keep_spaces(tmp_path, kind, wanted):
    folder = make_run(tmp_path, steps=1)
    folder.start.mkdir()
    tokenizer = make_tokenizer(kind)
    tokenizer.save(str(folder.start / "tokenizer.json"))
    last = tokenizer.token_to_id("<eos>")
    pieces, special, why = read_pieces(find_run(tmp_path), [0, 1, 2, 3, last, 999])
    assert pieces == [*wanted, "#999"]
    assert (special, why) == (frozenset({last}), "")


def test_a_character_in_two_tokens_is_shown_by_the_one_that_completes_it(tmp_path):
    folder = make_run(tmp_path, steps=1)
    folder.start.mkdir()
    make_tokenizer("bytes").save(str(folder.start / "tokenizer.json"))
    assert read_pieces(find_run(tmp_path), [0, 3, 4, 1])[0] == ["a", "", "é", " b"]


def test_a_damaged_tokenizer_loses_only_the_texts(tmp_path):
    folder = make_run(tmp_path, steps=1)
    folder.model.mkdir()
    (folder.model / "tokenizer.json").write_text('{"model": ')
    assert read_pieces(find_run(tmp_path), [3])[0] == ["#3"]
