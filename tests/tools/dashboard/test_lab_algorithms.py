"""A group of a run under every algorithm: by hand, and for the run's own algorithm compared with the recorded values."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cohort.algorithms.named import NAMED, PRESETS
from cohort.observe.rollouts import ROW, list_token_steps
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.tools.dashboard.lab.algorithms import (
    OWN,
    Applied,
    GroupRecord,
    Settings,
    apply_algorithm,
    apply_algorithms,
    count_agreeing,
)
from cohort.tools.dashboard.lab.run_examples import FINDERS, find_example, read_recorded
from cohort.tools.dashboard.lab.run_station import answer_run, load_record
from cohort.tools.dashboard.lab.stations import answer_station, load_stations
from cohort.tools.dashboard.run_index import RunIndex
from cohort.tools.dashboard.view import View
from session_tools import train_tiny

LENGTHS = [2, 4, 2, 2]


def make_row(place: int, reward: float | None, length: int) -> dict:
    return {
        "group": place // 2, "sample": place % 2, "prompt_index": place // 2, "reward": reward, "success": None if reward is None else reward >= 0.5,
        "length": length, "end": "stop", "completion": "ab" * length, "steps": "[]", "reward/right": reward,
    }  # fmt: skip


def make_record(rewards=(1.0, 0.0, 1.0, 1.0), tokens=None, **settings) -> GroupRecord:
    """Two groups of two; the first is the one shown. tokens: columns of the token record of its completions, by their place."""
    rows = [make_row(place, reward, length) for place, (reward, length) in enumerate(zip(rewards, LENGTHS, strict=True))]
    ids = {place: (list(range(5, 5 + LENGTHS[place])), [-1.0] * LENGTHS[place], [3]) for place in (0, 1)}
    entries = {
        place: {"token_ids": ids[place][0], "pieces": ["ab"] * LENGTHS[place], "mask": [True] * LENGTHS[place], **columns}
        for place, columns in (tokens or {}).items()
    }
    return GroupRecord(3, 0, rows, entries, ids, Settings(longest=8, weights={"right": 1.0}, **settings))


def apply(name: str, record: GroupRecord) -> Applied:
    return apply_algorithm(name, AlgorithmConfig(name=name), record)


def same(values, wanted) -> bool:
    return list(values) == pytest.approx(wanted, abs=1e-5)


def test_without_tokens_the_coefficient_is_the_advantage():
    """Rewards 1, 0 beside 1, 1: mean 1/2 and std 1/2 in the group, mean 3/4 in the batch."""
    record = make_record()
    found = {one.name: one for one in apply_algorithms(record) if not one.missing}
    for name, up, down in (
        ("grpo", 1.0, -1.0),
        ("dr_grpo", 0.5, -0.5),
        ("rloo", 1.0, -1.0),
        ("lite_ppo", 0.5 / math.sqrt(3 / 16), -0.5 / math.sqrt(3 / 16)),
        ("reinforce++_baseline", math.sqrt(2), -math.sqrt(2)),
        ("maxrl", 1.0, -1.0),
        ("gdpo", math.sqrt(2), -math.sqrt(2)),
        ("online_rft", 1.0, 0.0),
    ):
        assert same(found[name].coefficients[0], [up] * 2), name
        assert same(found[name].coefficients[1], [down] * 4), name
    # REINFORCE++ whitens over tokens: six of ten have a return of 1.
    std = math.sqrt(0.6 * 0.4)
    assert same(found["reinforce++"].coefficients[0], [0.4 / std] * 2)
    assert same(found["reinforce++"].coefficients[1], [-0.6 / std] * 4)
    assert found["grpo"].weights == pytest.approx({0: 1 / 8, 1: 1 / 16, 2: 1 / 8, 3: 1 / 8})
    assert found["dapo"].weights[1] == pytest.approx(1 / 10)
    assert found["dr_grpo"].weights[1] == pytest.approx(1 / 32)


def test_missing_inputs_are_reported():
    missing = {one.name: one.missing for one in apply_algorithms(make_record()) if one.missing}
    assert set(missing) == {"ppo", "opd", "sft", "dpo"}
    assert "critic" in missing["ppo"]
    assert "teacher" in missing["opd"]
    assert "demonstrations" in missing["sft"]
    assert "reference" in missing["dpo"]
    assert "recorded no reference log-probs" in " ".join(apply("grpo", make_record()).notes)


def test_an_algorithm_that_cannot_be_computed_again_shows_recorded_values():
    """A critic's values are in no file; functions of the user's own are never imported."""
    columns = {"coefficient": [0.5, -0.25], "weight": [0.125, 0.125], "clipped": [0, 1], "policy_logprob": [-1.0, -1.0]}
    for own in (AlgorithmConfig(name="ppo"), AlgorithmConfig(name="reinforce++"), None):
        record = make_record(tokens={0: {**columns, "ref_logprob": [-1.0, -1.5]}}, algorithm=own)
        first = apply_algorithms(record)[0]
        assert (first.name, first.missing) == (OWN, "")
        assert (first.coefficients[0], first.weights[0], first.cut[0]) == ([0.5, -0.25], 0.125, [1])
        assert "as recorded by the run" in first.notes[0]
    without = apply_algorithms(make_record(algorithm=AlgorithmConfig(name="ppo")))[0]
    assert "critic" in without.missing
    assert [one.name for one in apply_algorithms(make_record())] == list(PRESETS)


def test_a_ratio_outside_the_region_is_silenced_by_some_algorithms():
    """The first completion was right, and its first token is 1.5 times as likely by now."""
    moved = {"policy_logprob": [-1.0 + math.log(1.5), -1.0], "old_logprob": [-1.0, -1.0]}
    record = make_record(tokens={0: moved, 1: {"policy_logprob": [-1.0] * 4, "old_logprob": [-1.0] * 4}})
    assert same(apply("grpo", record).coefficients[0], [0.0, 1.0])
    assert apply("grpo", record).cut == {0: [0], 1: []}
    assert same(apply("cispo", record).coefficients[0], [1.5, 1.0])
    assert same(apply("gspo", record).coefficients[0], [0.0, 0.0])  # the geometric mean is 1.22
    gate = 1 / (1 + math.exp(-0.5))
    assert same(apply("sapo", record).coefficients[0], [4 * gate * (1 - gate) * 1.5, 1.0])
    assert same(apply("dppo", record).coefficients[0], [0.0, 0.5])  # from 0.37 to 0.55
    assert same(apply("online_rft", record).coefficients[0], [1.0, 1.0])


def test_the_kl_term_is_that_of_the_paper():
    """DeepSeekMath, equation 21: A + beta (ref / pi - 1)."""
    columns = [
        {"policy_logprob": [-1.0] * n, "old_logprob": [-1.0] * n, "ref_logprob": [-1.0 + math.log(2)] * n} for n in (2, 4)
    ]
    record = make_record(tokens=dict(enumerate(columns)))
    assert same(apply("grpo", record).coefficients[0], [1.04] * 2)
    assert apply("grpo", record).notes == ()
    # In RLOO it is a cost of the completion: k1 = -log 2 for each token, 0.01 of it, against the other's.
    gap = 1.0 + 0.01 * math.log(2) * (2 - 4)
    assert same(apply("rloo", record).coefficients[0], [gap] * 2)
    beta, margin = 0.1, 0.1 * (-2 + 4) * math.log(2)
    wanted = 6 * beta / (1 + math.exp(margin))
    assert same(apply("dpo", record).coefficients[0], [wanted] * 2)
    assert same(apply("dpo", record).coefficients[1], [-wanted] * 4)


def test_a_completion_without_a_score_is_not_pushed():
    found = apply("online_rft", make_record(rewards=(1.0, None, 1.0, 0.0)))
    assert list(found.coefficients[0]) == [1.0, 1.0]
    assert list(found.coefficients[1]) == [0.0] * 4


def test_the_runs_overlong_penalty_is_removed_and_dapo_adds_its_own():
    """Of at most 8 tokens, the last fifth costs: none of these reach it; the run's own penalty of -1 is not of any other algorithm."""
    record = make_record()
    rows = [dict(row) for row in record.rows]
    rows[0] |= {"reward": 0.0, "reward/overlong": -1.0}
    assert same(apply("dr_grpo", replace(record, rows=rows)).coefficients[0], [0.5] * 2)
    rows[1] |= {"end": "length", "length": 8}
    assert same(apply("dapo", replace(record, rows=rows)).coefficients[0], [1.0] * 2)


def test_agreement_is_counted_without_the_leader():
    def make(name: str, *values: float | None, missing: str = "") -> Applied:
        return Applied(name, "", missing, coefficients={0: list(values)})

    found = [make("grpo", 1.0, -2.0, None), make("a", 0.1, -0.1, None), make("b", 1.0, 0.0, None), make("c", missing="no")]
    assert count_agreeing([*found, make(OWN, 1.0, -2.0, None)]) == (1, 2)


# -- a run that was trained ------------------------------------------------------------------------------------------------

TWICE_TWO = {
    "train.num_steps": 2,
    "train.minibatches_per_step": 2,
    "train.passes_per_step": 2,
    "optimizer.learning_rate": 1e-2,  # ratios leave the region
    "evaluation.samples": 0,
    "monitors.tokens_every": 1,
}


@pytest.fixture(scope="module", params=["grpo", pytest.param("gspo", marks=pytest.mark.prove)])
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "runs"
    run = train_tiny(folder, **TWICE_TWO, **{"algorithm.name": request.param})
    return RunIndex([Path(run.folder).parent]), Path(run.folder).name


def test_the_runs_own_coefficients_equal_the_recorded_ones(trained):
    run_index, name = trained
    run, compared = run_index.find(name), 0
    for step in list_token_steps(run.folder.rollouts):
        for group in range(6):
            record, _ = load_record(run, step, group)
            if not record.tokens:
                continue
            assert record.settings.algorithm is not None
            found = apply_algorithm(OWN, record.settings.algorithm, record)
            for row, entry in record.tokens.items():
                if entry["policy_logprob"] is not None:
                    assert list(found.coefficients[row]) == entry["coefficient"]
                    assert [found.weights[row]] * len(entry["weight"]) == pytest.approx(entry["weight"], rel=1e-6)
                    compared += len(entry["weight"])
    assert compared > 100


def test_the_answer_of_the_station_for_a_trained_run(trained):
    run_index, name = trained
    answer = answer_run(run_index, View("/lab/run", {}, [("run", name)]))
    assert [one["name"] for one in answer["algorithms"]] == [OWN, *PRESETS]
    assert len(answer["pieces"]) == len(answer["algorithms"][0]["coefficients"])
    assert answer["right"] in (0, 1, 2)
    assert answer["others"] == len([one for one in answer["algorithms"][2:] if not one["missing"]])
    asked = View("/lab/run", {}, [("run", name), ("step", "999")])
    assert "step 999" in answer_run(run_index, asked)["problem"]
    asked = View("/lab/run", {}, [("run", name), ("group", "77")])
    assert "no group 77" in answer_run(run_index, asked)["problem"]


# -- the same in your run --------------------------------------------------------------------------------------------------


def find(run_index: RunIndex, station: str, run: str) -> dict:
    return find_example(run_index, View(f"/lab/{station}/run", {"station": station}, [("run", run)]))


def test_every_station_has_an_example_in_a_trained_run(trained):
    run_index, name = trained
    found = {station: find(run_index, station, name) for station in FINDERS}
    assert set(found) == set(load_stations()) - {"run"}
    for station, one in found.items():
        assert one["run"] == name
        words = {key: str(value) for key, value in one.get("set", {}).items()}
        answer = answer_station(run_index, View("", {"station": station}, list(words.items())))
        assert "problem" not in answer, f"what is put into the picture of {station} makes sense there: {answer}"
    rewards = [float(entry) for entry in found["group"]["set"]["rewards"].split(",")]
    assert len(set(rewards)) > 1
    table = {row[0]: row for row in found["clip"]["table"]["rows"]}
    assert list(table) == list(NAMED["region"])
    silent, pushed = map(int, table["clip"][1].split(" of "))
    assert 0 < silent < pushed
    assert table["none"][1] == f"0 of {pushed}"
    assert [row[0] for row in found["kl"]["table"]["rows"]] == list(NAMED["kl"]) if "table" in found["kl"] else True


def test_silenced_tokens_equal_the_recorded_ones(trained):
    """Of region clip with the recipe's 0.2: the recorded `clipped` of the newest step."""
    run_index, name = trained
    run = run_index.find(name)
    step, rows = read_recorded(run)
    if load_record(run, step, rows[0]["group"])[0].settings.algorithm.region == "clip":
        counted = sum(bool(mark) for row in rows for mark in row["clipped"])
        table = {row[0]: row for row in find(run_index, "clip", name)["table"]["rows"]}
        assert table["clip"][1].startswith(f"{counted} of ")


def test_missing_runs_and_broken_files_give_messages(tmp_path):
    empty = RunIndex([tmp_path / "none"])
    assert "cohort train" in find_example(empty, View("", {"station": "group"}))["sentence"]
    assert "cohort train" in answer_run(empty, View("", {}))["problem"]
    run = tmp_path / "runs" / "torn"
    (run / "rollouts").mkdir(parents=True)
    (run / "recipe.toml").write_text("name = 'torn'\n[sampling]\nmax_completion_tokens = 8\n", encoding="utf-8")
    (run / "metrics.jsonl").write_text('{"step": 1}\n{"ste', encoding="utf-8")
    for file in ("step-000001.parquet", "step-000001.tokens.parquet"):
        (run / "rollouts" / file).write_bytes(b"PAR1 and then nothing")
    records = np.zeros(4, ROW)
    records["step"], records["sample"], records["row"] = 1, range(4), range(4)
    (run / "rollouts" / "index.bin").write_bytes(records.tobytes())
    run_index = RunIndex([tmp_path / "runs"])
    for station in FINDERS:
        assert str(tmp_path) not in find(run_index, station, "torn")["sentence"]
    answer = answer_run(run_index, View("", {}, [("run", "torn")]))
    assert answer["runs"] == [["torn", "torn"]]
    assert "cannot be read" in answer["problem"]
    assert str(tmp_path) not in answer["problem"]
