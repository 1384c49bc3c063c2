"""math_answer, exact_match and the format rewards: verdicts on a table, and texts that might break or slow them."""

from __future__ import annotations

import time
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.errors import RewardError
from cohort.rewards import BUILT_IN, built_in, exact_match, math_answer, regex_format, think_format
from cohort.rewards.learned.judge_client import write_value as shown_to_the_judge
from cohort_verify.math.answer import Comparer
from cohort_verify.math.find import find_answer, write_cell, write_reference
from cohort_verify.math.readers import read_answer, read_parts
from cohort_verify.math.text import LOOSE_SPACE, REPLACEMENTS, normalise, unify_characters
from rewards_page import BEGIN, END, insert_list, make_page

extract = math_answer.extract

# (completion, gold, verdict)
TABLE = [
    # where the answer is found
    (r"\boxed{4}", "4", 1),
    (r"\boxed{3} no: \boxed{4}", "4", 1),
    (r"\boxed{4} no: \boxed{3}", "4", 0),
    (r"\boxed{4} and \boxed{5", "4", 1),
    (r"\boxed{\frac{1}{2}}", "0.5", 1),
    (r"\boxed{\boxed{4}}", "4", 1),
    (r"\boxed{\{1,2\}}", r"\{1,2\}", 1),
    (r"\boxed{}", "4", 0),
    ("6*7=42\n#### 42", "42", 1),
    ("#### 41\nwait\n#### 42", "42", 1),
    ("#### Solution\nThe answer is 42.", "42", 1),
    ("The answer is 42.", "42", 1),
    ("The answer is 42. I hope that helps.", "42", 1),
    ("The answer is 42, since 6*7=42.", "42", 1),
    ("The answer is: **42**", "42", 1),
    ("The final answer is (1, 2).", "(1,2)", 1),
    ("Answer: 42", "42", 1),
    ("The answer isn't 42", "42", 0),
    ("42", "42", 0),
    ("so it must be 42", "42", 0),
    ("", "42", 0),
    (r"<think>\boxed{5}</think> The answer is 4", "4", 1),
    (r"<think>\boxed{4}</think> I do not know", "4", 0),
    (r"hm \boxed{4}</think> \boxed{5}", "5", 1),
    (r"<think>so \boxed{4}</think>", "4", 0),  # a box only inside the thinking is no answer
    (r"\boxed{4} <think>or \boxed{5}?</think> done", "4", 1),
    # tags: the last block that is closed, and nothing outside of it
    ("<think>6*7</think><answer>42</answer>", "42", 1),
    ("6*7</think>\n<answer>\n42\n</answer>\n", "42", 1),
    ("<answer>1/2</answer>", "0.5", 1),
    ("<answer>$x = 42$.</answer>", "42", 1),
    ("<answer>5</answer> no: <answer>42</answer>", "42", 1),
    ("<answer>42</answer> no: <answer>5</answer>", "42", 0),
    ("<answer>42</answer> and <answer>5", "42", 1),
    ("<answer>42</answer><answer></answer>", "42", 0),
    ("in <answer> tags: <answer>42</answer>", "42", 1),
    ("<answer>5 <answer>42</answer></answer>", "42", 1),
    ("<answer>42", "42", 0),
    ("42</answer>", "42", 0),
    ("</answer>42<answer>", "42", 0),
    ("<Answer>42</Answer>", "42", 0),
    ("<answer></answer>", "42", 0),
    ("<answer>42 or 5</answer>", "42", 0),
    ("<answer>I think that it is 42</answer>", "42", 0),
    ("<answer>5, 42, 7</answer>", "42", 0),
    (r"\boxed{5} <answer>42</answer>", "42", 1),
    (r"\boxed{42} <answer>5</answer>", "42", 0),
    (r"<answer>42</answer> \boxed{5}", "42", 1),
    (r"<answer>5</answer> \boxed{42}", "42", 0),
    ("<answer>5</answer> The answer is 42.", "42", 0),
    ("<answer>5</answer>\n#### 42", "42", 0),
    (r"<answer></answer> \boxed{42}", "42", 0),
    (r"<answer>5 \boxed{42}", "42", 1),  # a tag that is never closed says nothing
    (r"<answer>so it is \boxed{42}.</answer>", "42", 1),
    (r"<answer>\boxed{42} no: \boxed{5}</answer>", "42", 0),
    (r"<answer>42 \boxed{5}</answer>", "42", 0),
    (r"<answer>\boxed{42</answer>}", "42", 0),
    (r"<answer>\boxed 42</answer>", "42", 1),
    (r"<answer>42 \boxed{}</answer>", "42", 0),
    ("<answer>The answer is 42.</answer>", "42", 1),
    ("<answer>6*7 = 42\n#### 42</answer>", "42", 1),
    ("<think><answer>42</answer></think>", "42", 0),
    ("<think><answer>42</answer></think> I do not know", "42", 0),
    ("<think><answer>5</answer></think> The answer is 42", "42", 1),
    ("<answer>42</answer> <think>or <answer>5</answer>?</think>", "42", 1),
    ("<answer>42<think></answer>", "42", 0),
    ("<answer>4</think>2</answer>", "42", 0),
    ("<answer>42</answer>", "<think>6*7</think><answer> 42 </answer>", 1),
    ("<answer>5</answer>", "<think>6*7</think><answer> 42 </answer>", 0),
    # how numbers are written
    (r"\boxed{1/2}", r"\frac{1}{2}", 1),
    (r"\boxed{\dfrac12}", "0.50", 1),
    (r"\boxed{-\frac{1}{2}}", "-.5", 1),
    (r"\boxed{\frac{-1}{2}}", "-1/2", 1),
    (r"\boxed{2/4}", "1/2", 0),
    (r"\boxed{1/0}", "1/2", 0),
    (r"\boxed{0.333}", "1/3", 0),
    (r"\boxed{1,234}", "1234", 1),
    (r"\boxed{1{,}234.50}", "1234.5", 1),
    (r"\boxed{1\,234}", 1234, 1),
    (r"\boxed{1,23}", "123", 0),
    (r"\boxed{12 34}", "1234", 0),
    (r"\boxed{007}", 7, 1),
    (r"\boxed{+7}", 7, 1),
    (r"\boxed{7.}", 7, 1),
    (r"\boxed{7.0}", 7, 1),
    (r"\boxed{7}", 7.0, 1),
    (r"\boxed{0.1}", 0.1, 1),
    (r"\boxed{1e-7}", 1e-7, 1),
    (r"\boxed{2e3}", "2000", 1),
    (r"\boxed{- 7}", "-7", 1),
    (r"\boxed{−7}", "-7", 1),
    (r"\boxed{７}", "7", 1),
    (r"\boxed{٧}", "7", 1),
    (r"\boxed{5²}", "52", 0),
    (r"\boxed{\$7}", "7", 1),
    (r"$\boxed{\text{7}}$", "7", 1),
    (r"\boxed{-0}", "0", 1),
    # what is not the same
    (r"\boxed{7\%}", "7", 0),
    (r"\boxed{7}", "7%", 0),
    (r"\boxed{7\%}", "7.0%", 1),
    (r"\boxed{4\sqrt{2}}", "4", 0),
    (r"\boxed{n=2,3,4}", "n=1,2,3", 0),
    (r"\boxed{1/2004!}", "1/2006!", 0),
    (r"\boxed{x^2-1=0}", "x^2-4=0", 0),
    (r"\boxed{x + 1}", "x+1", 1),
    (r"\boxed{\left(1, 2\right)}", "(1,2)", 1),
    (r"\boxed{\text{Monday}}", "Monday", 1),
    (r"\boxed{X}", "x", 0),
    (r"\boxed{nan}", "inf", 0),
    # gold given as a whole solution
    (r"\boxed{72}", "48 + 24 = 72\n#### 72", 1),
    (r"\boxed{3}", r"we get $\boxed{3}$.", 1),
    # hostile
    (r"\boxed{1e999999999}", "1", 0),
    (r"\boxed{1e999999999}", "1e999999999", 1),
    (r"\boxed{0e999999}", "0", 0),
    (r"\boxed{" + "9" * 1_000_000 + "}", "9", 0),
    (r"\boxed{" + "{" * 5000 + "}", "9", 0),
    (r"\boxed{__import__('os').system('true')}", "0", 0),
]

BOXED = [
    (completion[len(r"\boxed{") : -1], gold, verdict)
    for completion, gold, verdict in TABLE
    if completion.startswith(r"\boxed{") and completion.endswith("}") and completion.count(r"\boxed") == 1
]
"""(what stands in the box, gold, verdict) of the rows above that are a box and nothing else."""


@pytest.mark.parametrize(("completion", "gold", "verdict"), TABLE)
def test_verdicts(completion, gold, verdict):
    assert math_answer([completion], [gold]) == [float(verdict)]
    assert math_answer(completions=[[{"role": "assistant", "content": completion}]], answer=[gold], other=[1]) == [
        float(verdict)
    ]


def test_extract_gives_one_form_for_one_number():
    same = [r"\boxed{0.5}", r"\boxed{1/2}", r"\boxed{\frac12}", "the answer is .50"]
    assert {extract(text) for text in same} == {"1/2"}
    assert extract(r"\boxed{1,000}") == "1000"
    assert extract(r"\boxed{7.0\%}") == "7%"
    assert extract(r"\boxed{x + 1}") == "x+1"
    assert extract("forty-two") is extract(r"\boxed{}") is extract(r"\boxed{$}") is None


def test_pattern_is_used_where_no_box_is():
    pattern = r"= (\d+)"
    assert math_answer(["1 = 3 = 4", r"= 4 \boxed{5}", "four"], ["4"] * 3, pattern=pattern) == [1.0, 0.0, 0.0]
    assert math_answer(["046"], ["46"], pattern=r"\d+") == [1.0]
    assert extract("x = 4", pattern=pattern) == "4"


def test_a_pattern_looks_inside_the_tags_where_there_are_any():
    assert math_answer(
        [
            "= 5 <answer>x = 4</answer>",
            "<answer>x = 4</answer> = 5",
            "= 4 <answer>5</answer>",
            r"<answer>= 4 \boxed{5}</answer>",
        ],
        ["4"] * 4,
        pattern=r"= (\d+)",
    ) == [1.0, 1.0, 0.0, 0.0]
    naming_them = r"<answer>(\d+) apples</answer>"
    assert math_answer(["<answer>4 apples</answer>", "<answer>4</answer>"], ["4"] * 2, pattern=naming_them) == [1.0, 1.0]
    assert extract("<answer>4 apples and 5 pears</answer>", pattern=r"<answer>(\d+)") == "4"


def test_what_stands_in_the_tags_is_compared_like_a_box():
    """The same words for the same contents: the tags open no other way to be right."""
    contents = [content for content, _, _ in BOXED]
    golds = [gold for _, gold, _ in BOXED]
    assert len(BOXED) > 40
    assert math_answer([f"<answer>{content}</answer>" for content in contents], golds) == [
        float(verdict) for _, _, verdict in BOXED
    ]


def test_tolerance_is_absolute_and_exact_at_the_edge():
    completions = [r"\boxed{0.51}", r"\boxed{0.5101}", r"\boxed{49/100}"]
    assert math_answer(completions, ["0.5"] * 3, tolerance=0.01) == [1.0, 0.0, 1.0]
    for tolerance in (-1.0, float("nan"), float("inf"), "abc", None, True):
        with pytest.raises(ValueError, match="tolerance: a number from 0 up is expected"):
            math_answer(completions, ["0.5"] * 3, tolerance=tolerance)


@pytest.mark.parametrize(
    "gold",
    ["", "  ", "$", ".", None, True, float("nan"), float("inf"), [4], {"a": 4}, r"\boxed{4", "#### ", "9" * 5000, 10**2000],
)
def test_an_unusable_reference_answer_raises_and_is_shown(gold):
    with pytest.raises(ValueError, match="unusable reference answer") as caught:
        math_answer([""], [gold])
    if isinstance(gold, str) and gold and len(gold) < 100:
        assert repr(gold) in str(caught.value)


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        (torch.tensor(4), "4"),
        (torch.tensor(-3, dtype=torch.int8), "-3"),
        (torch.tensor(4.0), "4"),
        (torch.tensor(0.1), "0.1"),
        (torch.tensor(123456792.0), "123456792"),
        (torch.tensor(65504.0, dtype=torch.float16), "65504"),
        (torch.tensor(0.1, dtype=torch.float64, requires_grad=True), "0.1"),
        (torch.tensor(0.1, dtype=torch.bfloat16), "0.1"),
        (torch.tensor(1 / 3, dtype=torch.float64), repr(1 / 3)),
        (torch.tensor(1e-7), "1e-07"),
        (torch.tensor(16777216.0), "16777216"),
        (np.int64(4), "4"),
        (np.float32(0.1), "0.1"),
        (np.array(0.5), "0.5"),
        (np.array("4"), "4"),
        (Decimal("0.10"), "0.10"),
        (Fraction(1, 3), "1/3"),
    ],
)
def test_a_number_counts_as_itself_whatever_holds_it(gold, text):
    assert write_reference(gold) == write_cell(gold) == text
    assert math_answer([rf"\boxed{{{text}}}", r"\boxed{99}"], [gold, gold]) == [1.0, 0.0]
    assert exact_match([text, "99"], [gold, gold]) == [1.0, 0.0]
    assert math_answer.unusable(answer=[gold]) == [None]


def test_a_column_may_be_a_tensor():
    assert math_answer([r"\boxed{4}"] * 2, torch.tensor([4, 5])) == [1.0, 0.0]
    assert exact_match(["4"] * 2, torch.tensor([4, 5])) == [1.0, 0.0]
    assert math_answer.unusable(answer=torch.tensor([4, 5])) == [None, None]
    assert shown_to_the_judge(torch.tensor(4)) == shown_to_the_judge(np.int64(4)) == '"4"'


@pytest.mark.parametrize(
    "gold",
    [
        torch.tensor([4]), torch.tensor([4, 5]), torch.tensor([]), torch.tensor(True), torch.tensor(1j), torch.tensor(float("nan")),
        torch.empty((), device="meta"), np.array([4]), np.array([[4]]), np.True_, np.float32("inf"), np.datetime64("2020-01-01"),
        Fraction(10**400, 3),
    ],
)  # fmt: skip
def test_what_holds_no_number_is_refused_by_name(gold):
    for function in (math_answer, exact_match):
        with pytest.raises(ValueError, match=r"^unusable reference answer"):
            function([str(gold)], [gold])
    (reason,) = math_answer.unusable(answer=[gold])
    assert repr(gold)[:50] in reason


def test_the_answer_column_must_be_a_list_of_the_right_length():
    for single in ("42", torch.tensor(42), np.array(42), 42):
        with pytest.raises(TypeError, match="one reference answer per completion"):
            math_answer(["4", "2"], single)
    with pytest.raises(ValueError, match="1 reference answers for 2 completions"):
        math_answer(["4", "2"], ["4"])


def test_exact_match():
    completions = [" Paris\n", "paris", "Paris!", "<think>Rome?</think>\nParis", [{"role": "assistant", "content": "Paris"}]]
    assert exact_match(completions, ["Paris"] * 5) == [1.0, 0.0, 0.0, 1.0, 1.0]
    assert exact_match(completions, ["Paris"] * 5, ignore_case=True) == [1.0, 1.0, 0.0, 1.0, 1.0]
    assert exact_match(["7"], [7]) == [1.0]
    assert exact_match.extract("PARIS ", ignore_case=True) == "paris"
    with pytest.raises(ValueError, match="unusable reference"):
        exact_match([""], [""])


pieces = st.sampled_from(
    [
        "\\boxed{",
        "}",
        "{",
        "####",
        "answer is",
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "\\frac",
        "1",
        "/",
        ",",
        ".",
        "-",
        "e",
        "%",
        "$",
        " ",
        "\n",
        "\\text{",
        "²",
        "٣",
    ]
)
texts = st.one_of(st.text(max_size=200), st.lists(pieces, max_size=60).map("".join))


@given(text=texts, gold=st.one_of(st.integers(-1000, 1000), st.sampled_from(["1/2", "x+1", "7%"])))
@settings(max_examples=300, deadline=None)
def test_no_text_makes_it_raise(text, gold):
    verdict = math_answer([text, rf"\boxed{{{text}}}", f"<answer>{text}</answer>"], [gold] * 3)
    assert set(verdict) <= {0.0, 1.0}
    assert extract(text) is None or extract(text)


@given(numerator=st.integers(-(10**9), 10**9), denominator=st.integers(1, 10**6))
@settings(max_examples=100, deadline=None)
def test_all_spellings_of_a_fraction_are_equal(numerator, denominator):
    spellings = [f"{numerator}/{denominator}", rf"\frac{{{numerator}}}{{{denominator}}}", f"{numerator:,} / {denominator:,}"]
    assert math_answer([rf"\boxed{{{s}}}" for s in spellings], spellings[::-1]) == [1.0] * 3
    off_by_one = f"{numerator + 1}/{denominator}"
    assert math_answer([rf"\boxed{{{off_by_one}}}"], [spellings[0]]) == [0.0]


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" * 40_000,
        r"\boxed{" + "{" * 150_000 + "}" * 150_000,
        r"\boxed{" + "9" * 300_000 + "}",
        "answer is" + " " * 300_000,
        "answer" + " " * 300_000 + "is",
        "answer is " * 40_000,
        "####" * 75_000,
        "</think>" * 40_000,
        "<think>" * 40_000 + "x",
        "<think></think>" * 20_000 + "x",
        "1," * 150_000,
        "<answer>" * 125_000,
        "</answer>" * 111_000,
        "<answer></answer>" * 59_000,
        "<answer>" + "5</answer>" * 100_000,
        "<answer>" + "\\boxed{" * 142_000 + "</answer>",
        "<answer>" + "answer is " * 100_000 + "</answer>",
        "<answer>" + "####" * 250_000 + "</answer>",
        "<answer>" + "9" * 1_000_000 + "</answer>",
        "<answer>" + "{" * 500_000 + "}" * 500_000 + "</answer>",
        "<answer" * 143_000,
        "<" * 1_000_000,
        "<answer>" + "<think>" * 140_000 + "</answer>",
    ],
)
def test_long_texts_take_no_time(text):
    started = time.process_time()
    assert math_answer([text], ["4"]) == [0.0]
    assert time.process_time() - started < 1.0  # about 0.05 s; anything quadratic takes minutes


def test_a_hostile_number_takes_milliseconds():
    comparer = Comparer(Fraction(0), True, 10.0, 2.0)
    for number in ("1e999999999", "9" * 1_000_000, "1/" + "9" * 399, "9" * 400, "1e400", "1," * 150 + "000", "1 " * 199):
        best = min(timed(comparer.compare_here, number, "4") for _ in range(5))
        assert best < 0.01, number[:20]


def timed(function, *arguments) -> float:
    """CPU time: a busy machine must not count."""
    started = time.thread_time()
    function(*arguments)
    return time.thread_time() - started


def test_an_answer_is_what_is_written():
    assert find_answer(r"so \boxed{ 1,000 }") == "1,000"


# ---------------------------------------------------------------------------------------------------------------------
# Format
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "verdict", "verdict_inside"),
    [
        ("<think>hm</think>4", 1, 0),
        ("\n<think>\nhm\n</think>\n\n4\n", 1, 0),
        ("hm</think>4", 0, 1),
        ("<think></think>4", 0, 0),
        ("<think>hm</think>", 0, 0),
        ("hm</think> ", 0, 0),
        ("</think>4", 0, 0),
        ("<think>hm 4", 0, 0),
        ("hm", 0, 0),
        ("", 0, 0),
        ("<think>a<think>b</think>4", 0, 0),
        ("<think>a</think>b</think>4", 0, 0),
        ("a</think>b</think>4", 0, 0),
        ("<think>a</think>4<think>b</think>5", 0, 0),
        ("first <think>hm</think>4", 0, 0),
    ],
)
def test_think_format(completion, verdict, verdict_inside):
    assert think_format([completion]) == think_format([completion], prefilled=False) == [float(verdict)]
    assert think_format([completion], prefilled=True) == [float(verdict_inside)]
    assert think_format([completion], prompts=["q\n<think>\n"]) == [float(verdict_inside)]
    assert think_format(
        [[{"role": "assistant", "content": completion}]], prompts=[[{"role": "user", "content": "say <think>"}]]
    ) == [float(verdict)]
    prefix = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>"}]
    assert think_format([[{"role": "assistant", "content": completion}]], prompts=[prefix]) == [float(verdict_inside)]


def test_regex_format_matches_the_whole_completion():
    assert regex_format(["a\nb", "xa\nb", "a"], pattern="a.b") == [1.0, 0.0, 0.0]


def test_registry():
    assert {name: built_in(name) for name in BUILT_IN} == BUILT_IN
    assert {"math_answer", "exact_match", "think_format", "regex_format"} <= set(BUILT_IN)
    with pytest.raises(RewardError, match="did you mean 'think_format'"):
        built_in("think_fromat")


def test_the_list_of_rewards_names_each_once():
    """Made from the functions; what stands around it is kept."""
    page = make_page()
    assert [name for name in BUILT_IN if page.count(f"\n| `{name}` | ") != 1] == []
    assert insert_list(f"a\n{BEGIN}\nold\n{END}\nb").replace(insert_list(f"{BEGIN}{END}"), "list") == "a\nlist\nb"


def test_the_gym_reads_completions_as_the_other_rewards_do():
    r"""One reader of \boxed{} and of chat messages: an escaped brace, a space, content in blocks, no content."""
    from cohort.rewards.gym import rows as gym

    assert gym.extract_answer(r"so \boxed{\{1, 2\} and a \} alone}") == r"\{1, 2\} and a \} alone"
    assert gym.extract_answer(r"so \boxed {7}") == "7"
    (entry,) = gym.load_gym("chain_sum", "train", 0, {"count": 1})
    blocks = [[{"role": "assistant", "content": [{"type": "text", "text": f"\\boxed{{{entry['answer']}}}"}]}]]
    assert gym.gym_verifier(completions=blocks, entry=[entry["entry"]], task=["chain_sum"]) == [1.0]
    empty = [[{"role": "assistant", "content": None}]]
    assert gym.gym_verifier(completions=empty, entry=[entry["entry"]], task=["chain_sum"])[0] < 1.0


@given(st.text("0123456789", min_size=1, max_size=25) | st.text("01234567890.,-x /%²٣", max_size=8))
def test_a_plain_number_is_read_as_the_readers_read_it(text):
    assert read_answer(text) == read_parts(text)


@given(st.text("abcXYZ0123456789", max_size=12) | st.text("a1 .*`$\\,²٣", max_size=10))
def test_a_plain_word_is_normalised_as_any_text_is(text):
    slow = unify_characters(text)
    for pattern, replacement in REPLACEMENTS:
        slow = pattern.sub(replacement, slow)
    assert normalise(text) == LOOSE_SPACE.sub("", slow.strip(" *`").removesuffix(".").strip(" *`"))


def test_a_box_is_found_whatever_else_the_text_holds():
    """Boxes are looked for only where the letters stand in the text."""
    texts = {r"\boxed 7.": "7", r"\\boxed{8}": "8", r"\fbox{9}": "9", r"\framebox{10}": "10", r"\Aboxed{11}": "11", "12": None}
    assert {text: find_answer(text) for text in texts} == texts
