"""Servers in a recipe: how they are named, and what does not fit together."""

from __future__ import annotations

import pytest

from cohort.errors import RecipeError
from cohort.observe.run_folder import make_paths_absolute
from cohort.recipe.file import load_recipe
from cohort.recipe.user_functions import resolve_recipe
from cohort.recipe.values import read_servers

URL = "sampling.servers=http://10.0.0.5:8000"


def test_servers_are_named_one_by_one_or_in_a_file(tmp_path, monkeypatch):
    assert load_recipe(None, [f"{URL},http://10.0.0.6"]).sampling.servers == ["http://10.0.0.5:8000", "http://10.0.0.6"]
    (tmp_path / "servers.txt").write_text("# two\nhttp://a:8000\n\nhttps://b/ # the other\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    recipe = make_paths_absolute(load_recipe(None, ["sampling.servers=@servers.txt"]))
    assert recipe.sampling.servers == [f"@{tmp_path / 'servers.txt'}"]
    assert read_servers(recipe.sampling.servers) == ["http://a:8000", "https://b:443"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "contains no address"),
        ("http://a\nhttp://a:80/", "listed twice"),
        ("ftp://a", "not like"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_names_no_servers_is_refused(tmp_path, text, words):
    file = tmp_path / "servers.txt"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        read_servers([f"@{file}"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sampling.servers=10.0.0.5:8000"], r"sampling\.servers: .*http://10\.0\.0\.5:8000"),
        (["sampling.servers=http://a/v1"], r"has a path after the port"),
        (["sampling.servers=http://me:secret@a"], "name or password"),
        (["sampling.servers=http://a,"], "an entry is empty"),
        ([URL, "sampling.engine=local"], r"sampling\.servers: engine 'local' samples in this process"),
        ([URL, "vllm.folder=/shared"], r"vllm\.folder: it has no effect with push = 'group'"),
        ([URL, "vllm.push=files", "vllm.address=10.0.0.1"], r"vllm\.address: it has no effect with push = 'files'"),
        (["vllm.limit_s=5"], r"vllm\.limit_s: it has no effect"),
        ([URL, "vllm.push=adapter"], r'vllm\.push: "adapter" sends the adapter of a LoRA policy'),
        ([URL, "sampling.cuda_graphs=false"], r"sampling\.cuda_graphs: it has no effect on servers"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(words, said):
    with pytest.raises(RecipeError, match=said):
        load_recipe(None, words)


def test_a_recipe_without_servers_can_be_served_and_not_trained():
    recipe = load_recipe(None, ["sampling.engine=vllm", "vllm.push=files"])
    with pytest.raises(RecipeError, match=r"sampling\.servers names none.*cohort serve"):
        resolve_recipe(recipe)


@pytest.mark.parametrize(
    ("words", "weight"),
    [
        ([URL], "token_truncate"),
        ([URL, "sampling.engine=vllm"], "token_truncate"),
        ([URL, "ahead.lag=1"], "auto"),  # the clip acts on the ratio to what sampled
        ([URL, "ahead.in_flight=true"], "auto"),
        ([URL, "ahead.lag=1", "algorithm.region=none"], "token_truncate"),  # nothing else corrects for their age
        ([URL, "ahead.lag=1", "mismatch_weight=token_truncate"], "token_truncate"),
        ([URL, "mismatch_weight=off"], "off"),
        ([URL, "mismatch_weight=sequence_mask"], "sequence_mask"),
        ([URL, "algorithm=dppo"], "auto"),  # has the engine in its ratio
        ([URL, "algorithm=dpo"], "auto"),
        ([], "auto"),
        (["sampling.engine=hf"], "auto"),
    ],
)
def test_auto_weighs_for_an_engine_of_another_program(words, weight):
    algorithm = resolve_recipe(load_recipe(None, words)).algorithm
    assert algorithm.mismatch_weight == weight
    assert algorithm.weighs_mismatch == (weight not in ("auto", "off"))
