"""The registry explains every metric a run can write, and the page is written from it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cohort.observe.metrics import AREAS, METRICS, REDUCTIONS, find_metric

SOURCE = Path(__file__).parents[2] / "src" / "cohort"


def test_every_name_is_there_once_in_data_flow_order():
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    areas = [metric.area for metric in METRICS]
    assert areas == sorted(areas, key=list(AREAS).index)
    assert set(areas) == set(AREAS)


def written_words(node: ast.AST) -> Iterator[str]:
    """The words of every string in the code, those of the rows themselves aside."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Metric":
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from re.findall(r"\w+", node.value)
    for child in ast.iter_child_nodes(node):
        yield from written_words(child)


def test_every_row_is_of_a_metric_that_the_code_writes():
    """The other way round, a run's metrics all have rows: tests/test_cli.py."""
    words = {word for file in SOURCE.rglob("*.py") for word in written_words(ast.parse(file.read_text(encoding="utf-8")))}
    for metric in METRICS:
        fixed = re.findall(r"\w+", re.sub(r"<\w+>", "", metric.name))
        assert fixed[-1].removeprefix("engine_") in words or fixed[-1] == "engine_", metric.name


def test_every_row_is_filled_in():
    for metric in METRICS:
        assert all((metric.unit, metric.formula, metric.healthy, metric.bad)), metric.name
        assert metric.bad.endswith("."), metric.name


def test_a_row_says_how_its_values_are_merged():
    """Two optimizer steps of one step, two rounds of 3 prompts and 1: by hand. What no row explains is averaged."""
    from cohort.training.rollouts import merge_metrics
    from cohort.training.updates import merge_update_metrics

    assert {metric.reduce for metric in METRICS} == {"mean", *REDUCTIONS}
    steps = [
        {"loss/policy": 1.0, "loss/trained_tokens": 30, "loss/ratio_max": 1.5, "rollout/mismatch_max": 0.1, "optim/learning_rate": 2e-6},
        {"loss/policy": 4.0, "loss/trained_tokens": 12, "loss/ratio_max": 1.2, "rollout/mismatch_max": 0.7, "optim/learning_rate": 1e-6},
    ]  # fmt: skip
    assert merge_update_metrics(steps) == {
        "loss/policy": 2.5, "loss/trained_tokens": 42, "loss/ratio_max": 1.5, "rollout/mismatch_max": 0.1, "optim/learning_rate": 1e-6,
    }  # fmt: skip
    rounds = [
        (3, {"reward/r/verdict/right": 2.0, "reward/r/seconds": 0.5, "reward/r/steps": 4.0, "nothing/here": 1.0}),
        (1, {"reward/r/verdict/right": 1.0, "reward/r/seconds": 0.25, "reward/r/steps": 8.0, "nothing/here": 5.0}),
    ]
    assert merge_metrics(rounds) == {
        "reward/r/verdict/right": 3.0, "reward/r/seconds": 0.75, "reward/r/steps": 5.0, "nothing/here": 2.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("reward/mean", "reward/mean"),
        ("reward/math_answer/mean", "reward/<part>/mean"),
        ("reward/math_answer/seconds", "reward/<part>/seconds"),
        ("reward/check_steps/steps", "reward/<part>/steps"),
        ("reward/math_answer/digits", "reward/<part>/<logged>"),
        ("eval/held_out/pass@1", "eval/<set>/pass@<k>"),
        ("eval/gsm8k.test/maj@16", "eval/<set>/maj@<k>"),
        ("perf/engine_occupancy", "perf/engine_occupancy"),
        ("perf/engine_refills", "perf/engine_<figure>"),
    ],
)
def test_describe_finds_concrete_names(name, row):
    assert find_metric(name).name == row


def test_describe_knows_what_it_does_not_know():

    assert find_metric("nothing/here") is None
    assert find_metric("eval/held_out/pass@x") is None
