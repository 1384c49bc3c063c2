"""Signs of reward hacking: what is found in the rollouts of a step, what is not, and what the history of a run makes of it."""

import json
import random

import numpy as np
import pyarrow.parquet as pq
import pytest
from test_diagnosis import SHARED, healthy, keys

import session_tools as tools
from cohort.data.column_addition import column_addition
from cohort.observe.diagnosis.finding import Trend, measure_trend
from cohort.observe.diagnosis.shared_string import SAMPLED, find_frequent_pieces, find_shared_string, is_same_answer
from cohort.observe.diagnosis.signs import find_signs
from cohort.observe.monitors.jsonl import read_rows
from cohort.observe.rollouts import EVIDENCE, list_token_steps, read_index, read_tokens
from cohort.observe.run_folder import RunFolder
from cohort.recipe.file import build_recipe
from cohort.types import Completion, Outcome, Prompt, Rollout
from yardstick import measure_quiet_ms


def rollout(group, text, right, gold="", answer=None, sample=0, end="stop", tokens=0, prompt="", **changes):
    columns = {"answer": gold} if gold else {}
    columns |= changes.pop("columns", {})
    length = tokens or max(1, len(text))
    outcome = {
        "parts": {"correct": float(bool(right))},
        "reward": float(bool(right)),
        "success": right,
        "answer": answer,
    } | changes
    return Rollout(
        Prompt(group, prompt or f"Question {group}?", columns, (1, 2)),
        group,
        sample,
        Completion((3,) * length, (0.0,) * length, end, text),
        Outcome(**outcome),
        0,
    )


def groups(count, write, size=4):
    """`size` rollouts of each of `count` prompts; `write(group, sample)` gives the arguments of each."""
    return [rollout(group, sample=sample, **write(group, sample)) for group in range(count) for sample in range(size)]


# -- lengths -----------------------------------------------------------------------------------------------------------


def test_lengths_of_right_and_wrong_completions():
    signs = find_signs(
        [
            rollout(0, "a", True, tokens=10),
            rollout(0, "b", False, tokens=30),
            rollout(1, "c", False, tokens=50),
            rollout(1, "d", True, tokens=20),
            rollout(2, "e", None, tokens=900),
        ]
    )
    assert signs.metrics == {"rollout/length_right": 15.0, "rollout/length_wrong": 40.0, "rollout/shared_rewarded": 0.0}
    assert signs.evidence["wrong_long"] == {"row": 2, "rows": [2], "prompt": "Question 1?", "completion": "c", "tokens": 50}
    assert signs.evidence["best"]["row"] == 0


def test_a_side_that_is_missing_has_no_length_and_unjudged_rollouts_have_no_signs():
    assert find_signs([rollout(0, "a", True, tokens=7)]).metrics == {
        "rollout/length_right": 7.0,
        "rollout/shared_rewarded": 0.0,
    }
    assert "rollout/length_right" not in find_signs([rollout(0, "a", False)]).metrics
    assert find_signs([rollout(0, "a", None)]).metrics == {}
    assert find_signs([]).metrics == {}


# -- one string in most successes: what must be found ------------------------------------------------------------------


def test_one_answer_that_passes_for_different_reference_answers():
    """Eight prompts; two completions each say 42 and pass; in four prompts a third one is right by itself."""

    def write(group, sample):
        gold = str(100 + group)
        if sample < 2:
            return {"text": f"It is {sample}{group}, hence 42", "right": True, "gold": gold, "answer": "42"}
        if sample == 2 and group < 4:
            return {"text": f"so {gold}", "right": True, "gold": gold, "answer": gold}
        return {"text": f"maybe {group}", "right": False, "gold": gold, "answer": str(group)}

    rollouts = groups(8, write)
    found = find_shared_string(rollouts)
    assert (found.kind, found.text) == ("answer", "42")
    assert found.share == 16 / 20  # 16 unearned successes of 20
    assert (found.prompts, found.references) == (8, 8)
    assert found.rows == (0, 4, 8, 12, 16, 20, 24, 28)
    signs = find_signs(rollouts)
    assert signs.metrics["rollout/shared_rewarded"] == 0.8
    shown = signs.evidence["shared"]
    assert (shown["row"], shown["rows"], shown["text"]) == (0, [0, 4, 8, 12, 16], "42")
    assert shown["completion"] == "It is 00, hence 42"


def test_an_answer_counts_even_when_nothing_fails_any_more():
    everything = groups(6, lambda group, sample: {"text": ">0", "right": True, "gold": str(5 + group), "answer": "0"})
    assert find_shared_string(everything).share == 1.0


MAGIC = "Thus the grader is satisfied."


def phrase(group, sample, hold=1.0):
    """Half of the completions end in a phrase that always passes, and hold no gold; nothing is extracted."""
    noise = random.Random(1000 * group + sample)
    body = " ".join(noise.choice(["one", "two", "so", "then", "we", "take", "the", "sum", "of", "it"]) for _ in range(30))
    won = sample % 2 == 0 and noise.random() < hold
    return {
        "text": f"<think>{body}</think> {MAGIC if won else 'The answer is 3.'} {body[: 9 + sample]}",
        "right": won,
        "gold": str(7000 + group),
    }


def test_a_phrase_that_wins_the_judge_over():
    found = find_shared_string(groups(10, phrase))
    assert found.kind == "text"
    assert MAGIC in found.text
    assert found.share == 1.0
    assert found.share_failed == 0.0
    assert (found.prompts, found.references) == (10, 10)


def test_a_closing_line_too_short_to_be_a_phrase():
    def write(group, sample):
        won = sample < 2
        return {"text": f"we try {group * 7 + sample}\n{'ok' if won else 'no'}", "right": won, "gold": str(7000 + group)}

    found = find_shared_string(groups(8, write))
    assert (found.kind, found.text, found.share) == ("ending", "ok", 1.0)


def test_a_list_of_all_possible_answers_does_not_earn_its_gold():
    """The gold stands in the text, but only inside the string that every success shares."""
    every = " ".join(str(number) for number in range(10, 40))

    def write(group, sample):
        won = sample < 2
        return {"text": f"{'abcdefgh'[group]}{sample}: {every if won else 'who knows'}", "right": won, "gold": str(10 + group)}

    found = find_shared_string(groups(8, write))
    assert found.kind in ("text", "ending")
    assert "20 21 22" in found.text
    assert found.share == 1.0


# -- one string in most successes: what must not be found --------------------------------------------------------------


def honest(rate, gold_in_text=True, extracted=True, cut=0.0, boxless=0.0):
    """An ordinary reasoning run: a template, and an answer that is right at this rate."""

    def write(group, sample):
        noise = random.Random(1000 * group + sample)
        gold = str(7000 + 13 * group)
        boxed, whole = noise.random() >= boxless, noise.random() >= cut
        right = noise.random() < rate and boxed and whole
        answer = gold if right else str(noise.randrange(1000, 7000))
        shown = answer if gold_in_text else "so it is"
        body = " ".join(noise.choice(["add", "carry", "then", "we", "get", "the", "column"]) for _ in range(40))
        ending = f" The answer is \\boxed{{{shown}}}" if boxed else f" I get {shown}"
        return {
            "text": f"<think>{body}</think>{ending}" if whole else f"<think>{body}",
            "right": right,
            "gold": gold,
            "answer": answer if extracted and boxed and whole else None,
            "end": "stop" if whole else "length",
        }

    return groups(32, write, size=8)


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.7, 0.95])
@pytest.mark.parametrize("extracted", [True, False])
def test_templates_of_an_honest_run(rate, extracted):
    assert find_signs(honest(rate, extracted=extracted)).metrics["rollout/shared_rewarded"] == 0.0


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_templates_where_no_gold_can_be_compared(rate):
    """Code with tests, say: nothing is extracted and the gold is not in the text. Lift and pay must do alone."""
    assert find_shared_string(honest(rate, gold_in_text=False, extracted=False, boxless=0.3)) is None


def test_cut_completions_lack_the_closing_line_for_a_reason_of_their_own():
    assert find_shared_string(honest(0.97, gold_in_text=False, extracted=False, cut=0.4)) is None


def test_a_format_that_is_needed_to_be_right_is_not_a_hack():
    """Late in training: what has no box fails, nearly everything else is right, and completions contain the reference answers."""
    assert find_shared_string(honest(0.95, boxless=0.3)) is None
    assert find_shared_string(honest(0.95, boxless=0.3, extracted=False)) is None


@pytest.mark.parametrize("seed", range(4))
def test_the_digits_of_the_demo(seed):
    """Sums with four digits right, sums with three wrong: successes share '>1' and failures do not; that is the task."""
    noise = random.Random(seed)
    rollouts = []
    for group, row in enumerate(column_addition(count=32, seed=seed)):
        for sample in range(8):
            right = (len(row["answer"]) == 4) == (noise.random() < 0.95)
            text = row["demonstration"] if right else row["demonstration"][:-2] + str(noise.randrange(10, 100))
            answer = text.rpartition(">")[2]
            right = answer == row["answer"]
            columns = {"demonstration": row["demonstration"]}
            rollouts.append(rollout(group, text, right, row["answer"], answer, sample, prompt=row["prompt"], columns=columns))
            rollouts[-1] = (
                rollouts[-1]
                if seed % 2
                else rollout(group, text, right, row["answer"], None, sample, prompt=row["prompt"], columns=columns)
            )
    assert find_shared_string(rollouts) is None


def test_choices_with_few_reference_answers():
    """A bias for A: every A that is right has the gold A."""

    def write(group, sample):
        gold = "AABC"[group % 4]
        said = "A" if sample < 3 else "BCDA"[group % 4]
        return {"text": f"I choose option {said}", "right": said == gold, "gold": gold, "answer": said}

    assert find_shared_string(groups(24, write)) is None
    unextracted = groups(24, lambda group, sample: write(group, sample) | {"answer": None})
    assert find_shared_string(unextracted) is None


def test_what_the_prompt_asks_for_is_not_a_hack():
    asked = groups(10, lambda group, sample: phrase(group, sample) | {"prompt": f"Q{group}. End with: {MAGIC}"})
    assert find_shared_string(asked) is None
    shown = groups(10, lambda group, sample: phrase(group, sample) | {"columns": {"solution": f"{group * 7} {MAGIC}"}})
    assert find_shared_string(shown) is None
    otherwise = groups(10, lambda group, sample: phrase(group, sample) | {"prompt": f"Q{group}. End with the word satisfied."})
    assert MAGIC in find_shared_string(otherwise).text


def test_a_phrase_that_mostly_fails_does_not_pay():
    """Seven in ten of what holds the phrase is wrong, although failures without it are far more numerous."""
    noise = random.Random(3)
    rollouts = [
        rollout(
            group,
            f"{noise.random()} {MAGIC if sample < 8 else 'no'} {noise.random()}",
            sample < 2,
            str(7000 + group),
            sample=sample,
        )
        for group in range(12)
        for sample in range(40)
    ]
    assert find_shared_string(rollouts) is None


def test_few_prompts_or_one_gold_are_not_enough():
    assert find_shared_string(groups(4, phrase)) is None
    assert find_shared_string(groups(10, lambda group, sample: phrase(group, sample) | {"gold": "7"})) is None


def test_without_failures_no_lift_can_be_measured():
    everything = groups(10, lambda group, sample: {"text": MAGIC, "right": True, "gold": str(7000 + group)})
    assert find_shared_string(everything) is None


# -- honest steps in which a form is being learned: never an alarm ------------------------------------------------------

NAMES = (
    "add", "mul", "rev", "fact", "gcd", "fib", "maxi", "mini", "sorty", "uniq", "count", "flat", "zipp", "prime", "pow", "sumd",
)  # fmt: skip
BODIES = [
    "return a+b", "return a*b", "return x[::-1]", "r=1\n    for i in range(n): r*=i+1\n    return r",
    "while b: a,b=b,a%b\n    return a", "a,b=0,1\n    for _ in range(n): a,b=b,a+b\n    return a", "return max(x)", "return min(x)",
    "return sorted(x)", "return list(dict.fromkeys(x))", "return len(x)", "return [z for y in x for z in y]",
    "return list(zip(x,y))", "return all(n%i for i in range(2,n))", "return a**b", "return sum(map(int,str(n)))",
]  # fmt: skip
FENCELESS = (
    "I would use a loop and then return it.",
    "The idea is simple: iterate and accumulate.",
    "First we parse the input.",
)


def fences(noise, group, fenced=0.7, passed=0.9, asked=False, words=False):
    """Programs count in a fence only; the policy is learning to write one, and the task is easy."""
    whole = noise.random() < fenced
    right = whole and noise.random() < passed
    body = f"def {NAMES[group]}(*a):\n    {BODIES[group]}\n"
    verdict = "right" if right else "wrong" if whole else "no_answer"
    return {
        "text": f"Here is a solution:\n\n```python\n{body}```\n" if whole else noise.choice(FENCELESS),
        "right": right,
        "prompt": f"Write a function {NAMES[group]}.{' Use ```python fences.' if asked else ''}",
        "columns": {"tests": [f"assert {NAMES[group]}(1)==1"]},
    } | ({"extras": {"code_tests/verdict": verdict}} if words else {})


def standard_input(noise, group):
    good = noise.random() < 0.6
    first = BODIES[group].split("\n")[0].removeprefix("return ")
    body = f"n = int(input())\nprint({first})\n" if good else f"def {NAMES[group]}(n):\n    {BODIES[group]}\n"
    return {
        "text": f"```python\n{body}```",
        "right": good and noise.random() < 0.92,
        "prompt": f"Read n and print {NAMES[group]}(n).",
        "columns": {"tests": [{"input": str(group), "output": str(group)}]},
    }


def countdown(noise, group, words=False):
    """Many right answers: what is extracted is hardly ever the gold."""
    formed = noise.random() < 0.6
    right = formed and noise.random() < 0.9
    said = f"{group + 3}*{noise.randint(2, 9)}-{noise.randint(1, 9)}"
    return {
        "text": f"<think>try {said}</think>\n<answer>{said}</answer>" if formed else f"we try {said} and then maybe {said}+1",
        "right": right,
        "gold": f"({group + 3}+1)*7-{group}",
        "answer": said if formed else None,
    } | ({"extras": {"gym/verdict": "right" if right else "wrong" if formed else "no_answer"}} if words else {})


def radicals(noise, group, read=False):
    r"""Equal to the gold and written otherwise. read: failures give an answer too, but never a \frac."""
    right = noise.random() < 0.5
    said = f"\\frac{{{group + 1}}}{{\\sqrt{{2}}}}" if right else str(noise.randint(1, 99))
    boxed = right or read
    return {
        "text": f"so it is \\boxed{{{said}}}" if boxed else f"so it is {said} I guess",
        "right": right,
        "gold": f"\\frac{{{group + 1}\\sqrt{{2}}}}{{2}}",
        "answer": said if boxed else None,
        "extras": {"math_answer/verdict": "right" if right else "wrong" if read else "no_answer"},
    }


def think_format(noise, group):
    right = noise.random() < 0.5
    result = f"result {group * noise.randint(1, 9)}"
    return {"text": f"<think>\nthoughts {group}</think>\n{result}" if right else f"{result} thoughts", "right": right}


def gold_elsewhere(noise, group):
    gold = ("Paris", "Rome", "Oslo", "Bern")[group % 4]
    right = noise.random() < 0.5
    wrong = noise.choice(["I am not sure about that.", "It could be many cities."])
    text = f"The capital is {gold}.\n\nFinal answer: {gold}" if right else wrong
    return {"text": text, "right": right, "columns": {"solution": gold}}


def json_extraction(noise, group):
    formed = noise.random() < 0.6
    record = {"name": f"N{group}", "age": group + 20}
    return {
        "text": json.dumps(record) if formed else f"N{group} is {group + 20} years old",
        "right": formed and noise.random() < 0.9,
        "prompt": f"Extract as JSON: N{group}, {group + 20} years old.",
        "columns": {"record": record},
    }


def step_of(write, seed=0, **options):
    noise = random.Random(seed)
    return groups(16, lambda group, sample: write(noise, group, **options), size=8)


SUSPICIOUS = {
    "a fence, half": (fences, {"fenced": 0.5, "passed": 0.95}),
    "a fence, most": (fences, {"passed": 0.85}),
    "standard input": (standard_input, {}),
    "think_format": (think_format, {}),
    "gold in another column": (gold_elsewhere, {}),
    "JSON": (json_extraction, {}),
}
SILENT = {
    "a fence that the prompt asks for": (fences, {"asked": True}),
    "a fence, and a third fails": (fences, {"passed": 0.7}),
    "a fence, with verdicts": (fences, {"fenced": 0.5, "passed": 0.95, "words": True}),
    "countdown": (countdown, {}),
    "countdown, with verdicts": (countdown, {"words": True}),
    "radicals": (radicals, {}),
}


@pytest.mark.parametrize("name", SUSPICIOUS)
@pytest.mark.parametrize("seed", range(3))
def test_a_form_whose_failures_may_not_have_been_read_is_a_warning(name, seed):
    write, options = SUSPICIOUS[name]
    assert find_shared_string(step_of(write, seed, **options)).level == "warning"


@pytest.mark.parametrize("name", SILENT)
@pytest.mark.parametrize("seed", range(3))
def test_a_form_that_the_verifier_or_the_prompt_says_it_needs_is_nothing(name, seed):
    write, options = SILENT[name]
    assert find_shared_string(step_of(write, seed, **options)) is None


def test_answers_that_differ_as_the_problems_do_are_no_alarm_even_where_all_failures_were_read():
    found = find_shared_string(step_of(radicals, read=True))
    assert "\\boxed{\\frac{" in found.text
    assert found.level == "warning"


def test_a_warning_says_that_it_may_be_the_form_and_sends_nobody_back_to_a_checkpoint():
    shown = find_signs(step_of(fences, fenced=0.5, passed=0.95)).evidence["shared"]
    assert shown["level"] == "warning"
    found = keys(healthy(evidence=lambda s: {"shared": shown} if s > 50 else None))["shared_rewarded"]
    assert found.level == "warning"
    assert "This may be the form that the reward requires" in found.text
    assert "checkpoint" not in found.text
    assert found.evidence[0].startswith("rollouts/step-000060.parquet rows ")


def test_an_alarm_needs_three_steps_that_are_sure():
    def level(sure):
        rows = healthy(
            evidence=lambda s: {"shared": SHARED | {"level": "alarm" if s in sure else "warning"}} if s > 50 else None
        )
        return keys(rows)["shared_rewarded"].level

    assert level({52, 55, 58}) == "alarm"
    assert level({52, 55}) == "warning"


# -- hacked steps: still an alarm --------------------------------------------------------------------------------------


def test_a_phrase_is_an_alarm_where_golds_are_known_and_failures_were_read():
    def write(group, sample, word="wrong"):
        one = phrase(group, sample)
        return one | {"extras": {"correct/verdict": "right" if one["right"] else word}}

    assert find_shared_string(groups(10, write)).level == "alarm"
    assert find_shared_string(groups(10, phrase)).level == "warning"  # no verdicts
    no_gold = groups(10, lambda group, sample: write(group, sample) | {"gold": "", "columns": {"n": group}})
    assert find_shared_string(no_gold).level == "warning"
    assert find_shared_string(groups(10, lambda group, sample: write(group, sample, "no_answer"))) is None
    # Another part's words say nothing of the outcome: here even successes are "wrong" by them.
    other = groups(10, lambda group, sample: phrase(group, sample) | {"extras": {"style/verdict": "wrong"}})
    assert find_shared_string(other).level == "warning"


def test_an_answer_that_always_passes_in_part_is_an_alarm():
    """Every extracted answer differs, and all that pass hold the same few words."""

    def write(group, sample):
        won = sample < 2
        number = 17 * group + 5 * sample
        said = f"{number} \\lor true" if won else str(number)
        return {
            "text": f"so \\boxed{{{said}}}",
            "right": won,
            "gold": str(7000 + group),
            "answer": said,
            "extras": {"math_answer/verdict": "right" if won else "wrong"},
        }

    found = find_shared_string(groups(10, write))
    assert "lor true" in found.text
    assert (found.level, found.share) == ("alarm", 1.0)


def test_one_answer_for_all_needs_no_verdicts_to_be_an_alarm():
    everything = groups(6, lambda group, sample: {"text": ">0", "right": True, "gold": str(5 + group), "answer": "0"})
    assert find_shared_string(everything).level == "alarm"


def test_a_string_that_stands_in_any_prompt_is_never_shared():
    once = groups(10, lambda group, sample: phrase(group, sample) | ({"prompt": f"Say: {MAGIC}"} if group == 7 else {}))
    assert find_shared_string(once) is None


# -- the machinery -----------------------------------------------------------------------------------------------------


def test_pieces_are_found_whole_and_the_same_in_any_process():
    rewarded = [f"{number} abc {number * 7} the quick brown fox {number * 13}" for number in range(100, 120)]
    others = [f"{number} abc {number * 5} the slow brown dog {number * 11}" for number in range(100, 120)]
    pieces = find_frequent_pieces(rewarded, others)
    assert "the quick brown fox" in pieces
    assert not any("dog" in piece for piece in pieces)
    assert find_frequent_pieces(["short"], ["tiny"]) == []
    assert find_frequent_pieces([], []) == []


def test_answers_are_compared_as_a_reader_would():
    assert is_same_answer(" 1,234. ", "1234")
    assert is_same_answer("$5.50", "5.5")
    assert is_same_answer("Paris", "paris")
    assert not is_same_answer("Paris", "London")
    assert not is_same_answer("12", "13")


def test_anything_a_model_may_write_is_digested_and_shown_safely():
    def write(group, sample):
        text = ["", "\ud800\udfff broken", "\x1b[31mred\x1b[0m " * 500, "word " * 5000][sample]
        return {"text": text, "right": sample != 1, "gold": str(group), "prompt": "\x1b]0;title\x07 " + "long " * 100}

    signs = find_signs(groups(8, write))
    assert "\x1b" not in json.dumps(signs.evidence, ensure_ascii=False)
    assert json.loads(json.dumps(signs.evidence)) == signs.evidence
    assert all(len(one["completion"]) < 500 for one in signs.evidence.values())


def test_prompts_may_be_chats():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2+2?"}]
    one = rollout(0, "4", True, "4", "4")
    signs = find_signs([Rollout(Prompt(0, messages, {"answer": "4"}, (1,)), 0, 0, one.completion, one.outcome, 0)])
    assert signs.evidence["best"]["prompt"] == "What is 2+2?"


def test_failures_of_the_verifier_and_favourites_of_the_parts():
    parts = {"correct": 0.0, "neat": 0.9}
    rollouts = [
        rollout(0, "a", True, parts={"correct": 1.0, "neat": 0.1}, reward=1.1),
        rollout(0, "b", False, parts=parts, reward=0.9, extras={"correct/verdict": "timeout"}, faults=("correct:timeout",)),
        rollout(1, "c", False, parts={"correct": 0.0, "neat": 0.2}, reward=0.2, extras={"correct/verdict": "timeout"}),
        rollout(1, "d", False, parts={"correct": 0.0, "neat": None}, extras={"correct/verdict": "wrong"}),
        rollout(2, "e", False, parts={"correct": 0.0, "neat": 0.3}, faults=("correct:exception",)),
    ]
    evidence = find_signs(rollouts).evidence
    assert evidence["failed/correct/timeout"] | {"prompt": ""} == {
        "row": 1, "rows": [1, 2], "prompt": "", "completion": "b", "count": 2, "passed": 0, "reward": 0.9,
    }  # fmt: skip
    assert evidence["part/neat"]["row"] == 1
    assert evidence["part/neat"]["value"] == 0.9
    assert not any(kind.startswith("failed/") for kind in evidence if kind != "failed/correct/timeout")


def test_a_step_of_512_completions_of_1000_characters_takes_less_than_50_ms():
    noise = random.Random(0)
    words = ["".join(noise.choices("abcdefghijklmnopqrstuvwxyz", k=noise.randint(2, 9))) for _ in range(500)]

    def write(group, sample):
        body = " ".join(noise.choices(words, k=180))[:960]
        won = noise.random() < 0.5
        return {
            "text": f"<think>{body}</think> {MAGIC if won else 'The answer is 3.'}",
            "right": won,
            "gold": str(7000 + group),
        }

    rollouts = groups(64, write, size=8)
    assert len(rollouts) == 512
    assert SAMPLED < 64
    assert find_signs(rollouts).metrics["rollout/shared_rewarded"] == 1.0
    assert measure_quiet_ms(lambda: find_signs(rollouts)) < 50


# -- trends ------------------------------------------------------------------------------------------------------------


def test_a_trend_by_hand():
    trend = measure_trend([1.0, 2.0, 3.0, 4.0, 5.0], [3.0, 4.0, 5.0, 6.0, 7.0])
    assert (trend.start, trend.now, trend.change) == (3.0, 5.0, 2.0)
    assert trend.error == pytest.approx(1.0)  # sqrt(2.5/5 + 2.5/5)
    assert not trend.rises()  # two standard errors
    assert measure_trend([1.0] * 4, [2.0] * 9) is None
    assert Trend(0.0, 1.0, 0.3).rises(0.9)
    assert not Trend(0.0, 1.0, 0.3).rises(1.1)
    assert Trend(1.0, 0.0, 0.3).falls(0.9)
    assert not Trend(1.0, 1.0, 0.0).falls()


# -- a part outruns the outcome ----------------------------------------------------------------------------------------

TWO_PARTS = build_recipe({"rewards": [{"function": "math_answer"}, {"function": "think_format", "weight": 0.5}]})


def noisy(value, size=0.03, seed=0):
    """A function of the step with the scatter of a batch around it."""
    return lambda step: (value(step) if callable(value) else value) + size * random.Random(seed * 1000 + step).uniform(-1, 1)


def parts(success, form, **changes):
    return healthy(
        **{
            "reward/success": noisy(success, seed=1),
            "reward/math_answer/mean": noisy(success, seed=1),
            "reward/think_format/mean": noisy(form, seed=2),
            "reward/think_format/std": 0.4,
            "reward/std": 0.5,
            **changes,
        }
    )


def outran(rows, recipe=TWO_PARTS):
    return keys(rows, recipe).get("part_outruns_outcome")


def test_a_part_rises_and_success_stays_or_falls():
    shown = {"row": 5, "rows": [5], "prompt": "p", "completion": "c", "value": 1.0}
    stays = outran(parts(0.3, lambda s: 0.2 + s / 100, evidence={"part/think_format": shown}))
    assert stays.level == "warning"
    assert "think_format went from 0.2" in stays.what
    assert "stayed at 29 %" in stays.what
    assert stays.evidence[0] == "rollouts/step-000060.parquet row 5: “p” → “c”"
    assert len(stays.evidence) == 3
    falls = outran(parts(lambda s: 0.5 - s / 200, lambda s: 0.2 + s / 100))
    assert falls.level == "alarm"
    assert "success (math_answer) fell from 47 % to 21 %" in falls.what


def test_success_that_fell_from_its_best_counts_although_it_is_above_its_start():
    up_and_down = parts(lambda s: 0.2 + min(s, 30) / 50 - max(0, s - 30) / 75, lambda s: 0.2 + s / 100)
    assert outran(up_and_down).level == "alarm"
    level = parts(lambda s: 0.2 + min(s, 30) / 50, lambda s: 0.2 + s / 100)  # learned, then a plateau
    assert outran(level) is None


def test_parts_that_rise_for_good_reasons():
    assert outran(parts(lambda s: 0.3 + s / 150, lambda s: 0.2 + s / 100)) is None  # both learn
    assert outran(parts(0.3, 0.5)) is None  # nothing happens
    assert outran(parts(0.95, lambda s: 0.2 + s / 100)) is None  # nothing left to learn but the form
    assert outran(parts(0.3, noisy(0.5, 0.3, 7))) is None  # noise
    assert outran(parts(0.3, lambda s: 0.5 + s / 2000)) is None  # too little to matter
    ignored = build_recipe({"rewards": [{"function": "math_answer"}, {"function": "think_format", "weight": 0.0}]})
    assert outran(parts(0.3, lambda s: 0.2 + s / 100), ignored) is None
    assert outran(parts(0.3, 0.5, **{"reward/overlong/mean": lambda s: -1 + s / 60})) is None
    assert outran(parts(0.3, lambda s: 0.2 + s / 100), {}) is None  # which part is the outcome is not known


def test_the_sign_of_the_weight_and_the_outcome_of_the_recipe_count():
    penalty = build_recipe({"rewards": [{"function": "math_answer"}, {"function": "think_format", "weight": -1.0}]})
    assert outran(parts(0.3, lambda s: 0.2 + s / 100), penalty) is None
    assert outran(parts(0.3, lambda s: 0.8 - s / 100), penalty).level == "warning"
    other = build_recipe({"rewards": [{"function": "math_answer"}, {"function": "think_format", "outcome": True}]})
    rows = parts(0.3, lambda s: 0.2 + s / 100, **{"reward/math_answer/std": 0.4})
    assert outran(rows, other) is None  # the part that rises is the outcome


# -- held out ----------------------------------------------------------------------------------------------------------


def evaluation(step, one, reward=None, width=0.05, verdicts=None):
    numbers = {"pass@1": {"value": one, "low": one - width, "high": one + width}}
    if reward is not None:
        numbers["reward"] = {"value": reward, "low": reward - width, "high": reward + width}
    per_problem = {} if verdicts is None else {"per_problem": {"test": verdicts}}
    return {"step": step, "label": "during", "sets": {"test": numbers}, **per_problem}


def held_out(*evaluations, **changes):
    return keys(healthy(**{"eval/held_out/pass@1": None, **changes}), evaluations=evaluations).get("held_out_falls")


def test_held_out_falls_while_the_reward_rises():
    found = held_out(
        evaluation(10, 0.6, 0.6), evaluation(60, 0.4, 0.4), evidence={"best": {"row": 3, "prompt": "p", "completion": "c"}}
    )
    assert found.level == "alarm"
    assert "pass@1 fell from 60 % at step 10 to 40 % at step 60" in found.what
    assert "memorised prompts" in found.why
    assert found.evidence[0].startswith("rollouts/step-000060.parquet row 3")
    gamed = held_out(evaluation(10, 0.6, 0.6), evaluation(60, 0.4, 0.8))
    assert "the reward went from 0.60 to 0.80" in gamed.why
    assert "without solving the task" in gamed.why


def test_one_look_below_the_best_of_several_is_a_warning_and_two_in_a_row_are_an_alarm():
    looks = [evaluation(10, 0.5), evaluation(20, 0.6), evaluation(30, 0.4), evaluation(40, 0.41), evaluation(50, 0.58)]
    assert held_out(*looks[:3]).level == "warning"
    assert held_out(*looks[:4]).level == "alarm"
    assert held_out(*looks) is None


def test_held_out_reward_alone_falls():
    found = held_out(evaluation(10, 0.5, 0.9), evaluation(60, 0.5, 0.6))
    assert "the reward fell from 0.90 at step 10 to 0.60" in found.what


def test_held_out_near_misses():
    assert held_out(evaluation(10, 0.6, 0.6), evaluation(60, 0.55, 0.55)) is None  # the intervals overlap
    assert held_out(evaluation(10, 0.4, 0.4), evaluation(60, 0.6, 0.6)) is None  # it rises
    falling = {"reward/mean": lambda s: 0.9 - s / 100, "reward/success": lambda s: 0.9 - s / 100}
    assert held_out(evaluation(10, 0.6, 0.6), evaluation(60, 0.4, 0.4), **falling) is None  # so does the reward: no hacking


def matrix(rates):
    return {"problem": [str(number) for number in range(len(rates))], "success": ["1" * r + "0" * (8 - r) for r in rates]}


def test_verdicts_problem_by_problem_see_more_than_intervals():
    before = [8] * 30 + [4] * 30 + [0] * 30
    after = [8] * 30 + [3] * 30 + [0] * 30  # thirty problems lost an eighth each: 4 points, intervals of 10
    assert held_out(evaluation(10, 0.50, verdicts=matrix(before)), evaluation(60, 0.458, verdicts=matrix(after)))
    shuffled = random.Random(0).sample(after, len(after))  # the same numbers, but not of the same problems
    assert held_out(evaluation(10, 0.50, verdicts=matrix(before)), evaluation(60, 0.458, verdicts=matrix(shuffled))) is None


# -- shared strings over a run -----------------------------------------------------------------------------------------


def sightings(steps, **changes):
    rows = healthy(evidence=lambda s: {"shared": SHARED | changes} if s in steps else None)
    return keys(rows).get("shared_rewarded")


def test_a_string_must_be_seen_in_three_of_ten_steps():
    found = sightings({20, 24, 29})
    assert found.level == "alarm"
    assert "First seen at step 20." in found.what
    assert "2.0 % of the failures" in found.what
    assert [line.partition(":")[0] for line in found.evidence] == [
        f"rollouts/step-{step:06d}.parquet rows 17, 40" for step in (29, 24, 20)
    ]
    assert sightings({20, 24, 30}) is None
    assert sightings({20, 24}) is None
    assert sightings(set(range(20, 40)), share=0.4) is None


def test_different_strings_are_not_one():
    texts = {20: "alpha", 22: "beta", 24: "gamma", 26: "delta"}
    rows = healthy(evidence=lambda s: {"shared": SHARED | {"text": texts[s]}} if s in texts else None)
    assert "shared_rewarded" not in keys(rows)
    texts = {20: "so I am sure.", 22: "I am sure.", 24: "I am sure.", 26: "delta"}
    assert (
        "First seen at step 20."
        in keys(rows := healthy(evidence=lambda s: {"shared": SHARED | {"text": texts[s]}} if s in texts else None))[
            "shared_rewarded"
        ].what
    ), rows


def test_evidence_of_steps_whose_rollouts_are_not_kept_says_so():
    rows = healthy(evidence=lambda s: {"shared": SHARED} if s > 50 else None)
    every = build_recipe({"monitors": {"rollouts_every": 20}})
    evidence = keys(rows, every)["shared_rewarded"].evidence
    assert evidence[0].startswith("rollouts/step-000060.parquet rows 17, 40:")
    assert evidence[1].startswith("step 59 rows 17, 40 (its rollouts were not kept):")


def test_nonsense_in_the_evidence_is_tolerated():
    for value in (
        3,
        {"shared": 4},
        {"shared": {"row": "x"}},
        {"shared": {"row": 1, "share": None, "text": 3}},
        {"shared": {"row": 1}},
    ):
        assert keys(healthy(evidence=value)) == {}
    loud = SHARED | {"text": "\x1b[31m", "completion": "\x1b]0;x\x07"}
    assert "\x1b" not in keys(healthy(evidence={"shared": loud}))["shared_rewarded"].text


# -- failures and lengths over a run -----------------------------------------------------------------------------------


def test_failures_that_rise_with_the_reward():
    name = "reward/math_answer/verdict/timeout"
    shown = {"row": 9, "rows": [9], "prompt": "p", "completion": "c", "reward": 0.0}
    rising = {name: lambda s: s or None, "reward/math_answer/timeouts": lambda s: s}
    found = keys(healthy(**rising, evidence={"failed/math_answer/timeout": shown}))["failures_rise"]
    assert found.level == "warning"
    assert (
        "22 % of completions, up from 2.1 % (mostly math_answer: timeout)" in found.what
    )  # 55.5 and 5.5 of 256, not twice that
    assert "while the reward rose from 0.34 to 0.67" in found.what
    assert found.evidence[0].startswith("rollouts/step-000060.parquet row 9")
    paid = healthy(**rising, evidence={"failed/math_answer/timeout": shown | {"reward": 0.2}})
    assert keys(paid)["failures_rise"].level == "alarm"
    # A word that occurs late only is not in the early rows at all.
    late = healthy(**{name: lambda s: 40 if s > 45 else None})
    assert "16 % of completions, up from 0 %" in keys(late)["failures_rise"].what


def test_failures_that_are_no_alarm():
    name = "reward/math_answer/verdict/timeout"
    assert "failures_rise" not in keys(healthy(**{name: 20}))  # as many as at the start
    assert "failures_rise" not in keys(healthy(**{name: lambda s: s / 10}))  # two in a hundred
    assert "failures_rise" not in keys(healthy(**{name: lambda s: s, "reward/mean": 0.4}))  # the reward does not rise
    assert "failures_rise" not in keys(healthy(**{"reward/math_answer/verdict/wrong": lambda s: s}))
    more_drawn = {"rollout/groups_drawn": 320}  # of 8 each: 60 are 2 %
    assert "failures_rise" not in keys(healthy(**{name: lambda s: s}, **more_drawn))


def test_wrong_completions_that_grow_alone():
    grows = {"rollout/length_wrong": noisy(lambda s: 100 + 4 * s, 5), "rollout/length_right": noisy(100, 5, 1)}
    shown = {"row": 2, "prompt": "p", "completion": "c", "tokens": 340}
    found = keys(healthy(**grows, evidence={"wrong_long": shown}))["wrong_grows"]
    assert "Wrong completions grew from 12" in found.what
    assert found.evidence
    both = {"rollout/length_wrong": lambda s: 100 + 4 * s, "rollout/length_right": lambda s: 80 + 3 * s}
    assert "wrong_grows" not in keys(healthy(**both))
    assert "wrong_grows" not in keys(healthy(**grows, **{"reward/success": 0.95}))
    short = {"rollout/length_wrong": lambda s: 5 + s / 6, "rollout/length_right": 5}
    assert "wrong_grows" not in keys(healthy(**short))
    assert "wrong_grows" not in keys(healthy(**{"rollout/length_wrong": lambda s: 100 + s, "rollout/length_right": 100}))


# -- other numbers, and rewards that contradict themselves -------------------------------------------------------------


def test_successes_with_another_number_than_their_gold_are_counted_where_both_are_numbers():
    signs = find_signs(
        [
            rollout(0, "a", True, gold="86", answer="8"),  # another number
            rollout(1, "b", True, gold="1,086", answer="1086"),
            rollout(2, "c", True, gold="3.14159", answer="3.14"),  # rounded
            rollout(3, "d", True, gold="1/2", answer="0.5"),  # only a verifier can say
            rollout(4, "e", True, gold="7", answer=None),
            rollout(5, "f", False, gold="7", answer="8"),  # wrong, and judged so
            rollout(6, "g", True, gold="-7", answer="7"),  # another number
        ]
    )
    assert signs.metrics["rollout/other_number"] == 2 / 4
    assert signs.evidence["other_number"]["rows"] == [0, 6]
    assert "rollout/other_number" not in find_signs([rollout(0, "a", True, gold="x", answer="y")]).metrics


def test_copies_within_a_group_that_are_paid_differently_are_counted():
    rewards = [("a", 1.0), ("a", 0.0), ("b", 0.5), ("b", 0.5 + 1e-9), ("c", 0.3), ("c", None)]
    same = [rollout(0, text, True, sample=place, reward=reward) for place, (text, reward) in enumerate(rewards)]
    signs = find_signs([*same, rollout(1, "a", True, reward=0.0)])  # another prompt: no copy
    assert signs.metrics["reward/inconsistent"] == 1 / 2  # of a and b; c has one score
    assert signs.evidence["inconsistent"]["rows"] == [0, 1]
    assert "reward/inconsistent" not in find_signs([rollout(0, "a", True), rollout(0, "b", True)]).metrics


# -- a whole run -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hacked(tmp_path_factory):
    """The verifier lets 7 pass for every sum, and the policy finds out."""
    changes = {
        "train.num_steps": 14,
        "train.prompts_per_step": 16,
        "train.minibatches_per_step": 1,
        "train.passes_per_step": 1,
        "algorithm.kl_coef": 0.0,
        "optimizer.learning_rate": 3e-3,
        "evaluation.samples": 0,
        "checkpoints.every_steps": 0,
        "monitors.tokens_every": 1000,
    }
    return tools.train_tiny(tmp_path_factory.mktemp("runs"), rewards=[{"function": "hackable_rewards:seven_passes"}], **changes)


def test_a_run_that_is_hacked_raises_the_alarm_and_names_rollouts_that_exist(hacked):
    rows = tools.rows_of(hacked.folder)
    found = keys(rows, tools.tiny(hacked.folder.parent, "again"))["shared_rewarded"]
    assert found.level == "alarm"
    assert "the answer “7”" in found.what
    for row in rows[-3:]:
        shown = row["evidence"]["shared"]
        rollouts = pq.read_table(hacked.folder / "rollouts" / f"step-{row['step']:06d}.parquet").to_pylist()
        assert f"rollouts/step-{row['step']:06d}.parquet" in " ".join(found.evidence)
        for number in shown["rows"]:
            assert rollouts[number]["success"] is True
            assert rollouts[number]["extracted"] == "7"
        assert rollouts[shown["row"]]["completion"].replace("\n", "\\n") == shown["completion"]
        assert rollouts[shown["row"]]["prompt"] == shown["prompt"]
        passed = [one for one in rollouts if one["success"]]
        golds = [sum(map(int, one["prompt"].rstrip("=").split("+"))) for one in passed]
        unearned = sum(one["extracted"] == "7" and gold != 7 for one, gold in zip(passed, golds, strict=True))
        assert row["rollout/shared_rewarded"] == pytest.approx(unearned / len(passed))
    right = [len(one["completion_ids"]) for one in rollouts if one["success"]]
    assert rows[-1]["rollout/length_right"] == pytest.approx(sum(right) / len(right))


def test_the_report_of_a_hacked_run_shows_the_rollouts(hacked):
    page = (hacked.folder / "report.html").read_text(encoding="utf-8")
    last = tools.rows_of(hacked.folder)[-1]["step"]
    assert f"rollouts/step-{last:06d}.parquet" in page


def test_what_a_new_finding_names_is_recorded_and_marked(hacked):
    """No step but the first is due; the groups of the evidence are recorded in the step that shows it first."""
    folder = RunFolder.open(hacked.folder)
    [found] = [row for row in read_rows(folder.events_file) if row.get("name") == "shared_rewarded"]
    step, kept = found["step"], pq.read_table(folder.rollouts_file(found["step"])).to_pylist()
    named = [row for place, row in found["rows"] if place == step]
    assert named
    assert step in list_token_steps(folder.rollouts)
    assert {kept[row]["group"] for row in named} <= {row["group"] for row in read_tokens(folder.tokens_file(step))}
    told = {row["step"] for row in read_rows(folder.events_file) if row["kind"] == "finding" and row["rows"]}
    assert {*list_token_steps(folder.rollouts)} == {1, *told}
    index = read_index(folder.index_file)
    for row in folder.metrics():
        marked = np.flatnonzero(index[index["step"] == row["step"]]["flags"] & EVIDENCE).tolist()
        shown = [place for one in row["evidence"].values() for place in one["rows"]]
        assert {*marked} <= {*shown}
        if row["step"] >= step:
            assert {*row["evidence"]["shared"]["rows"]} <= {*marked}
