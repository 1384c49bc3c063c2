"""Hostile answers to gym tasks: code, shortcuts and traps, and the verdict on each."""

from __future__ import annotations

import decimal
import functools
import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest

from cohort.errors import PromptError
from cohort.rewards.gym import rows as rewards
from cohort.rewards.gym import worker as gym_worker
from cohort.rewards.gym.guards import GUARDS, AnswerRefused, admit, extract_answer
from cohort.rewards.gym.rows import (
    CHUNK,
    JAILED_TASKS,
    GymVerdict,
    create_dataset,
    find_reference_answer,
    gym_verifier,
    load_gym,
    read_verdict,
)
from cohort_verify.sandbox import Answer, JailUnavailable, shared_pool

# --- the final answer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "pattern", "answer"),
    [
        ("<answer>1</answer> no, <answer>\n2 </answer>", r">(\d)", "2"),
        ("<answer>1</answer> and <answer>2", "", "1"),
        ("<answer>1 <answer> 2</answer>", "", "2"),
        ("3+4=7\n>7\n>8", r">(\d+)", "8"),
        ("total 12", r"\d+", "12"),
        (r"\boxed{1} then \boxed{\frac{1}{2}} done", "", r"\frac{1}{2}"),
        (r"\boxed{5} then \boxed{6", "", "5"),
        (r"no match, \boxed{5}", r">(\d+)", "5"),
        ("  plain text\n", "", "plain text"),
        ("<answer>unclosed", "", "<answer>unclosed"),
        ("", "", ""),
    ],
)
def test_the_final_answer_is_found(completion: str, pattern: str, answer: str):
    assert extract_answer(completion, pattern) == answer
    assert gym_verifier.extract(completion, pattern) == answer
    if pattern:  # then it is looked for in a worker
        assert rewards.extract_answers([completion], pattern, 10.0) == [answer]


def test_endless_rows_of_openings_cost_little():
    started = time.process_time()
    assert extract_answer("\\boxed{" * 20_000).startswith("\\boxed{")
    assert extract_answer("<answer>" * 200_000).startswith("<answer>")
    assert time.process_time() - started < 2


def test_a_pattern_that_never_ends_costs_only_its_completion():
    rows = load_gym("chain_sum", "train", 0, {"count": 2})
    words: list[tuple[Any, ...]] = []
    scores = gym_verifier(
        ["a" * 60 + "!", f"aa{rows[1]['answer']}"],
        entry=[row["entry"] for row in rows],
        task=["chain_sum"] * 2,
        pattern=r"(?:a+)+(-?\d+)$",
        wall_s=1.5,
        log_verdict=lambda *said: words.append(said),
    )
    assert scores == [0.0, 1.0]
    assert [word for _, word, _ in words] == ["timeout", "right"]


# --- verdicts ---------------------------------------------------------------------------------------------------------------


def scored(task: str, entry: dict[str, Any], *answers: str, **options: Any) -> list[tuple[float | None, str]]:
    """(score, word) of each answer."""
    words: dict[int, str] = {}
    scores = gym_verifier(
        [f"<answer>{answer}</answer>" for answer in answers],
        entry=[entry] * len(answers),
        task=[task] * len(answers),
        log_verdict=lambda row, word, detail="": words.update({row: word}),
        **options,
    )
    return list(zip(scores, (words[row] for row in range(len(answers))), strict=True))


RIGHT, WRONG, UNPARSED = (1.0, "right"), (0.0, "wrong"), (0.0, "unparsed")


def test_chats_json_entries_and_verifier_errors():
    rows = load_gym("prime_factorization", "train", 0, {"count": 2})
    logged: dict[str, Any] = {}
    scores = gym_verifier(
        [[{"role": "assistant", "content": f"<answer>{rows[0]['answer']}</answer>"}], "zqx"],
        entry=[json.dumps(row["entry"]) for row in rows],
        task=["prime_factorization"] * 2,
        gym_args=[{}, {}],
        log_extra=lambda name, values: logged.update({name: values}),
        prompts=["", ""],
    )
    assert scores == [1.0, 0.0]
    assert logged == {"verifier_error": ["", "ValueError"]}


def test_the_verifier_scores_with_the_arguments_of_the_question():
    """decimal_arithmetic tolerates one unit of the last decimal place of its config."""
    entry = {"answer": "1.50", "metadata": {}}
    places = lambda most: [{"min_num_decimal_places": 1, "max_num_decimal_places": most}]  # noqa: E731
    assert scored("decimal_arithmetic", entry, "1.55", gym_args=places(1)) == [RIGHT]
    assert scored("decimal_arithmetic", entry, "1.55", gym_args=places(2)) == [WRONG]


def test_verdicts_on_missing_and_unreadable_answers():
    assert scored("chain_sum", {"answer": "5", "metadata": {}}, "5", "6", "", "5" * 200_000) == [
        RIGHT,
        WRONG,
        (0.0, "no_answer"),
        UNPARSED,
    ]
    # An entry that is not the task's is nobody's wrong answer.
    assert scored("puzzle24", {"answer": "5", "metadata": {}}, "5") == [(None, "infrastructure")]
    assert scored("chain_sum", {"answer": "5", "metadata": {}}, "5", gym_args=[{"min_terms": -3}]) == [(None, "infrastructure")]


def test_an_answer_that_hangs_scores_nothing_and_spares_the_next():
    entry = {"answer": "x**2 + C", "metadata": {"integrand": "2*x", "variable": "x"}}
    assert scored("simple_integration", entry, "x + 9**(9**9)", wall_s=2.0) == [(0.0, "timeout")]
    assert scored("simple_integration", entry, "x**2 + C", "x + C") == [RIGHT, WRONG]


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (Answer({"score": 1.0}), GymVerdict(1.0, "right")),
        (Answer({"score": 0.25}), GymVerdict(0.25, "wrong")),
        (Answer({"score": 7e12}), GymVerdict(0.0, "wrong", "the verifier returned 7000000000000.0", "ScoreOutOfRange")),
        (Answer({"score": float("nan")}), GymVerdict(0.0, "wrong", "the verifier returned nan", "ScoreOutOfRange")),
        (Answer({"error": "KeyError"}), GymVerdict(0.0, "wrong", "the verifier raised KeyError", "KeyError")),
        (Answer({"score": True}), GymVerdict(None, "infrastructure", "the verifier's worker returned no score")),
        (Answer("1.0"), GymVerdict(None, "infrastructure", "the verifier's worker returned no score")),
        (Answer(problem="cpu", detail="5 s"), GymVerdict(0.0, "timeout", "5 s")),
        (Answer(problem="wall"), GymVerdict(0.0, "timeout")),
        (Answer(problem="memory"), GymVerdict(0.0, "memory")),
        (Answer(problem="crash"), GymVerdict(0.0, "crash")),
        (Answer(problem="exception", detail="x"), GymVerdict(None, "infrastructure", "exception: x")),
        (Answer(problem="infrastructure", detail="x"), GymVerdict(None, "infrastructure", "infrastructure: x")),
    ],
)
def test_a_workers_reply_becomes_a_verdict(reply: Answer, verdict: GymVerdict):
    assert read_verdict(reply) == verdict


def test_a_verdict_leaves_no_trace_in_the_worker():
    """decimal_arithmetic sets the precision of all decimals of its process."""
    before = decimal.getcontext().prec
    dataset = create_dataset("decimal_arithmetic", {"size": 1, "seed": 0, "precision": 50})
    entry = json.loads(json.dumps(dataset[0]))
    decimal.getcontext().prec = before
    message = {"task": "decimal_arithmetic", "settings": {"precision": 50}, "entry": entry, "answer": entry["answer"]}
    assert gym_worker.score_answer(message) == {"score": 1.0}
    assert decimal.getcontext().prec == before


def test_without_a_jail_safe_tasks_are_scored_in_ordinary_workers(monkeypatch: pytest.MonkeyPatch):
    def none(*_: object, **__: object) -> None:
        raise JailUnavailable("there is no jail for untrusted code here")

    monkeypatch.setattr(rewards, "shared_pool", none)
    entry = {"answer": "5", "metadata": {}}
    assert scored("chain_sum", entry, "5", "6", "so 5") == [RIGHT, WRONG, (0.25, "wrong")]
    assert rewards.extract_answers(["a" * 60 + "!", "aa7"], r"(?:a+)+(\d)$", 2.0) == [
        GymVerdict(0.0, "timeout", "no answer within 2 s"),
        "7",
    ]
    with pytest.raises(PromptError, match="scored only in a jail, and there is no jail"):
        scored("spiral_matrix", {"answer": "1 2", "metadata": {}}, "1 2")


# --- guards, by hand --------------------------------------------------------------------------------------------------------


def entry_of(answer: str | None, **metadata: Any) -> dict[str, Any]:
    return {"answer": answer, "metadata": metadata}


INTEGRAL = entry_of("x**2 + C", integrand="2*x", variable="x")
PRODUCT = entry_of("x**2 + 3*x + 2", variables=["x"])
LIFE = entry_of("[[0,1],[0,0]]")
BOXES = entry_of(None, initial_state={"0.5_0.5": ["box_red"], "0.5_1.5": ["target_red"]})
CARS = entry_of(None, board_config="oooooooooooBAAoooBoooooooooooooooooo")
QUEENS = entry_of("_ Q\n_ _", valid_answers=["_ Q\n_ _"])
SORTED = entry_of("['1.0', '2.5']", direction="ascending")
COIN = entry_of("0.00003051757812")


@pytest.mark.parametrize(
    ("task", "entry", "answer", "expected"),
    [
        ("advanced_geometry", entry_of("36.43°", task_type="angle_measure"), "36.43 °", RIGHT),
        ("advanced_geometry", entry_of("(1.5, 2.0)", task_type="orthocenter", ortho=["3/2", "2"]), "(1.5, 2)", RIGHT),
        ("advanced_geometry", entry_of("36.43°", task_type="angle_measure"), "nan", UNPARSED),
        ("basic_arithmetic", entry_of("-6"), "-6", RIGHT),
        ("basic_arithmetic", entry_of("-6"), "(-6)", UNPARSED),
        ("bf", entry_of("cheer"), "cheer", RIGHT),
        ("binary_matrix", entry_of("0 1\n1 0"), "0 1\n1 0", RIGHT),
        ("binary_matrix", entry_of("0 1\n1 0"), "[[0, 1], [1, 0]]", (0.1, "wrong")),
        ("binary_matrix", entry_of("0 1\n1 0"), "entry", UNPARSED),
        ("bitwise_arithmetic", entry_of("0x1f", problem="(0xf + 0x10)"), "0x1F", RIGHT),
        ("bitwise_arithmetic", entry_of("0x1f", problem="(0xf + 0x10)"), "31", RIGHT),
        ("bitwise_arithmetic", entry_of("0x1f", problem="(0xf + 0x10)"), "0xf + 0x10", UNPARSED),
        # A box can only be moved from where it is, to the next square, onto its own target; targets stay.
        (
            "boxnet",
            BOXES,
            '[{"Agent[0.5, 0.5]": "move(box_red, square[0.5, 1.5])"}, {"Agent[0.5, 1.5]": "move(box_red, target_red)"}]',
            RIGHT,
        ),
        ("boxnet", BOXES, '[{"Agent[0.5, 0.5]": "move(box_red, square[0.5, 1.5])"}]', (0.05, "wrong")),
        ("boxnet", BOXES, '[{"Agent[0.5, 1.5]": "move(box_red, target_red)"}]', WRONG),
        ("boxnet", BOXES, '[{"Agent[0.5, 0.5]": "move(box_red, square[0.5, 2.5])"}]', WRONG),
        ("boxnet", BOXES, '[{"Agent[0.5, 0.5]": "move(box_red, square[1.5, 0.5])"}]', WRONG),
        ("boxnet", BOXES, '[{"Agent[0.5, 1.5]": "move(target_red, square[0.5, 0.5])"}]', UNPARSED),
        ("boxnet", BOXES, "[" * 50_000, UNPARSED),
        ("boxnet", BOXES, '{"Agent[0.5, 0.5]": "move(box_red, target_red)"}', UNPARSED),
        ("calendar_arithmetic", entry_of("-1", task="recurring_event_day"), "-1", RIGHT),
        ("calendar_arithmetic", entry_of("-1", task="recurring_event_day"), "20", WRONG),
        ("codeio", entry_of('{"a": [1, 2]}'), '{"a":[1,2.0]}', RIGHT),
        ("codeio", entry_of('{"a": [1, 2]}'), '{"a": [true, 2]}', WRONG),
        ("codeio", entry_of('{"a": [1, 2]}'), json.dumps({"a": "😀" * 500}), WRONG),
        ("codeio", entry_of('{"a": [1, 2]}'), '{"a": NaN}', UNPARSED),
        ("coin_flip", entry_of("0.24609375"), "126/512", RIGHT),
        ("coin_flip", entry_of("0.24609375"), "0.2461", RIGHT),
        ("coin_flip", entry_of("0.24609375"), "0.24", WRONG),
        ("coin_flip", entry_of("0.24609375"), "0", WRONG),
        ("coin_flip", COIN, "0.00003", RIGHT),
        ("coin_flip", COIN, "3.05e-5", RIGHT),
        ("coin_flip", COIN, "1/32768", RIGHT),
        ("coin_flip", COIN, "0", WRONG),
        ("coin_flip", COIN, "1/0", UNPARSED),
        ("coin_flip", COIN, "1e999999999", UNPARSED),
        ("complex_arithmetic", entry_of("3.0 - 4.0i", result=[3, -4]), "3 - 4i", RIGHT),
        ("complex_arithmetic", entry_of("3.0 - 4.0i", result=[3, -4]), "nan", UNPARSED),
        ("complex_arithmetic", entry_of("3.0 - 4.0i", result=[3, -4]), "nan+nanj", UNPARSED),
        ("countdown", entry_of("8*3", numbers=[3, 8], target=24), "3*8", RIGHT),
        ("countdown", entry_of("8*3", numbers=[3, 8], target=24), "(8)*-(-3)", RIGHT),
        ("countdown", entry_of("8*3", numbers=[3, 8], target=24), "24", WRONG),
        ("countdown", entry_of("8*3", numbers=[3, 8], target=24), "8*3*1", WRONG),
        ("countdown", entry_of("8*3", numbers=[3, 8], target=24), "8/(3-3)", WRONG),
        ("countdown", entry_of("8*3", numbers=[3, 8], target=24), "8**3", UNPARSED),
        ("countdown", entry_of("8*3", numbers=[3, 8], target=24), "4!", UNPARSED),
        ("countdown", entry_of("8*3", numbers=[3, 8], target=24), "8 3", UNPARSED),
        ("countdown", entry_of("8*3", numbers=[3, 8], target=24), "8*3 = 24", UNPARSED),
        # 9999.99 is nearer to 10000 than the package's tolerance.
        ("countdown", entry_of("?", numbers=[100, 100, 1, 100], target=10000), "100*100 - 1/100", WRONG),
        ("game_of_life", LIFE, "[[0, 1],\n [0, 0]]", RIGHT),
        ("game_of_life", LIFE, "[[0, 0], [0, 0]]", WRONG),
        ("game_of_life", LIFE, "[[0, 1, 0], [0, 0, 0]]", WRONG),
        ("game_of_life", LIFE, "[[0, 1], [0, 0]", UNPARSED),
        ("game_of_life_halting", entry_of("False"), "false", RIGHT),
        ("game_of_life_halting", entry_of("False"), "True", WRONG),
        ("game_of_life_halting", entry_of("False"), "anything", UNPARSED),
        ("gsm_symbolic", entry_of("42"), "42 apples.", RIGHT),
        ("gsm_symbolic", entry_of("42"), "x.y", UNPARSED),
        ("n_queens", QUEENS, "_ Q\n_ _", RIGHT),
        ("n_queens", QUEENS, '[["_", "Q"], ["_", "_"]]', (0.5, "wrong")),
        ("n_queens", QUEENS, "valid_solutions[0]", UNPARSED),
        ("number_sorting", SORTED, '["1.0", "2.5"]', RIGHT),
        ("number_sorting", SORTED, "[2.5, 1.0]", WRONG),
        ("number_sorting", SORTED, "[NaN, NaN]", UNPARSED),
        ("polynomial_equations", entry_of("-1.5, 2.0"), "-1.5, 2", RIGHT),
        ("polynomial_equations", entry_of("-1.5, 2.0"), "-1.5, nan", UNPARSED),
        ("polynomial_multiplication", PRODUCT, "2 + 3*x + x**2", RIGHT),
        ("polynomial_multiplication", PRODUCT, "(x + 1)*(x + 2)", WRONG),
        ("polynomial_multiplication", PRODUCT, "expand((x + 1)*(x + 2))", UNPARSED),
        ("polynomial_multiplication", PRODUCT, "x**2 + 3*y", UNPARSED),
        ("polynomial_multiplication", PRODUCT, "x**2**2", UNPARSED),
        ("polynomial_multiplication", PRODUCT, "x**999999999", UNPARSED),
        ("puzzle24", entry_of("?", numbers=[6, 4, 1, 1]), "6*4*1*1", RIGHT),
        ("puzzle24", entry_of("?", numbers=[3, 3, 8, 8]), "8/(3 - 8/3)", RIGHT),
        ("puzzle24", entry_of("?", numbers=[3, 3, 8, 8]), "6*4*1*1", WRONG),
        ("puzzle24", entry_of("?", numbers=[7, 7, 2, 4]), "7*7/2 + 4 - 4", WRONG),
        ("puzzle24", entry_of("?", numbers=[7, 7, 2, 1]), "7*7/2*1", WRONG),
        ("rubiks_cube", entry_of(None, cube_size=3, scramble_moves="R U'"), "U R'", RIGHT),
        ("rubiks_cube", entry_of(None, cube_size=3, scramble_moves="R U'"), "R99999999999", UNPARSED),
        # B stands in rows 1 and 2 of the last column; A has to pass row 2.
        ("rush_hour", CARS, "B+2 A+4", RIGHT),
        ("rush_hour", CARS, "B+1 A+4", WRONG),
        ("rush_hour", CARS, "A+4", WRONG),
        ("rush_hour", CARS, "B+5 A+4", WRONG),
        ("rush_hour", CARS, "C+1 B+2 A+4", WRONG),
        ("rush_hour", CARS, "B+2 then A+4", UNPARSED),
        ("simple_integration", INTEGRAL, "x**2 + C", RIGHT),
        ("simple_integration", INTEGRAL, "x*x - 3", RIGHT),
        ("simple_integration", INTEGRAL, "exp(2*log(x)) + sin(1)", RIGHT),
        ("simple_integration", INTEGRAL, "Integral(2*x, x)", UNPARSED),
        ("simple_integration", INTEGRAL, "integrate(2*x)", UNPARSED),
        ("simple_integration", INTEGRAL, "x**2 + y", UNPARSED),
        ("simple_integration", INTEGRAL, "2x", UNPARSED),
        ("intermediate_integration", INTEGRAL, "x**(4/2) + E**(0*x)", RIGHT),
        ("intermediate_integration", INTEGRAL, "sin x", UNPARSED),
        ("spiral_matrix", entry_of("1 2 3"), "1 2 3", RIGHT),
        ("spiral_matrix", entry_of("1 2 3"), "[1, 2, 3]", (0.1, "wrong")),
        ("spiral_matrix", entry_of("1 2 3"), "oracle_answer.split()", UNPARSED),
        ("string_insertion", entry_of("ABA"), "ABA", RIGHT),
        ("string_insertion", entry_of("ABA"), "['A', 'B', 'A']", (0.1, "wrong")),
        ("string_insertion", entry_of("ABA"), "oracle_answer", UNPARSED),
    ],
)
def test_guards_by_hand(task: str, entry: dict[str, Any], answer: str, expected: tuple[float, str]):
    assert scored(task, entry, answer) == [expected]


def test_one_sweep_over_the_field_would_solve_every_boxnet():
    """The exploit that the guard prevents: without it, one fixed text gets full marks for every problem."""
    squares = [(row + 0.5, column + 0.5) for row in range(4) for column in range(4)]
    snake = [square for row in range(4) for square in squares[4 * row : 4 * row + 4][:: -1 if row % 2 else 1]]
    plans = []
    for colour in ("red", "blue", "green"):
        for way in (snake, snake[::-1], snake):
            for here, there in itertools.pairwise(way):
                for target in (f"target_{colour}", f"square[{there[0]}, {there[1]}]"):
                    plans.append({f"Agent[{here[0]}, {here[1]}]": f"move(box_{colour}, {target})"})
    sweep = json.dumps(plans)
    settings = {"min_row_num": 4, "min_column_num": 4}
    rows = load_gym("boxnet", "train", 0, {"count": 10, **settings})
    verifier = gym_worker.cached_verifier("boxnet", json.dumps(settings))
    assert [verifier(sweep, row["entry"]) for row in rows].count(1.0) >= 8
    words = [scored("boxnet", row["entry"], sweep)[0][1] for row in rows]
    assert words == ["wrong"] * 10


def test_emoji_would_earn_marks_for_similar_json():
    verifier = gym_worker.cached_verifier("codeio", "{}")
    for gold in ('{"a": [1, 2]}', '{"month": 4, "day": "friday"}'):
        assert verifier(json.dumps({"a": "😀" * 500}), entry_of(gold)) > 0.5


# --- code -------------------------------------------------------------------------------------------------------------------

INJECTIONS = (
    "__import__('os').system('touch {canary}')",
    "open('{canary}', 'w').close()",
    "exec(\"open('{canary}','w')\")",
    "eval('1')",
    "[open('{canary}', 'w')]",
    "[[open('{canary}', 'w')]]",
    "[c for c in ().__class__.__base__.__subclasses__()]",
    "().__class__.__mro__[1].__subclasses__()",
    "(lambda: open('{canary}', 'w'))()",
    "x.__class__",
    "x.diff(x)",
    "sin.__globals__",
    "exp(x).subs(x, 1)",
    "Symbol('x')",
    "sympify('1')",
    "Lambda(x, x)(1)",
    "S('open(\"{canary}\")')",
    "1 if print(1) else 2",
    "6*4*1*1 or exit()",
    "1;import os",
    "1\nimport os",
    "(yield)",
    "f'{{open(1)}}'",
    "entry['answer']",
    "self.score_answer",
    "oracle_answer",
    "answer := 1",
    "*[1]",
    "[*range(9)]",
    "{{1: 2}}[1]",
    "`ls`",
    "\x00",
    "１２",  # digits, but not ours
    "ｅｖａｌ(1)",  # Python reads these letters as eval
    "1_000",
    "0x10.real",
    "1 .real",
    "'A'.join",
    "['__import__']",
    "[['Q'][0]]",
    "['Q', open]",
    "[1, 2][0]",
    "[1](2)",
    "\\",
    "# comment",
    "E.func",
    "C()",
    "x(1)",
    "sin()(1)",
    "sqrt(x, 1)",
)


@functools.cache
def one_entry(name: str) -> dict[str, Any]:
    return dict(load_gym(name, "train", 0, {"count": 1})[0]["entry"])


@pytest.mark.parametrize("name", JAILED_TASKS)
def test_no_code_passes_a_grammar(name: str, tmp_path: Path):
    canary = tmp_path / "canary"
    texts = [text.format(canary=canary) for text in INJECTIONS]
    for text in texts:
        with pytest.raises(AnswerRefused) as refusal:
            admit(name, text, one_entry(name))
        # codeio compares values: a JSON value that is not the right one is wrong.
        assert refusal.value.verdict == "unparsed" or (name, refusal.value.verdict) == ("codeio", "wrong")
    assert {score for score, _ in scored(name, one_entry(name), *texts)} == {0.0}
    assert not canary.exists()


AUDITED = """
import sys
from cohort.rewards.gym import worker as gym_worker

ran = []

def hook(event, arguments):
    if event == "compile":
        source = arguments[0]
        ran.append(source.decode("utf-8", "replace") if isinstance(source, bytes) else str(source))
    elif event in ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "shutil.rmtree"):
        ran.append(event)
    elif event == "open" and isinstance(arguments[1], str) and "w" in arguments[1]:
        ran.append("wrote " + str(arguments[0]))

sys.addaudithook(hook)

def score(message):
    if message == "ran":
        seen, ran[:] = list(ran), []
        return seen
    return gym_worker.score_answer(message)
"""


def test_an_audited_worker_never_compiles_hostile_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With the guards, what reaches eval and parse_expr are numbers, lists and expressions. Without them, it is the code."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    folder.joinpath("audited_gym.py").write_text(AUDITED)
    monkeypatch.syspath_prepend(str(folder))
    pool = shared_pool("audited_gym:score", rewards.LIMITS, size=1)
    try:
        monkeypatch.setattr(rewards, "SCORE", "audited_gym:score")
        hostile = [text.format(canary="/tmp/canary") for text in INJECTIONS]
        pool.ask("ran")
        for name in JAILED_TASKS:
            entry = one_entry(name)
            gold = find_reference_answer(name, entry)
            assert gold is not None
            words = [word for _, word in scored(name, entry, gold, *hostile)]
            assert words[0] == "right"
            assert set(words[1:]) <= {"unparsed", "wrong"}
        seen = pool.ask("ran").value
        assert seen  # the lists and expressions of the right answers
        assert not [text for text in seen for code in hostile if text == code or (code in text and len(code) > 8)]
        assert not [text for text in seen if text.startswith(("wrote", "os.", "subprocess"))]
        # The hook does see what a verifier without a guard would run.
        code = "[open('/tmp/canary', 'w')]"
        pool.ask({"task": "n_queens", "settings": {}, "entry": one_entry("n_queens"), "answer": code})
        seen = pool.ask("ran").value
        assert code in seen
        assert "wrote /tmp/canary" in seen
        assert not Path("/tmp/canary").exists()
    finally:
        pool.close()


# --- the package's own answers pass -----------------------------------------------------------------------------------------


@pytest.mark.prove
@pytest.mark.parametrize("name", sorted(set(GUARDS) - {"rush_hour", "codeio"}))
def test_the_grammar_takes_every_right_answer_of_the_package(name: str):
    """Rows whose answer is refused are dropped, so too narrow a grammar would silently lose rows."""
    refused = []
    for seed in (11, 5000, 90_000):
        dataset = create_dataset(name, {"size": CHUNK, "seed": seed})
        for index in range(100):
            entry = gym_worker.make_plain_entry(name, dataset, index)
            try:
                if entry is not None:
                    admit(name, str(find_reference_answer(name, entry)), entry)
            except AnswerRefused as refusal:
                refused.append((find_reference_answer(name, entry), str(refusal)))
    if name == "intermediate_integration":  # what the package could not solve, it stores as an integral
        assert all("Integral" in str(answer) for answer, _ in refused)
        assert len(refused) < 30
    else:
        assert refused == []
