"""Sources, errors that name the place and the fix, splits by content, and a stream whose only state is a number."""

from __future__ import annotations

import itertools
import json

import datasets
import pyarrow as arrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cohort.base.keyed import keyed_share
from cohort.data import rows as module
from cohort.data.prompts import PromptStream, assert_disjoint, describe_split, make_content_key, make_prompts, split_held_out
from cohort.data.rows import load_rows
from cohort.errors import PromptError
from cohort.recipe.schema import PromptsConfig
from cohort.types import Prompt

ROWS = [{"prompt": "1+1=", "answer": "2", "level": 1}, {"prompt": "2+2=", "answer": "4", "level": 3}]


def config(**fields) -> PromptsConfig:
    return PromptsConfig(**fields)


def encode(content) -> tuple[int, ...]:
    """One id per character; a chat is its roles' initials and texts."""
    text = content if isinstance(content, str) else "".join(message["role"][0] + message["content"] for message in content)
    return tuple(ord(character) for character in text)


def write(path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def refused(pattern: str, rows=None, seed: int = 0, **fields) -> None:
    with pytest.raises(PromptError, match=pattern):
        load_rows(config(**fields), seed, rows)


# --- sources ---------------------------------------------------------------------------------------------------------


def test_jsonl_skips_blank_lines_and_byte_order_marks(tmp_path):
    path = write(tmp_path / "p.jsonl", "\ufeff" + "\n\n".join(json.dumps(row) for row in ROWS) + "\n\n")
    assert load_rows(config(source=path), 0) == ROWS
    assert load_rows(config(source=path, limit=1), 0) == ROWS[:1]


def test_a_limit_reads_no_further(tmp_path):
    path = write(tmp_path / "p.jsonl", json.dumps(ROWS[0]) + "\nbroken")
    assert load_rows(config(source=path, limit=1), 0) == ROWS[:1]


def test_csv_values_stay_the_text_they_are(tmp_path):
    path = write(tmp_path / "p.csv", 'prompt,answer,note\r\n"1,5+1=\r\n",007,NA\r\n\r\n2+2=,1e3,\r\n')
    assert load_rows(config(source=path), 0) == [
        {"prompt": "1,5+1=\r\n", "answer": "007", "note": "NA"},
        {"prompt": "2+2=", "answer": "1e3", "note": ""},
    ]


def test_parquet_keeps_its_types(tmp_path):
    rows = [{"prompt": [{"role": "user", "content": "a"}], "answer": "007", "level": 1, "tests": {"in": [1, 2]}}] * 1500
    arrow.parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "p.parquet")
    assert load_rows(config(source=str(tmp_path / "p.parquet")), 0) == rows
    assert len(load_rows(config(source=str(tmp_path / "p.parquet"), limit=1100), 0)) == 1100


def test_saved_datasets_with_and_without_splits(tmp_path):
    one = datasets.Dataset.from_list(ROWS)
    one.save_to_disk(tmp_path / "one")
    datasets.DatasetDict({"train": one, "test": one.select([1])}).save_to_disk(tmp_path / "two")
    assert load_rows(config(source=str(tmp_path / "one")), 0) == ROWS
    assert load_rows(config(source=str(tmp_path / "two"), split="test"), 0) == ROWS[1:]
    refused("no split 'tset'; did you mean 'test'.*train, test", source=str(tmp_path / "two"), split="tset")
    refused("without splits", source=str(tmp_path / "one"), split="test")
    refused("save_to_disk", source=str(tmp_path))


def test_a_hub_dataset_gets_the_split_and_the_arguments(monkeypatch):
    asked = []

    def load_dataset(*args, **kwargs):
        asked.append((args, kwargs))
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert load_rows(config(source="openai/gsm8k", split="test", args={"name": "main"}), 0) == ROWS
    assert asked == [(("openai/gsm8k",), {"split": "test", "name": "main"})]


def test_a_hub_dataset_that_fails_says_what_was_tried(monkeypatch):
    def load_dataset(*args, **kwargs):
        raise ConnectionError("no network\nlong traceback")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr("socket.getaddrinfo", lambda *args: [])  # the hub has an address, whatever this machine can reach
    refused(r"'some/set' is not a file or folder here.*split 'train'.*ConnectionError: no network$", source="some/set")


def test_tasks_and_gym_tasks_go_by_prefix():
    rows = load_rows(config(source="task:column_addition", split="held_out", args={"count": 3}), 4)
    assert [set(row) for row in rows] == [{"prompt", "answer", "demonstration"}] * 3
    rows = load_rows(config(source="gym:chain_sum", args={"count": 3}), 4)
    assert [row["task"] for row in rows] == ["chain_sum"] * 3
    refused("did you mean 'column_addition'", source="task:colum_addition")
    refused("can be exploited", source="gym:propositional_logic")


def test_functions_are_called_with_their_arguments_and_the_seed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path / "local_prompts_of_a_test.py",
        "def listed(count, seed):\n    return [{'prompt': f'{seed}:{i}'} for i in range(count)]\n"
        "def endless():\n    i = 0\n    while True:\n        yield {'prompt': str(i)}\n        i += 1\n"
        "def number():\n    return 3\n"
        "def sided(split='all'):\n    return [{'prompt': split}]\n"
        "def must_know(split):\n    return [{'prompt': split}]\n",
    )
    name = "local_prompts_of_a_test"
    assert load_rows(config(source=f"{name}:listed", args={"count": 2}), 7) == [{"prompt": "7:0"}, {"prompt": "7:1"}]
    assert load_rows(config(source=f"{name}:listed", args={"count": 1, "seed": 9}), 7) == [{"prompt": "9:0"}]
    assert load_rows(config(source=f"{name}:endless", limit=3), 7) == [{"prompt": str(i)} for i in range(3)]
    monkeypatch.setattr(module, "ENDLESS", 1000)
    refused(r"more than 1,000 rows.*prompts\.limit", source=f"{name}:endless")
    refused(r"listed\(count, seed\) cannot be called with.*'count'", source=f"{name}:listed")
    refused("did you mean 'endless'", source=f"{name}:endles")
    refused("not int", source=f"{name}:number")
    told = [({"split": "held_out"}, "held_out"), ({}, "all"), ({"split": "held_out", "args": {"split": "mine"}}, "mine")]
    for words, expected in told:
        assert load_rows(config(source=f"{name}:sided", **words), 7) == [{"prompt": expected}]
    assert load_rows(config(source=f"{name}:must_know"), 7) == [{"prompt": "train"}]
    refused(r"prompts\.split: .*listed has no splits", source=f"{name}:listed", split="held_out", args={"count": 1})
    refused("cannot import no_such_module_here", source="no_such_module_here:f")


def test_rows_from_python_in_every_shape():
    dataset = datasets.Dataset.from_list(ROWS)
    for rows in (ROWS, dataset, dataset.to_iterable_dataset(), iter(ROWS), (dict(row) for row in ROWS)):
        assert load_rows(config(), 0, rows) == ROWS
    both = datasets.DatasetDict({"train": dataset, "test": dataset.select([1])})
    assert load_rows(config(split="test"), 0, both) == ROWS[1:]
    assert load_rows(config(limit=2), 0, ({"prompt": str(i)} for i in itertools.count())) == [{"prompt": "0"}, {"prompt": "1"}]
    refused("not one mapping of columns", {"prompt": ["a"]})
    refused("not str", "some text")
    refused("not int", 3)


def test_a_data_frame_is_its_rows(tmp_path):
    """Missing values are null, as in a file; what pandas reads from parquet as arrays of numpy is a chat again."""
    pandas = pytest.importorskip("pandas")
    chats = [{"prompt": [{"role": "user", "content": "a"}], "answer": 1, "tags": ["x"], "note": None}]
    chats += [{"prompt": [{"role": "user", "content": "b"}], "answer": None, "tags": [], "note": "n"}]
    assert load_rows(config(), 0, pandas.DataFrame(ROWS)) == ROWS
    assert load_rows(config(), 0, pandas.DataFrame(chats)) == chats
    datasets.Dataset.from_list(chats).to_parquet(tmp_path / "chats.parquet")
    assert load_rows(config(), 0, pandas.read_parquet(tmp_path / "chats.parquet")) == chats
    (row,) = load_rows(config(), 0, pandas.DataFrame({"prompt": ["a"], "n": [3], 7: [True]}))
    assert (row, type(row["n"]), type(row["7"])) == ({"prompt": "a", "n": 3, "7": True}, int, bool)
    refused("column 'a' of the DataFrame occurs twice", pandas.DataFrame([[1, 2]], columns=["a", "a"]))
    refused("no rows; at least one", pandas.DataFrame({"prompt": []}))

    class DataFrame:  # as polars has it
        columns = ["prompt", "answer"]

        def to_dicts(self):
            return ROWS

    assert load_rows(config(), 0, DataFrame()) == ROWS
    del DataFrame.to_dicts
    refused("DataFrame is not supported", DataFrame())


def test_json_is_a_list_of_rows_or_has_one(tmp_path):
    file = tmp_path / "p.json"
    for text in (json.dumps(ROWS), json.dumps(ROWS, indent=2), "\ufeff" + json.dumps({"version": 1, "data": ROWS})):
        assert load_rows(config(source=write(file, text)), 0) == ROWS
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    for text, words in {
        lines: r"p\.json, line 2, column 1: it contains several values.*rename it to \.jsonl",
        json.dumps({"rows": ROWS}): r"p\.json: expected a list of rows.*the file contains one dict with the keys 'rows'",
        json.dumps({"data": {"prompt": ["a"]}}): "one dict with the keys 'data'",
        '"text"': "the file contains one str",
        "3": "the file contains one int",
        '[{"prompt": "a"},': r"p\.json, line 1, column 18: not valid JSON",
        "": "line 1, column 1: not valid JSON",
        "[[1]]": r"p\.json, row 0: a row must be an object with named columns",
        "[]": "no rows; at least one",
        "[" * 100_000: "nested too deeply|not valid JSON",
    }.items():
        refused(words, source=write(file, text))
    file.write_bytes(b'[{"prompt": "\xff"}]')
    refused("not UTF-8 text", source=str(file))


def test_rows_of_python_that_nobody_kept_are_asked_for():
    refused("passed from Python.*Use the run folder", source="python:rows")


def test_rows_handed_in_are_copied():
    rows = [dict(ROWS[0])]
    load_rows(config(), 0, rows)[0]["answer"] = "changed"
    assert rows == ROWS[:1]


# --- errors ----------------------------------------------------------------------------------------------------------


def test_missing_files_are_named_with_the_nearest_neighbour(tmp_path):
    write(tmp_path / "train.jsonl", "{}")
    refused("no such file; did you mean 'train.jsonl'", source=str(tmp_path / "trian.jsonl"))
    refused("does not exist either", source=str(tmp_path / "folder" / "train.jsonl"))
    refused("not a file or folder here", source="./somewhere/else")
    refused("unknown file type '.txt'", source=write(tmp_path / "p.txt", "a"))


def test_broken_files_are_named_by_line(tmp_path):
    good = json.dumps(ROWS[0])
    refused(
        r"p\.jsonl, line 3, column 12: not valid JSON \(Unterminated string",
        source=write(tmp_path / "p.jsonl", good + '\n\n{"prompt": "a\n'),
    )
    refused(r"p\.jsonl, line 2: a row must be an object.*list", source=write(tmp_path / "p.jsonl", good + "\n[1]\n"))
    refused(r"no rows; at least one", source=write(tmp_path / "p.jsonl", "\n\n"))
    refused(
        r"line 2, column 'prompt': a prompt is text or.*got int '3'",
        source=write(tmp_path / "p.jsonl", good + '\n{"prompt": 3}'),
    )
    refused(r"p\.csv, line 3: 3 cells for 2 columns", source=write(tmp_path / "p.csv", "prompt,answer\na,1\nb,2,3\n"))
    refused(r"p\.csv, line 1: column 'prompt' occurs twice", source=write(tmp_path / "p.csv", "prompt,prompt\na,1\n"))
    refused(r"p\.csv, line 2: not valid CSV", source=write(tmp_path / "p.csv", 'prompt,answer\n"a"b,1\n'))
    refused(r"not a readable parquet file", source=write(tmp_path / "p.parquet", "not parquet"))
    (tmp_path / "p.jsonl").write_bytes(b'{"prompt": "\xff"}\n')
    refused(r"not UTF-8.*save it as UTF-8", source=str(tmp_path / "p.jsonl"))


def test_a_missing_prompt_column_lists_the_columns_and_the_nearest():
    refused(
        r"row 0: no column 'prompt'; did you mean 'prompts'\?; it has the columns 'prompts', 'answer'",
        [{"prompts": "", "answer": ""}],
    )
    refused("row 1: no column 'prompt'", [ROWS[0], {"question": "a"}])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "nothing"),
        ([], "an empty list"),
        (["hello"], "message 0 must be"),
        ([{"content": "a"}], "message 0 must be"),
        ([{"role": "user", "content": [{"type": "image"}]}], "a part of type 'image', but prompts are text"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "ends with an assistant message"),
    ],
)
def test_prompts_of_the_wrong_type_are_refused(content, message):
    refused(rf"row 0, column 'prompt'.*{message}", [{"prompt": content}])


def test_settings_that_would_be_ignored_are_refused(tmp_path):
    path = write(tmp_path / "p.jsonl", json.dumps(ROWS[0]))
    refused("a file takes no arguments; remove name", source=path, args={"name": "main"})
    refused("a file has no splits", source=path, split="test")
    refused("a list of rows has no splits", ROWS, split="test")


# --- rendering and encoding ------------------------------------------------------------------------------------------


def test_prompts_carry_content_columns_ids_and_row_number():
    prompts, report = make_prompts(ROWS, config(), encode)
    assert prompts[1] == Prompt(1, "2+2=", {"answer": "4", "level": 3}, tuple(map(ord, "2+2=")))
    assert (report.rows, report.kept, report.too_long, report.longest, report.mean_length) == (2, 2, 0, 4, 4.0)


def test_long_prompts_are_left_out_and_counted():
    rows = [{"prompt": "a" * length} for length in (3, 10, 5, 40)]
    prompts, report = make_prompts(rows, config(max_prompt_tokens=5), encode, unknown_id=ord("b"))
    assert [prompt.index for prompt in prompts] == [0, 2]
    assert (report.rows, report.kept, report.too_long, report.longest, report.mean_length) == (4, 2, 2, 40, 4.0)
    assert "2 of 4 left out because they are longer than max_prompt_tokens = 5 (raise it to 40" in str(report)
    assert make_prompts(rows, config(), encode, unknown_id=ord("a"))[1].with_unknown == 4
    with pytest.raises(PromptError, match=r"all 4 prompts are longer than max_prompt_tokens = 2 tokens; the longest has 40"):
        make_prompts(rows, config(max_prompt_tokens=2), encode)
    with pytest.raises(PromptError, match="row 0: the prompt is empty"):
        make_prompts([{"prompt": ""}], config(), encode)
    with pytest.raises(PromptError, match="no rows"):
        make_prompts([], config(), encode)


def test_templates_fill_in_columns_and_nothing_else():
    rows = [{"question": "1 {x}", "n": 2}]
    template = "Q: {question} ({n:03d}, {question!r}) {{literal}}"
    assert load_rows(config(template=template), 0, rows) == rows
    prompts, _ = make_prompts(rows, config(template=template), encode)
    assert prompts[0].content == "Q: 1 {x} (002, '1 {x}') {literal}"
    assert prompts[0].columns == rows[0]
    refused(r"row 0: prompts.template uses \{qestion\}.*did you mean 'question'", rows, template="{qestion}")
    refused(r"uses \{\}.*\{\{ and \}\} for literal braces", rows, template=r"\boxed{}")
    refused(r"uses \{question\.__class__\}", rows, template="{question.__class__}")
    refused("cannot be filled.*literal braces", rows, template="{question")
    refused("cannot be filled", rows, template="{question:d}")


def test_a_system_message_makes_a_chat():
    chat = [{"role": "user", "content": "a", "name": None}]
    prompts, _ = make_prompts([{"prompt": "a"}, {"prompt": chat}], config(system="s"), encode)
    expected = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]
    assert [prompt.content for prompt in prompts] == [expected, expected]
    assert prompts[0].is_chat
    assert prompts[0].token_ids == tuple(map(ord, "ssua"))
    refused("already starts with a system message", [{"prompt": expected}], system="s")


# --- splits ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.text(max_size=3), min_size=0, max_size=60), st.integers(0, 3), st.sampled_from([0.1, 0.5, 0.9]))
def test_duplicates_land_on_one_side_and_nothing_is_lost(texts: list[str], seed: int, share: float):
    rows = [{"prompt": text, "number": number} for number, text in enumerate(texts)]
    if len({text.strip() for text in texts}) < 2:
        with pytest.raises(PromptError, match="too few to hold some out"):
            split_held_out(rows, share, seed)
        return
    train, held_out = split_held_out(rows, share, seed)
    assert train
    assert held_out
    assert sorted(train + held_out, key=lambda row: row["number"]) == rows
    assert not {row["prompt"].strip() for row in train} & {row["prompt"].strip() for row in held_out}


def test_the_split_follows_content_and_seed_not_position():
    rows = [{"prompt": f"{number}+1="} for number in range(2000)]
    held_out = split_held_out(rows, 0.1, 0)[1]
    assert len(held_out) / len(rows) == pytest.approx(0.1, abs=0.02)
    chosen = {row["prompt"] for row in held_out}
    assert {row["prompt"] for row in split_held_out(rows[::-1], 0.1, 0)[1]} == chosen
    more = rows + [{"prompt": f"{number}+2="} for number in range(500)]
    assert {row["prompt"] for row in split_held_out(more, 0.1, 0, least=0)[1] if row["prompt"].endswith("+1=")} == {
        row["prompt"] for row in split_held_out(rows, 0.1, 0, least=0)[1]
    }
    assert {row["prompt"] for row in split_held_out(rows, 0.1, 1)[1]} != chosen
    assert split_held_out(rows, 0.0, 0) == (rows, [])


def hash_order(rows: list[dict[str, str]], seed: int) -> list[tuple[float, str]]:
    return sorted((keyed_share("held_out", seed, row["prompt"]), row["prompt"]) for row in rows)


@pytest.mark.parametrize(
    ("size", "share", "wanted"), [(50, 0.1, 16), (30, 0.1, 10), (200, 0.1, 20), (400, 0.02, 16), (7, 0.1, 2)]
)
def test_where_chance_holds_out_too_few_the_next_hashes_are_taken_up_to_a_third(size, share, wanted):
    """Too few: below max(16, share of the rows rounded up). 50 rows at 0.1 once held out between 1 and 11, by the seed."""
    rows = [{"prompt": f"{number}+{size}="} for number in range(size)]
    fewer = 0
    for seed in range(12):
        train, held_out = split_held_out(rows, share, seed)
        order = hash_order(rows, seed)
        by_share = sum(position < share for position, _ in order)
        count = max(wanted, by_share)
        assert {row["prompt"] for row in held_out} == {prompt for _, prompt in order[:count]}
        assert len(train) == size - count
        told = describe_split(train, held_out, share, seed)
        added = f". Rows are split by hash (evaluation.held_out = {share}); {count - by_share} were added to have enough, and can move"
        assert told.startswith(f"{count} of {size} prompts are held out{added if count > by_share else ''}")
        fewer += by_share < wanted
        old = split_held_out(rows, share, seed, least=0)[1]  # as before version 2: the share alone, and at least one
        assert {row["prompt"] for row in old} == {prompt for _, prompt in order[: max(1, by_share)]}
    assert fewer


def test_rows_that_the_share_holds_out_stay_held_out_as_the_file_grows():
    rows = [{"prompt": f"{number}*3="} for number in range(3000)]
    fixed = {row["prompt"] for row in rows[:60] if keyed_share("held_out", 3, row["prompt"]) < 0.1}
    small, large = ({row["prompt"] for row in split_held_out(some, 0.1, 3)[1]} for some in (rows[:60], rows))
    assert len(fixed) < 16 == len(small)
    assert small & large == fixed  # only those beyond the share moved


def test_copies_are_one_prompt_and_never_make_more_than_a_third_of_the_rows():
    rows = [{"prompt": f"{number % 25}+1="} for number in range(50)]
    held_out = split_held_out(rows, 0.1, 0)[1]
    assert (len({row["prompt"] for row in held_out}), len(held_out)) == (8, 16)  # 9 prompts would be 18 of 50 rows
    many = [{"prompt": "often"}] * 60 + [{"prompt": f"{number}"} for number in range(40)]
    for seed in range(20):
        held_out = split_held_out(many, 0.1, seed)[1]
        assert len(held_out) <= 33 or "often" in {p for position, p in hash_order(many, seed) if position < 0.1}
    for size, wanted in ((2, 1), (3, 1), (6, 2)):
        assert len(split_held_out([{"prompt": str(number)} for number in range(size)], 0.05, 4)[1]) == wanted


def test_the_split_sees_the_rendered_prompt():
    rows = [{"q": text, "id": number} for number, text in enumerate("abab")]
    train, held_out = split_held_out(rows, 0.5, 0, template="{q}?")
    assert {frozenset(row["q"] for row in side) for side in (train, held_out)} == {frozenset("a"), frozenset("b")}


def test_shared_questions_are_refused_with_an_example():
    prompts, _ = make_prompts([{"prompt": text} for text in ("a", "b", "c")], config(), encode)
    other, _ = make_prompts([{"prompt": text} for text in ("d", " b\n")], config(), encode)
    assert_disjoint(prompts, other[:1], "held_out")
    with pytest.raises(PromptError, match=r"'hard': 1 of its prompts.*row 1 \(training row 1\): 'b'"):
        assert_disjoint(prompts, other, "hard")


def chat(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": text} for role, text in pairs]


SAME_QUESTION = [
    "2+2=",
    chat(("user", "2+2=\n")),
    chat(("system", "Be brief."), ("user", " 2+2=")),
    chat(("system", "Think first."), ("user", "2+2=")),
]


@pytest.mark.parametrize(("left", "right"), itertools.combinations(SAME_QUESTION, 2))
def test_another_system_message_or_form_does_not_hide_a_leak(left, right):
    train, _ = make_prompts([{"prompt": "x"}, {"prompt": left}], config(), encode)
    test, _ = make_prompts([{"prompt": right}], config(), encode)
    with pytest.raises(PromptError, match=r"row 0 \(training row 1\): '2\+2='"):
        assert_disjoint(train, test, "held_out")


def test_a_system_message_of_the_recipe_does_not_hide_a_leak():
    train, _ = make_prompts([{"prompt": "2+2="}], config(system="Be brief."), encode)
    test, _ = make_prompts([{"prompt": "2+2="}], config(), encode)
    with pytest.raises(PromptError, match="1 of its prompts also occur in training"):
        assert_disjoint(train, test, "held_out")


def test_different_conversations_are_different_questions():
    contents = [
        "2+2=",
        chat(("user", "2+3=")),
        chat(("assistant", "Hello."), ("user", "2+2=")),
        chat(("user", "Hello."), ("assistant", "Yes?"), ("user", "2+2=")),
        chat(("user", "Hello."), ("assistant", "No?"), ("user", "2+2=")),
        chat(("system", "Write a joke.")),
        chat(("system", "Write a poem.")),
    ]
    assert len({make_content_key(content) for content in contents}) == len(contents)


def test_the_split_keeps_a_question_together_under_every_system_message():
    rows = [{"prompt": chat(("system", system), ("user", f"{n}+1="))} for n in range(40) for system in ("a", "b", "c")]
    sides = [{row["prompt"][1]["content"] for row in side} for side in split_held_out(rows, 0.5, 0)]
    assert not sides[0] & sides[1]


def test_two_splits_of_a_task_are_disjoint_as_prompts():
    sides = [make_prompts(load_rows(config(split=split), 0), config(), encode)[0] for split in ("train", "held_out")]
    assert_disjoint(*sides, "held_out")


# --- the stream ------------------------------------------------------------------------------------------------------


def numbered(count: int) -> list[Prompt]:
    return [Prompt(index, str(index), {}, (index,)) for index in range(count)]


@given(st.integers(1, 12), st.integers(0, 5), st.lists(st.integers(0, 9), max_size=8), st.booleans())
def test_any_cut_of_the_stream_gives_the_same_prompts(size: int, seed: int, counts: list[int], shuffle: bool):
    whole = PromptStream(numbered(size), seed, shuffle).take(0, sum(counts))
    cursor, pieces = 0, []
    for count in counts:
        pieces += PromptStream(numbered(size), seed, shuffle).take(cursor, count)  # A new stream each time: a resume.
        cursor += count
    assert pieces == whole


def test_every_epoch_holds_every_prompt_once_in_an_order_of_its_own():
    stream = PromptStream(numbered(50), 3, shuffle=True)
    epochs = [[prompt.index for prompt in stream.take(50 * epoch, 50)] for epoch in range(4)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert [prompt.index for prompt in PromptStream(numbered(50), 4, shuffle=True).take(0, 50)] != epochs[0]
    assert [prompt.index for prompt in stream.take(30, 40)] == epochs[0][30:] + epochs[1][:20]
    assert stream.epoch(125) == 2.5


def test_the_order_is_pinned():
    """A resume on another machine, or under another Python, must meet the same prompts."""
    assert [prompt.index for prompt in PromptStream(numbered(8), 0, shuffle=True).take(0, 8)] == [3, 2, 5, 1, 4, 7, 0, 6]
    assert [prompt.index for prompt in PromptStream(numbered(3), 0, shuffle=False).take(2, 5)] == [2, 0, 1, 2, 0]


def test_a_stream_needs_prompts_and_a_cursor_that_exists():
    with pytest.raises(PromptError):
        PromptStream([], 0, shuffle=True)
    with pytest.raises(ValueError, match="negative"):
        PromptStream(numbered(2), 0, shuffle=True).take(-1, 1)


def test_a_prompt_with_many_copies_does_not_end_the_search_for_held_out_ones():
    rows = [{"prompt": f"q {n}"} for n in range(50)] + [{"prompt": "often"}] * 40
    for seed in range(12):
        train, held_out = split_held_out(rows, 0.1, seed)
        often = {"prompt": "often"} in held_out  # by its own hash, below the share
        assert often or len(held_out) == 16
        assert len(train) + len(held_out) == 90
