"""The pages of groups and tokens: content, links and errors."""

import random
import re
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_runs import make_rollout, make_run, make_step, make_token_row, write_record
from starlette.testclient import TestClient

from cohort.observe.rollouts import read_rollouts
from cohort.tools.dashboard.app import make_app
from cohort.tools.dashboard.run_index import RunIndex

EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\u202e"


class Reader(HTMLParser):
    """Parses tags and text, and checks that elements are closed in order."""

    VOID = {"meta", "link", "input", "br", "img", "hr"}

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.texts = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.texts))

    def links(self):
        return [attributes["href"] for tag, attributes in self.tags if tag == "a"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    evil = [make_rollout(random.Random(5), 2, 0, sample, 3, prompt=EVIL, completion=EVIL) for sample in range(3)]
    folder = make_run(root, "one", steps=6, rollouts={2: evil})
    make_run(root, "old", steps=3)
    make_run(root, "without", steps=3, indexed=False)
    pieces = ["seven", " ", "\n", EVIL, "\u200b", "<eos>"]
    rows = [make_token_row(1, sample, 4 + sample, pieces, advantage=np.full(6, sample - 1.0)) for sample in range(4)]
    write_record(folder, 4, rows)
    return root


@pytest.fixture(scope="module")
def client(root):
    return TestClient(make_app(RunIndex([root])), base_url="http://127.0.0.1:8600")


def read_page(client, address, status=200):
    answer = client.get(address)
    assert answer.status_code == status, answer.text
    assert "could not be created" not in answer.text
    reader = Reader(answer.text)
    assert not [tag for tag, attributes in reader.tags if tag == "script" and "src" not in attributes]
    assert not [name for _, attributes in reader.tags for name in attributes if name.startswith("on") or name == "style"]
    assert "alert(1)" not in " ".join(str(tag) for tag in reader.tags if tag[0] in ("script", "img"))
    return reader


PAGES = [
    "/run/one/groups", "/run/one/groups?show=completions", "/run/one/groups?filter=wrong&order=longest&show=completions&page=2",
    "/run/one/groups?find=seven", "/run/one/groups?find=nowhere", "/run/one/groups?step=2-3&filter=evidence", "/run/one/group/2/0",
    "/run/one/group/4/1?text=full", "/run/one/tokens/4/1/2", "/run/one/tokens/4/1/2?view=table", "/run/one/tokens/2/0/1?colour=logprob",
    "/run/without/groups", "/run/old/groups?step=1", "/run/old/group/2/1", "/run/old/tokens/2/1/0",
]  # fmt: skip


@pytest.mark.parametrize("address", PAGES)
def test_every_page_is_well_formed_without_model_markup_and_its_links_work(client, address):
    reader = read_page(client, address)
    links = sorted({link for link in reader.links() if re.match(r"/run/[^/?]+/", link)})
    for link in random.Random(address).sample(links, min(6, len(links))):
        answer = client.get(link.partition("#")[0])
        assert answer.status_code in (200, 404), link
        assert answer.status_code == 200 or "/group/" in link, link


def test_a_group_is_sorted_by_advantage_and_shows_all_its_values(client, root):
    reader = read_page(client, "/run/one/group/4/1")
    rows = [row for row in read_rollouts(root / "one" / "rollouts" / "step-000004.parquet") if row["group"] == 1]
    wanted = sorted(rows, key=lambda row: (-row["advantage"], row["sample"]))
    shown = [attributes["id"] for tag, attributes in reader.tags if tag == "article" and "id" in attributes]
    assert shown == [f"sample-{row['sample']}" for row in wanted]
    for row in rows:
        assert f"reference answer {rows[0]['reference_answer']}" in reader.text
        assert ("right" if row["success"] else "wrong") in reader.text
        if row["reward"] is not None:
            assert f"reward {row['reward']:.4g}" in reader.text
    assert "correct" in reader.text
    assert "style" in reader.text


def test_a_list_page_shows_its_rows_and_the_total(client, root):
    everything = [row for step in range(1, 7) for row in read_rollouts(root / "one" / "rollouts" / f"step-{step:06d}.parquet")]
    wrong = [row for row in everything if row["success"] is False]
    reader = read_page(client, "/run/one/groups?filter=wrong&show=completions")
    assert f"{len(wrong):,} completions, newest first; page 1 of {-(-len(wrong) // 40)}" in reader.text
    assert f"wrong {len(wrong)}" in reader.text
    first = wrong[-1]
    assert f"/run/one/group/{first['step']}/{first['group']}#sample-{first['sample']}" in reader.links()


def test_a_search_reports_what_it_searched(client, root):
    reader = read_page(client, "/run/one/groups?find=ELEVEN")
    rows = [row for step in range(1, 7) for row in read_rollouts(root / "one" / "rollouts" / f"step-{step:06d}.parquet")]
    hits = [row for row in rows if "eleven" in row["completion"]]
    searched = f"in the prompts, completions and answers of {len(rows)} completions of steps 6 to 1."
    assert f"{len(hits)} completions with “ELEVEN” {searched} All completions of the filter were searched." in reader.text


def test_an_incomplete_search_links_to_its_continuation(client, monkeypatch):
    from cohort.tools.dashboard import groups_page

    monkeypatch.setitem(groups_page.PAGE_SIZE, "completions", 3)
    reader = read_page(client, "/run/one/groups?find=what&order=oldest")
    assert "continue the search at step 1" in reader.text
    link = next(link for link in reader.links() if "at=" in link)
    again = read_page(client, link)
    assert not {one for one in reader.links() if "#sample" in one} & {one for one in again.links() if "#sample" in one}


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("/run/one/group/99/0", "step 99 are not saved"),
        ("/run/one/group/4/77", "Step 4 has groups 0 to 5, but no group 77."),
        ("/run/one/group/x/0", "give a whole number"),
        ("/run/one/groups?step=abc", "give a step such as 12"),
        ("/run/one/tokens/4/1/9", "has completions 0 to 3"),
        ("/run/nobody/groups", "no run with this name"),
    ],
)
def test_a_missing_item_is_reported(client, address, words):
    assert words in read_page(client, address, 404).text


def test_a_missing_index_is_reported(client):
    assert "rollouts/index.bin) is missing or empty" in read_page(client, "/run/without/groups").text
    assert "rollouts/index.bin) is missing or empty" in read_page(client, "/run/without/group/2/1", 404).text
    links = read_page(client, "/run/old/group/2/1").links()
    assert {"/run/old/group/1/1", "/run/old/group/3/1"} <= set(links)


def test_recorded_tokens_are_coloured_by_the_column_in_the_address(client):
    reader = read_page(client, "/run/one/tokens/4/1/2?colour=advantage")
    styles = [
        attributes["class"] for tag, attributes in reader.tags if tag == "span" and attributes.get("class", "").startswith("t ")
    ]
    assert [style.split()[1] for style in styles[-6:]] == ["p2"] * 6  # 1 lies between 0.5 and 1.5
    assert [style.split()[2:] for style in styles[-6:]] == [[], ["blank"], ["blank"], ["hidden"], ["hidden"], []]
    assert "⟨U+200B⟩" in reader.text
    assert "⟨U+202E⟩" in reader.text
    assert "update 1 of 2" in reader.text


def test_the_numbers_for_the_script_are_those_of_the_record(client):
    numbers = client.get("/data/run/one/tokens/4/1/2").json()
    assert numbers["total"] == 6
    columns = dict(zip(numbers["labels"], numbers["columns"], strict=True))
    assert columns["advantage"] == [1.0] * 6
    assert columns["ratio"] == pytest.approx([np.exp(0.1)] * 6, rel=1e-5)
    assert columns["KL (k3)"] == pytest.approx([np.expm1(-0.3) + 0.3] * 6, rel=1e-4)
    assert numbers["pieces"][1] == "“␣”"


def test_without_a_record_missing_columns_and_the_recipe_key_are_named(client):
    text = read_page(client, "/run/old/tokens/2/1/0").text
    assert "Not recorded: ratio, clipped, KL (k3), entropy, gradient coefficient." in text
    assert "monitors.tokens_every" in text


def test_a_long_completion_is_split_after_ten_thousand_tokens(tmp_path):
    rng = random.Random(1)
    words = " ".join(rng.choice(["one", "two", "three"]) for _ in range(10_500))
    make_run(tmp_path, "long", steps=1, rollouts={1: [make_rollout(rng, 1, 0, 0, 1, completion=words)]})
    client = TestClient(make_app(RunIndex([tmp_path])), base_url="http://127.0.0.1:8600")
    first, second = (read_page(client, f"/run/long/tokens/1/0/0{query}") for query in ("", "?at=10400"))
    assert sum(attributes.get("class", "").startswith("t ") for tag, attributes in first.tags if tag == "span") == 10_000 + 7
    assert sum(attributes.get("class", "").startswith("t ") for tag, attributes in second.tags if tag == "span") == 500 + 7
    assert "10,001 to 10,500" in first.text
    numbers = client.get("/data/run/long/tokens/1/0/0?at=10400").json()
    assert (numbers["first"], len(numbers["ids"])) == (10_000, 500)


def test_a_broken_file_is_reported_without_its_path(tmp_path):
    folder = make_run(tmp_path, "torn", steps=3, rollouts={2: make_step(random.Random(0), 2)})
    folder.rollouts_file(2).write_bytes(folder.rollouts_file(2).read_bytes()[: 1 << 9])
    client = TestClient(make_app(RunIndex([tmp_path])), base_url="http://127.0.0.1:8600", raise_server_exceptions=False)
    reader = read_page(client, "/run/torn/groups")
    assert "rollouts/step-000002.parquet cannot be read" in reader.text
    for place in ("group/2/0", "tokens/2/0/0"):
        answer = client.get(f"/run/torn/{place}")
        assert answer.status_code == 404
        assert "rollouts/step-000002.parquet cannot be read" in answer.text
        assert str(tmp_path) not in answer.text


def test_a_completion_named_by_a_finding_shows_it(tmp_path):
    folder = make_run(tmp_path, "named", steps=2)
    event = '{"time": 1, "step": 2, "kind": "finding", "name": "x", "what": "Copies are <b>paid</b>.", "rows": [[2, 5], [1, 0], "odd", [2]]}'
    folder.events_file.write_text(f'{event}\n{{"kind": "finding", "rows": 7}}\nnot json\n')
    client = TestClient(make_app(RunIndex([tmp_path])), base_url="http://127.0.0.1:8600")
    assert "Evidence: Copies are <b>paid</b>." in read_page(client, "/run/named/group/2/1").text  # row 5 is in group 1
    assert "Evidence:" not in read_page(client, "/run/named/group/2/0").text
    assert "Evidence:" in read_page(client, "/run/named/group/1/0").text


def test_groups_with_recorded_tokens_are_listed_and_tables_download(client):
    reader = read_page(client, "/run/one/groups?step=4")
    assert "Token data is recorded for step 4" in reader.text
    assert reader.text.count("tokens recorded") == 1
    lines = client.get("/csv/run/one/group/4/1?item=the-group-as-a-table").text.splitlines()
    assert lines[0] == "completion,verdict,reward,correct,style,advantage,tokens,answer,end"
    assert len(lines) == 1 + 4
    files = [link for link in read_page(client, "/run/one/tokens/4/1/2?view=table").links() if link.startswith("/csv")]
    lines = client.get(files[0]).text.splitlines()
    assert lines[0].startswith("position,token,id,advantage,ratio,clipped,KL (k3),entropy,log-prob,gradient coefficient,")
    assert lines[1].startswith("1,")  # as the page says: token 1 of so many
    assert len(lines) == 1 + 6


STRANGE = {
    "numbers for texts": lambda table: replace_column(table, "completion", pa.array(range(len(table)))),
    "texts for rewards": lambda table: replace_column(table, "reward", pa.array(["x"] * len(table))),
    "texts for verdicts": lambda table: replace_column(table, "success", pa.array(["yes"] * len(table))),
    "texts for tokens": lambda table: replace_column(table, "completion_ids", pa.array(["zz"] * len(table))),
    "records for tokens": lambda table: replace_column(table, "completion_ids", pa.array([{"a": 1}] * len(table))),
    "too few log-probs": lambda table: replace_column(table, "sampling_logprobs", pa.array([[1.0]] * len(table))),
    "bytes for texts": lambda table: replace_column(table, "completion", pa.array([b"\xff"] * len(table), pa.binary())),
    "a number for faults": lambda table: replace_column(table, "faults", pa.array([7] * len(table))),
    "endless advantages": lambda table: replace_column(table, "advantage", pa.array([float("inf")] * len(table))),
    "nothing in it": lambda table: pa.table({field.name: pa.nulls(len(table), field.type) for field in table.schema}),
    "no groups": lambda table: table.drop_columns(["group"]),
    "no rows": lambda table: table.slice(0, 0),
}


def replace_column(table, name, values):
    return table.set_column(table.schema.get_field_index(name), name, values)


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("kind", STRANGE)
def test_a_malformed_file_never_breaks_the_page(tmp_path, kind, indexed):
    folder = make_run(tmp_path, "strange", steps=1, indexed=indexed)
    with folder.rollouts_file(1).open("rb") as stream:
        table = pq.read_table(stream)
    pq.write_table(STRANGE[kind](table), folder.rollouts_file(1))
    pq.write_table(pa.table({"group": [1], "sample": [0], "pieces": [7]}), folder.tokens_file(1))
    client = TestClient(make_app(RunIndex([tmp_path])), base_url="http://127.0.0.1:8600")
    places = (
        "groups",
        "groups?show=completions",
        "groups?find=seven",
        "group/1/0",
        "tokens/1/0/0",
        "tokens/1/0/0?view=table",
    )
    for address in [f"/run/strange/{place}" for place in places]:
        answer = client.get(address)
        assert answer.status_code in (200, 404), address
        assert "could not be created" not in answer.text, address
    assert client.get("/data/run/strange/tokens/1/0/0").status_code in (200, 404)
