"""The audit finds planted flaws under the right names, and nothing in sound rewards."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import test_audit_zoo

import broken_rewards
from cohort.errors import CohortError, RewardError
from cohort.rewards import BUILT_IN
from cohort.tools.audit import FLAWS, AuditError, AuditExample, audit
from cohort.tools.audit import attacks as attack_module
from cohort.tools.audit.attacks import make_alone_cases, make_beside_cases
from cohort.tools.audit.command import run_audit
from cohort.tools.audit.profiles import INSTRUCTION_ROWS, MATH_ROWS
from cohort.tools.audit.programs import CODE_ROWS, find_entry_point, read_tests, refactor_solution
from cohort.tools.audit.reference_answers import (
    continue_reference,
    cut_reference,
    disguise_answers,
    is_same_answer,
    lengthen_reference,
    make_near_misses,
    mutate_reference,
    read_number,
    read_reference,
    relate_to_reference,
    rewrite_reference,
)
from cohort.tools.audit.report import describe_example
from session_tools import prove_others

ROWS = broken_rewards.NUMBER_ROWS
FEW = 3
"""Rows per audit here: enough for every attack, and quick."""


def in_parallel(jobs):
    """Audits side by side: each mostly waits for its worker."""
    with ThreadPoolExecutor(3) as threads:
        futures = {name: threads.submit(job) for name, job in jobs.items()}
        return {name: future.result() for name, future in futures.items()}


def texts(variants):
    return [variant.text for variant in variants]


# -- the six planted flaws ---------------------------------------------------------------------------------------------

PLANTED = {
    "exit_code_grader": (broken_rewards.CODE_ROWS, {"exit_code", "equal", "unjailed"}),
    "stdout_grader": (broken_rewards.CODE_ROWS, {"stdout", "equal", "unjailed"}),
    "first_number": (ROWS, {"first_answer"}),
    "substring": (ROWS, {"substring", "missing_reference"}),
    "boxed_number": (broken_rewards.LEAKING_ROWS, {"leaked_reference"}),
    "format_only": (ROWS, {"format_only"}),
}
"""Reward -> (rows, every flaw it has; the planted one first)."""


@pytest.fixture(scope="module")
def broken():
    return in_parallel(
        {
            name: lambda name=name, rows=rows: audit(getattr(broken_rewards, name), rows, limit=FEW)
            for name, (rows, _) in PLANTED.items()
        }
    )


@pytest.mark.parametrize("name", PLANTED)
def test_every_planted_flaw_is_found_under_its_name_and_no_other(broken, name):
    assert set(broken[name].flaws) == PLANTED[name][1]


def test_the_planted_flaw_comes_first_and_shows_an_input_that_earned_the_reward(broken):
    shown = {name: report.findings[0].evidence[0] for name, report in broken.items()}
    assert [broken[name].findings[0].name for name in PLANTED] == [
        "exit_code", "stdout", "first_answer", "substring", "leaked_reference", "format_only",
    ]  # fmt: skip
    assert all(example.score == 1.0 for example in shown.values())
    assert "sys.exit(0)" in shown["exit_code_grader"].input
    assert "print('PASS')" in shown["stdout_grader"].input
    assert shown["format_only"].input == "\\boxed{zqxj wvk}"
    reference = shown["substring"].reference
    assert reference in shown["substring"].input
    assert shown["substring"].input != reference
    assert f"\\boxed{{{shown['boxed_number'].reference}}}" in shown["boxed_number"].input


def test_each_finding_has_a_reason_and_a_fix(broken):
    for report in broken.values():
        for finding in report.findings:
            assert finding.why
            assert finding.fix
            assert (finding.what, finding.category) == (FLAWS[finding.name].what, FLAWS[finding.name].category)
            assert 1 <= finding.count <= finding.tried
            assert 1 <= len(finding.evidence) <= 3


def test_the_same_reader_on_rows_that_leak_nothing_has_no_flaw():
    assert audit(broken_rewards.boxed_number, ROWS, limit=FEW).flaws == ()


# -- one fault each ----------------------------------------------------------------------------------------------------

ZOO = {
    "fair": set(),
    "fair_and_async": set(),
    "only_text": {"rewrite"},
    "tolerant": {"near_miss"},
    "cuts_off": {"whole_part"},
    "compares_a_beginning": {"expression"},
    "pays_for_exceptions": {"failure_pays"},
    "reads_thoughts": {"thoughts"},
    "digits_are_numbers": {"rewrite", "raises"},
    "pays_for_a_missing_gold": {"missing_reference"},
    "evaluates": {"executes", "hedge", "copied_question"},
    "evaluates_without_builtins": {"executes", "hedge", "copied_question"},
    "stateful": {"not_deterministic"},
    "noisy_substring": {"substring", "not_deterministic"},
    "drops_relations": {"relation"},
    "first_sentence": {"first_answer"},
    "dies": {"crash"},
    "hangs": {"hang"},
    "quadratic": {"superlinear"},
    "nan_for_nothing": {"contract"},
    "mean_of_the_batch": {"contract"},
    "noisy": {"not_deterministic"},
    "relative": {"batch_dependent"},
    "edits": {"impure"},
    "always_one": {"constant"},
    "long_enough": {"length_only"},
    "has_a_box": {"format_only"},
    "only_a_tag_of_its_own": {"reference_rejected"},
    "evaluates_arithmetic": {"copied_question"},
    "pays_for_a_word": {"wording"},
    "pays_for_sentences": {"wording"},
    "adds_for_a_word": set(),
}
QUICK = (
    "fair", "evaluates", "evaluates_without_builtins", "stateful", "drops_relations", "dies", "hangs", "relative",
    "evaluates_arithmetic", "pays_for_a_word", "pays_for_sentences", "adds_for_a_word",
)  # fmt: skip
"""A sample; `make prove` runs them all."""


def audit_zoo_function(name):
    return audit(getattr(test_audit_zoo, name), ROWS, limit=FEW, timeout_s=1.5 if name == "hangs" else 10.0)


@pytest.fixture(scope="module")
def zoo():
    return in_parallel({name: lambda name=name: audit_zoo_function(name) for name in QUICK})


@pytest.mark.parametrize("name", QUICK)
def test_each_fault_is_found_and_nothing_else(zoo, name):
    assert set(zoo[name].flaws) == ZOO[name]


@pytest.mark.prove
@pytest.mark.parametrize("name", [name for name in ZOO if name not in QUICK])
def test_each_other_fault_is_found_and_nothing_else(name):
    assert set(audit_zoo_function(name).flaws) == ZOO[name]


def test_a_crash_names_how_the_worker_ended_and_a_hang_the_limit(zoo):
    (crash,) = [finding for finding in zoo["dies"].findings if finding.category == "crash"]
    assert "exit status 3" in crash.evidence[0].detail
    assert "9**9**9**9" in crash.evidence[0].input
    (hang,) = [finding for finding in zoo["hangs"].findings if finding.category == "hang"]
    assert "1.5 s" in hang.evidence[0].detail
    assert zoo["hangs"].slowest[0].seconds >= 1.5


def test_a_score_that_changes_is_the_cause_and_what_it_explains_is_left_out(zoo):
    report = zoo["stateful"]
    assert report.flaws == ("not_deterministic",)
    (remark,) = [remark for remark in report.remarks if remark.startswith("omitted")]
    assert "the same completion passes one time and not the next" in remark


def test_words_that_raise_the_score_of_a_wrong_answer_are_a_note(zoo):
    assert "wording" in zoo["adds_for_a_word"].notes
    assert "verified" in zoo["pays_for_a_word"].findings[0].evidence[0].input


def test_code_that_needs_no_builtins_is_shown_with_the_walk(zoo):
    (executes,) = [finding for finding in zoo["evaluates_without_builtins"].findings if finding.category == "code execution"]
    assert {example.what.partition(",")[0] for example in executes.evidence} == {"attribute walk"}
    assert "__subclasses__" in executes.evidence[0].input


def test_relations_and_answers_that_are_taken_back_are_tried_of_every_number():
    rows = [row for row in MATH_ROWS if read_number(row.reference) is not None][:2]
    says = [form for form in attack_module.list_forms() if form.name == "says"]
    cases = [*make_alone_cases(rows, says), *make_beside_cases(rows, says, ())]
    of_first = {case.completion: case.expect for case in cases if case.row == 0}
    for text in (
        "The answer is \\ne 42.",
        "The answer is >42.",
        "The answer is \\ge 42.",
        "The answer is 42. No, The answer is 43.",
        "The answer is 42. No, the answer is 43.",
    ):
        assert of_first[text] == "fail"
    assert relate_to_reference("Paris") == []


def test_no_input_is_shown_twice(zoo):
    for report in zoo.values():
        for finding in report.findings:
            shown = [(example.input, example.reference) for example in finding.evidence]
            assert len(set(shown)) == len(shown)
    only = [form for form in attack_module.list_forms() if form.name == "boxed"]
    texts_tried = [case.completion for case in attack_module.make_bomb_cases(0, only)]
    assert len(set(texts_tried)) == len(texts_tried)


def test_a_reference_of_spaces_is_shown_in_quotes():
    assert (
        describe_example(AuditExample("text", "   ", 1.0, "reference is spaces"))
        == 'score 1, reference "   ": reference is spaces'
    )
    assert describe_example(AuditExample("text", "42", 1.0, "off by one")) == "score 1, reference 42: off by one"


def test_a_threshold_that_no_score_reaches_is_a_remark(zoo):
    report = audit(test_audit_zoo.fair, ROWS, limit=FEW, threshold=5.0)
    assert "reference_rejected" in report.flaws
    assert any("no completion reached the threshold 5: the highest score was 1." in r for r in report.remarks)
    assert not any("reached the threshold" in remark for remark in zoo["fair"].remarks)


def test_a_reward_that_reads_text_only_is_a_note_and_one_that_reads_chats_has_none(zoo):
    assert zoo["fair"].notes == ("chat",)
    assert zoo["fair"].clean
    assert audit(test_audit_zoo.fair_in_chats, ROWS, limit=FEW).notes == ()


# -- instructions ------------------------------------------------------------------------------------------------------


def test_marks_without_content_and_a_copy_of_the_prompt_are_tried_where_instructions_are_checked():
    """The planted checker counts marks, as the reference implementations do."""
    rows = [{"prompt": row.prompt, **row.columns} for row in INSTRUCTION_ROWS]
    report = audit(test_audit_zoo.counts_marks, rows, shape=True)
    assert set(report.flaws) == {"empty", "echo"}
    shown = {finding.name: [example.input for example in finding.evidence] for finding in report.findings}
    assert set(shown["empty"]) == {"* \\n* \\n* ", "[] [ ] [...]"}
    assert set(shown["echo"]) <= {row.prompt.replace("\n", "\\n") for row in INSTRUCTION_ROWS}
    assert audit("instructions", rows).flaws == ()


# -- options -----------------------------------------------------------------------------------------------------------


def test_a_template_shows_the_form_that_a_reward_reads():
    report = audit(test_audit_zoo.only_a_tag_of_its_own, ROWS, limit=FEW, template="FINAL: {answer}", kind="exact")
    assert report.flaws == ()
    assert report.forms[0] == "template"


@pytest.mark.prove
def test_a_function_that_raises_on_every_reference_answer_has_only_that_flaw():
    chats = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in ROWS]
    assert audit(test_audit_zoo.fair, chats, limit=FEW).flaws == ("raises",)
    assert audit(test_audit_zoo.fair_in_chats, chats, limit=FEW).flaws == ()


@pytest.mark.prove
def test_letters_may_count_with_the_kind_exact():
    assert audit(test_audit_zoo.only_text, ROWS, limit=FEW, kind="exact").flaws == ()


def test_a_reward_of_the_shape_is_clean_with_shape():
    assert audit(test_audit_zoo.has_a_box, shape=True).flaws == ()


def test_the_reference_answer_may_be_in_any_column():
    rows = [{"question": row["prompt"], "target": row["answer"]} for row in ROWS]
    renamed = {"answer": "target"}
    report = audit(broken_rewards.substring, rows, limit=FEW, reference="target", prompt="question", columns=renamed)
    assert report.flaws[0] == "substring"


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (lambda completions: [], {"rows": ROWS}, "cannot import a lambda"),
        ("test_audit_zoo:fair", {}, "--rows"),
        ("test_audit_zoo:needs_a_column", {"rows": ROWS}, "it needs 'key'"),
        ("test_audit_zoo:nobody", {"rows": ROWS}, "has no function 'nobody'"),
        ("no_such_module:f", {"rows": ROWS}, "cannot import no_such_module:f"),
        ("math_anwser", {}, "did you mean 'math_answer'"),
        ("test_audit_zoo:fair", {"rows": ROWS, "kind": "maths"}, "did you mean 'math'"),
        ("test_audit_zoo:fair", {"rows": ROWS, "reference": "anwser"}, "did you mean 'answer'"),
        ("test_audit_zoo:fair", {"rows": []}, "at least one row is needed"),
        ("test_audit_zoo:fair_and_async", {"rows": ROWS, "args": {"tolerance": 1}}, "no such argument"),
        ("regex_format", {}, "it needs 'pattern'"),
        ("test_audit_zoo:has_no_jail", {"rows": ROWS}, "bubblewrap is missing"),
    ],
)
def test_an_impossible_audit_gives_the_reason(function, options, words):
    with pytest.raises(RewardError) as caught:
        audit(function, **options)
    assert words in str(caught.value)


# -- references -------------------------------------------------------------------------------------------------------------


def test_rewrites_are_worth_the_same():
    assert texts(rewrite_reference("1234", by_value=True)) == ["  1234 ", "$1234$", "1234.0", "1,234", "1{,}234"]
    assert texts(rewrite_reference("0.5", by_value=True)) == [
        "  0.5 ", "$0.5$", "1/2", "\\frac{1}{2}", "\\dfrac{1}{2}", "0.50",
    ]  # fmt: skip
    assert "−7" in texts(rewrite_reference("-7", by_value=True))
    assert texts(rewrite_reference("1/3", by_value=True)) == ["  1/3 ", "$1/3$", "\\frac{1}{3}", "\\dfrac{1}{3}"]
    assert texts(rewrite_reference("Paris", by_value=False)) == ["  Paris "]
    for reference in ("42", "-7", "3.14", "3/4", "1,234", "-0.125"):
        for variant in rewrite_reference(reference, by_value=True):
            plain = variant.text.replace("$", "").replace("{,}", ",")
            assert read_number(plain) == read_number(reference), variant


def test_mutations_are_never_right():
    assert texts(mutate_reference("42", ["7", "42.0"])) == ["43", "41", "-42", "24", "420", "7"]
    assert texts(mutate_reference("3/4")) == ["4/4", "4/3", "-3/4", "34"]
    assert texts(mutate_reference("B")) == ["C"]
    assert texts(make_near_misses("42")) == ["42.01", "41.99", "42.5", "41.5"]
    assert texts(make_near_misses("42", tolerance=0.05)) == ["42.5", "41.5"]
    assert texts(make_near_misses("1/3")) == ["0.33"]
    assert texts(lengthen_reference("42")) == ["142", "427", "3429"]
    assert texts(lengthen_reference("Paris")) == ["unParis", "Parislike", "unParislike"]
    assert texts(cut_reference("42")) == ["2", "4"]
    assert texts(cut_reference("Paris")) == ["aris", "Pari"]
    assert cut_reference("7") == cut_reference("3.14") == cut_reference("(3, 4)") == []
    assert texts(continue_reference("4"))[:2] == ["4\\sqrt{2}", "4^2"]
    assert continue_reference("0") == continue_reference("1") == []  # 0 squared is 0
    assert "4²" in texts(disguise_answers("42", "43"))
    assert "\u202e24\u202c" in texts(disguise_answers("42", "43"))
    for reference in ("0", "42", "-7", "11", "3.14", "3/4", "1,234", "Paris", "(3, 4)", "2\\sqrt{3}"):
        wrong = [
            *mutate_reference(reference),
            *make_near_misses(reference),
            *lengthen_reference(reference),
            *cut_reference(reference),
        ]
        assert wrong
        assert not any(is_same_answer(variant.text, reference) for variant in wrong)


def test_a_whole_solution_gives_its_answer():
    assert read_reference("48 + 24 = 72\n#### 72") == "72"
    assert read_reference("so \\boxed{\\frac{1}{2}}.") == "\\frac{1}{2}"
    assert read_reference(18) == "18"
    assert read_reference(None) == ""


def test_no_sample_row_holds_an_answer_that_is_both_right_and_wrong():
    for row in MATH_ROWS:
        # `same` is blind to spaces, and "4 2" is not 42.
        wrong = [text for text in (*row.wrong, *texts(mutate_reference(row.reference))) if not re.search(r"\d \d", text)]
        assert not [(a, b) for a in (row.reference, *row.right) for b in wrong if is_same_answer(a, b)]


def test_tests_of_programs_are_read_in_their_formats():
    found = [[(test.args, test.expected) for test in read_tests(row.columns["tests"])] for row in CODE_ROWS]
    assert found[0] == [((1, 2), 3), ((-4, 4), 0), ((20, 22), 42)]
    assert found[1] == [(("Anna",), True), (("Otto!",), True), (("Ann",), False)]
    assert found[2][0] == (([1, 3, 2],), [1, 3, 3])
    assert found[3] == [(None, "3\n3\n"), (None, "6\n")]


def test_refactored_solutions_are_right():
    """Python itself runs what the audit has made of its own sample solutions."""
    for row in CODE_ROWS[:3]:
        for label, program in refactor_solution(row).items():
            space: dict = {"__name__": "audited"}
            exec(program, space)
            for test in read_tests(row.columns["tests"]):
                assert space[find_entry_point(row)](*test.args) == test.expected, label


def test_forms_speak_the_answer():
    written = {form.name: form.write("42") for form in attack_module.list_forms("FINAL: {answer}")}
    assert written["boxed"] == "\\boxed{42}"
    assert written["tag after thinking"].endswith("</think>\n<answer>42</answer>")
    assert written["template"] == "FINAL: 42"
    assert "bare after prose" not in written
    assert attack_module.find_template("3+9=12\n>1112", "1112") == ">{answer}"


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def rows_file(tmp_path):
    def write(rows):
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(json.dumps(row) for row in rows))
        return str(path)

    return write


def test_the_command_prints_and_writes_what_it_found_and_asks_the_same_questions_again(
    broken, rows_file, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    file = tmp_path / "audit.json"
    code = run_audit(["broken_rewards:substring"], rows=rows_file(ROWS), limit=FEW, json_file=file)
    printed = capsys.readouterr().out
    assert code == 1
    assert max(map(len, printed.splitlines())) <= 80
    for words in ("FLAW substring", "counts as a substring", "why", "fix", "2 flaws found (substring, missing_reference)"):
        assert words in printed
    data = json.loads(file.read_text())
    assert (data["exit_code"], data["clean"]) == (1, False)
    assert data["reports"][0]["flaws"] == ["substring", "missing_reference"]
    assert data["reports"][0]["findings"][0]["examples"][0]["score"] == 1.0
    shown = [[example["input"] for example in finding["examples"]] for finding in data["reports"][0]["findings"]]
    first = broken["substring"]
    assert data["reports"][0]["cases"] == first.cases
    assert shown == [[example.input for example in finding.evidence] for finding in first.findings]


def test_nothing_found_is_exit_code_0(rows_file, capsys):
    assert run_audit(["test_audit_zoo:fair"], rows=rows_file(ROWS), limit=FEW) == 0
    assert "test_audit_zoo:fair: nothing found in" in capsys.readouterr().out


def test_a_reward_that_cannot_be_audited_is_exit_code_2(rows_file, capsys):
    for words, options, message in [
        (["test_audit_zoo:fair"], {}, "--rows"),
        (["test_audit_zoo:fair", "x"], {"rows": rows_file(ROWS)}, "name=value"),
        ([], {}, "name the reward first"),
        (["test_audit_zoo:fair"], {"rows": "nowhere.jsonl"}, "no such file"),
        (["test_audit_zoo:fair"], {"rows": rows_file(ROWS), "columns": ["answer"]}, "PARAMETER=COLUMN"),
        (["test_audit_zoo:fair"], {"rows": rows_file(ROWS), "template": "FINAL"}, "{answer}"),
        (["math_answer"], {"reference": "target"}, "--reference: it names a column of the rows"),
        (["math_answer"], {"limit": 0}, "at least one row"),
        (["column_addition"], {"rows": rows_file(ROWS)}, "the recipe sets this"),
    ]:
        assert run_audit(words, **options) == 2
        assert message in capsys.readouterr().err


def test_every_reward_of_a_recipe_is_audited_with_its_rows_and_arguments(tmp_path, capsys):
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        '[prompts]\nsource = "task:column_addition"\nargs = { count = 6 }\n\n'
        "[[rewards]]\nfunction = \"math_answer\"\nargs = { pattern = '>(\\d+)\\s*$' }\n\n"
        '[[rewards]]\nfunction = "test_audit_zoo:has_a_box"\nname = "box"\nweight = 0.1\n'
    )
    file = tmp_path / "audit.json"
    assert run_audit([str(recipe)], limit=FEW, json_file=file) == 0
    first, second = json.loads(file.read_text())["reports"]
    assert (first["reward"], first["flaws"]) == ("math_answer", [])
    assert "template" in first["forms"]  # ">1112", learned from the demonstrations
    assert second["reward"] == "box"
    assert second["flaws"] == []
    assert "format_only" in second["notes"]  # not the outcome: worth knowing, no flaw
    capsys.readouterr()


# -- the shipped rewards -----------------------------------------------------------------------------------------------

ARGS = {
    "regex_format": {"pattern": r"\[.*\]"},
    "soft_overlong": {"longest": 100, "buffer": 20},
    "length": {"longest": 100},
}
NEEDS_A_SERVER = ("reward_model", "process_model", "judge")
"""Learned rewards: without a model there is nothing to call."""


def shipped():
    names = [*BUILT_IN, "cohort.rewards.gym.rows:gym_verifier", "cohort.data.column_addition:check_steps"]
    names = [name for name in names if not any(word in name for word in NEEDS_A_SERVER)]
    return prove_others(names, "exact_match", "think_format", "regex_format", "instructions")


@pytest.mark.parametrize("name", shipped())
def test_nothing_is_found_in_the_shipped_rewards(name):
    report = audit(name, args=ARGS.get(name))
    assert report.cases > 100
    assert [(finding.name, finding.evidence) for finding in report.findings] == []


def test_no_audit_leaves_files_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert audit("test_audit_zoo:evaluates", ROWS, limit=FEW).flaws
    assert list(Path(tmp_path).iterdir()) == []


def test_errors_of_the_audit_are_errors_made_for_people():
    assert issubclass(AuditError, CohortError)
