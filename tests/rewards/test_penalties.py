"""Length and repetition: penalties computed by hand, ordinary texts left in peace, loops of every kind caught."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.rewards.penalties import length, measure_repetition, repetition, soft_overlong, split_units
from doc_examples import examples_of


def ids(*lengths: int) -> dict[str, list]:
    """Completions of so many tokens; their texts say nothing about it."""
    return {"completions": ["text"] * len(lengths), "completion_ids": [[7] * count for count in lengths]}


# -- soft_overlong -----------------------------------------------------------------------------------------------------


def test_soft_overlong_by_hand():
    """L_max 100, L_cache 20."""
    lengths = [0, 1, 79, 80, 81, 85, 90, 95, 99, 100, 101, 5000]
    expected = [0, 0, 0, 0, -0.05, -0.25, -0.5, -0.75, -0.95, -1, -1, -1]
    assert soft_overlong(**ids(*lengths), longest=100, buffer=20) == pytest.approx(expected, abs=1e-15)


def test_the_numbers_of_the_paper():
    """DAPO: 16384 expected, a cache of 4096, 20480 at most."""
    assert soft_overlong(**ids(16384, 18432, 20480), longest=20480, buffer=4096) == [0.0, -0.5, -1.0]


def test_lengths_are_of_tokens_or_of_characters():
    assert soft_overlong(["x" * 90, "é" * 95], longest=100, buffer=20, unit="characters") == [-0.5, -0.75]
    chat = [[{"role": "assistant", "content": "x" * 90}]]
    assert soft_overlong(chat, completion_ids=[[1]], longest=100, buffer=20, unit="characters") == [-0.5]
    assert soft_overlong(chat, completion_ids=[[1]], longest=100, buffer=20) == [0.0]


def test_no_penalty_is_plain_zero():
    assert str(soft_overlong(**ids(3), longest=100, buffer=20)[0]) == "0.0"
    assert str(length(**ids(3), longest=10)[0]) == "0.0"
    assert str(repetition(["a b c"])[0]) == "0.0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"longest": 0, "buffer": 1}, "longest: expected a whole number from 1 up, got 0"),
        ({"longest": 10, "buffer": 0}, "buffer: expected a whole number from 1 up, got 0"),
        ({"longest": 10, "buffer": 11}, "buffer: expected at most longest = 10, got 11"),
        ({"longest": 10.5, "buffer": 1}, "longest: expected a whole number"),
        ({"longest": True, "buffer": 1}, "longest: expected a whole number"),
        ({"longest": 10, "buffer": 2, "unit": "words"}, 'unit: expected "tokens" or "characters"'),
    ],
)
def test_soft_overlong_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        soft_overlong(**ids(1), **arguments)


def test_tokens_cannot_be_counted_without_ids():
    with pytest.raises(ValueError, match='completion_ids: needed to count tokens; pass them, or set unit = "characters"'):
        soft_overlong(["text"], longest=10, buffer=2)
    with pytest.raises(ValueError, match="completion_ids: 2 lists of token ids for 1 completions"):
        length(["text"], completion_ids=[[1], [2]], longest=10)


# -- length ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "lengths", "expected"),
    [
        ({"longest": 100}, [0, 100, 101, 150, 200, 300], [0, 0, -0.01, -0.5, -1, -1]),
        ({"longest": 100, "falloff": 10}, [100, 105, 110, 111], [0, -0.5, -1, -1]),
        ({"shortest": 40}, [0, 10, 20, 40, 1000], [-1, -0.75, -0.5, 0, 0]),
        ({"shortest": 40, "longest": 100}, [20, 40, 70, 100, 125], [-0.5, 0, 0, 0, -0.25]),
        ({"shortest": 40, "longest": 100, "falloff": 20}, [10, 30, 40, 100, 110, 130], [-1, -0.5, 0, 0, -0.5, -1]),
        ({"target_length": 50}, [0, 25, 50, 75, 100, 101], [-1, -0.5, 0, -0.5, -1, -1]),
        ({"target_length": 50, "falloff": 10}, [39, 45, 50, 55, 61], [-1, -0.5, 0, -0.5, -1]),
    ],
)
def test_length_by_hand(arguments, lengths, expected):
    assert length(**ids(*lengths), **arguments) == pytest.approx(expected, abs=1e-15)


def test_every_row_can_have_its_own_target():
    assert length(**ids(10, 10, 10), target_length=[10, 20, 5]) == [0.0, -0.5, -1.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "length: set target_length, longest or shortest"),
        ({"target_length": 0}, "length: set target_length, longest or shortest"),
        ({"target_length": 5, "longest": 9}, "target_length: it sets both bounds"),
        ({"shortest": 10, "longest": 9}, "shortest: expected at most longest = 9, got 10"),
        ({"longest": -1}, "longest: expected a whole number from 0 up"),
        ({"longest": 9, "falloff": -1}, "falloff: expected a whole number from 0 up"),
        ({"target_length": ["12"]}, "shortest: expected a whole number from 0 up, got '12'"),
    ],
)
def test_length_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        length(**ids(1), **arguments)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 500), st.integers(1, 300), st.integers(1, 300))
def test_longer_is_never_better_past_the_bound(tokens, longest, buffer):
    longest = max(longest, buffer)
    values = soft_overlong(**ids(tokens, tokens + 1), longest=longest, buffer=buffer)
    assert values[0] >= values[1]
    values = length(**ids(tokens, tokens + 1), longest=longest, falloff=buffer)
    assert values[0] >= values[1]
    values = length(**ids(tokens, tokens + 1), shortest=longest)
    assert values[0] <= values[1]
    assert all(-1.0 <= value <= 0.0 for value in values)


# -- repetition --------------------------------------------------------------------------------------------------------


def test_the_share_by_hand():
    # a b, b a, a b, b a: four pairs, two different
    assert measure_repetition("a b a b a", 2) == 0.5
    # a b c, b c a, c a b, a b c: the last one is known
    assert measure_repetition("A b, C", 3) == 0.0
    assert measure_repetition("a b c a b c", 3) == 0.25
    assert measure_repetition("a b a b", 1) == 0.5
    assert measure_repetition("a b", 3) == 0.0
    assert measure_repetition("", 1) == 0.0


@pytest.mark.parametrize("ngram", range(1, 18))
def test_the_share_equals_its_slow_twin(ngram):
    text = "one two three one two. Three one two, three one; two three one two three one two three four five six " * 3
    parts = split_units(text)
    grams = [tuple(parts[start : start + ngram]) for start in range(len(parts) - ngram + 1)]
    assert measure_repetition(text, ngram) == pytest.approx(1 - len(set(grams)) / len(grams), abs=1e-15)


def test_the_penalty_by_hand():
    """Twenty times "the" has nine n-grams of twelve words, all the same: 8/9 repeated, of which 0.2 are free."""
    assert repetition(["the " * 20]) == pytest.approx([-(8 / 9 - 0.2) / 0.8])
    assert repetition(["the " * 20], max_penalty=0.5, threshold=0.0) == pytest.approx([-4 / 9])
    assert repetition(["the " * 20], ngram=21) == [0.0]
    assert repetition(["a b a b a"], ngram=2, threshold=0.5) == [0.0]
    assert repetition(["a b a b a"], ngram=2, threshold=0.25) == pytest.approx([-1 / 3])


def test_what_counts_as_one():
    assert split_units("Don't STOP, it's 3.14!") == ["don", "'", "t", "stop", ",", "it", "'", "s", "3", ".", "14", "!"]
    assert split_units("中文 text") == ["中", "文", "text"]
    assert split_units("हिन्दी में") == ["हिन्दी", "में"]
    assert split_units("e\u0301te\u0301 été") == ["e\u0301te\u0301", "été"]
    assert split_units("-" * 20 + "\n" + "=" * 45) == ["-" * 20, "=" * 20, "=" * 20, "=" * 5]
    assert split_units("a" * 30) == ["a" * 30]
    assert split_units("a" * 31) == ["a"] * 31
    assert split_units(" " * 79) == []
    assert split_units(" \n" * 80) == [" ", " "]
    assert split_units("\ud800\ud800 x") == ["\ud800\ud800", "x"]


LOOPS = {
    "one letter": "a" * 400,
    "one letter of a script without spaces": "哈" * 60,
    "one word": "the " * 60,
    "one word, in changing case": "the The THE " * 20,
    "two words": "so wait " * 40,
    "a syllable without spaces": "lalala" * 60,
    "a number": "3" * 400,
    "a period of a fraction": "142857" * 60,
    "a sentence": "Wait, let me check that again. " * 30,
    "a paragraph, three times": (
        "First we add the two numbers and write down the carry. Then we go to the next column and do the same. "
        "In the end the carry is the first digit of the sum, unless it is zero. "
    )
    * 3,
    "signs": "!" * 400,
    "two signs": "-=" * 200,
    "an emoji": "🎉" * 300,
    "empty lines": "\n" * 2000,
    "empty lines with a space": "\n " * 2000,
    "marks alone": "\u0301" * 400,
    "surrogates": "\ud800" * 400,
    "Chinese": "我们再检查一遍这个结果。" * 20,
    "a loop at the end of good text": (
        "The train leaves at nine and needs three hours, so it arrives at noon. " + "It arrives at noon, so it arrives at noon, so " * 25
    ),
    "code": "    x = x + 1\n" * 40,
    "a tag": "</think>" * 50,
}  # fmt: skip

ORDINARY = {
    "prose": """The lighthouse stood at the end of a long spit of sand, and in winter the road to it was often under water.
My grandmother kept the lamp for thirty years. She said that the sea has two voices, one for those who listen and one for
those who do not, and that most people only ever hear the second. When I was nine she let me climb to the gallery for the
first time; there were a hundred and twelve steps, and I counted them aloud, as she had done when she was a girl.""",
    "reasoning": r"""Let me think about this step by step. The baker has 96 rolls and keeps a quarter of them, so she keeps
96 / 4 = 24 rolls. That leaves 96 - 24 = 72 rolls. She sells the 72 rolls at 2 euros each, so she takes 72 * 2 = 144 euros.
Wait, does she sell all of the 72 rolls? The text says that she sells the rest, so yes. Let me check: 24 + 72 = 96, which is
the number of rolls she began with, and 72 * 2 = 144. So the answer is 144 euros. The final answer is \boxed{144}.""",
    "column addition": "7+6+0=13\n4+8+1=13\n3+5+1=9\n>933\n\n0+0+0=0\n0+0+0=0\n1+2+0=3\n>300\n\n9+9+0=18\n9+9+1=19\n9+9+1=19\n>1998",
    "derivation": r"""We have $(a+b)^2 = a^2 + 2ab + b^2$, so $(a+b)^3 = (a+b)(a^2 + 2ab + b^2) = a^3 + 2a^2b + ab^2 + a^2b +
2ab^2 + b^3 = a^3 + 3a^2b + 3ab^2 + b^3$. Setting $b = 1$ gives $(a+1)^3 = a^3 + 3a^2 + 3a + 1$, and hence
$(a+1)^3 - a^3 = 3a^2 + 3a + 1$. Summing over $a = 0, 1, \dots, n-1$ gives $n^3 = 3S_2 + 3S_1 + n$.""",
    "code": '''class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance
        self.history = []

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("the amount must be positive")
        self.balance += amount
        self.history.append(("deposit", amount))
        return self.balance

    def withdraw(self, amount):
        if amount <= 0:
            raise ValueError("the amount must be positive")
        if amount > self.balance:
            raise ValueError("there is not enough money")
        self.balance -= amount
        self.history.append(("withdraw", amount))
        return self.balance


def main():
    account = Account("Ines", 100)
    for amount in (10, 20, 30):
        account.deposit(amount)
        print(f"{account.owner} has {account.balance}")
    assert account.balance == 160
''',
    "tests": "assert add(1, 2) == 3\nassert add(0, 0) == 0\nassert add(-1, 1) == 0\nassert add(2, 2) == 4\nassert add(10, 5) == 15\n"
    "assert add(1.5, 2.5) == 4.0\nassert add('a', 'b') == 'ab'\nassert add([1], [2]) == [1, 2]\n",
    "a matrix": "M = [\n    [1, 0, 0, 0],\n    [0, 1, 0, 0],\n    [0, 0, 1, 0],\n    [0, 0, 0, 1],\n]\nprint(sum(M[i][i] for i in range(4)))\n",
    "a table": """| month | lamps | candles |
|---|---|---|
| January | 14 | 42 |
| February | 14 | 42 |
| March | 15 | 45 |
| April | 12 | 36 |

Summary
-------------------------------------------------------------

The keeper needs 165 candles in all.""",
    "a list": "1. oak\n2. ash\n3. elm\n4. fir\n5. yew\n6. box\n7. bay\n8. fig",
    "Chinese": "灯塔立在一条长长的沙嘴尽头，冬天通往那里的路常常被水淹没。我的祖母守了三十年的灯。她说大海有两种声音，一种给倾听的人，一种给不听的人，"
    "而大多数人一生只听见第二种。我九岁那年，她第一次让我登上回廊；一共有一百一十二级台阶，我大声地数着，就像她小时候那样。",
    "Russian": "Маяк стоял на конце длинной песчаной косы, и зимой дорога к нему часто уходила под воду. Моя бабушка тридцать лет "
    "хранила огонь. Она говорила, что у моря два голоса: один для тех, кто слушает, другой для тех, кто не слушает.",
    "Thai": "ประภาคารตั้งอยู่ปลายสันทรายที่ทอดยาว ในฤดูหนาวถนนที่ไปถึงมักจมอยู่ใต้น้ำ คุณยายของฉันดูแลตะเกียงมาสามสิบปี",
    "a rhyme": "Row after row the gulls come in,\nrow after row they go;\nthe keeper counts them, thick and thin,\nthe keeper ought to know.",
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_caught(name):
    assert repetition([LOOPS[name]])[0] < -0.5


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_text_is_left_in_peace(name):
    assert repetition([ORDINARY[name]]) == [0.0]
    assert measure_repetition(ORDINARY[name], 12) < 0.1


@pytest.mark.parametrize("name", LOOPS)
def test_going_on_with_a_loop_is_never_better(name):
    values = repetition([LOOPS[name] * times for times in range(1, 5)])
    assert values == sorted(values, reverse=True)
    assert all(-1.0 <= value <= 0.0 for value in values)


def test_said_twice_costs_less_than_said_thrice():
    """n-grams across the seam are new; without them, 1/2 and 2/3 are repeated."""
    text = ORDINARY["prose"] + "\n"
    once, twice, thrice = repetition([text, text * 2, text * 3])
    assert once == 0.0
    assert twice == pytest.approx(-(1 / 2 - 0.2) / 0.8, abs=0.05)
    assert thrice == pytest.approx(-(2 / 3 - 0.2) / 0.8, abs=0.05)


@pytest.mark.parametrize("nothing", ["", " ", "\n\t ", "word", "\u0301", "\ud800", "。"])
def test_nothing_to_repeat(nothing):
    assert repetition([nothing]) == [0.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ngram": 0}, "ngram: expected a whole number from 1 up"),
        ({"threshold": 1.0}, "threshold: expected a share from 0 to below 1"),
        ({"threshold": -0.1}, "threshold: expected a share from 0 to below 1"),
        ({"max_penalty": 0.0}, "max_penalty: expected a number above 0"),
        ({"max_penalty": float("inf")}, "max_penalty: expected a number above 0"),
    ],
)
def test_repetition_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        repetition(["text"], **arguments)


@pytest.mark.parametrize(
    "text",
    ["a" * 10**6, "the " * 250_000, "\n" * 10**6, "a" + "\u0301\u0323" * 500_000, "中" + "\u0301" * 10**6, "-=" * 500_000, "中文" * 500_000],
    ids=["letters", "words", "lines", "marks", "marks on Han", "signs", "Han"],
)  # fmt: skip
def test_a_megabyte_is_caught_in_time(text):
    """At its time limit a penalty would score 0, its best value: looping must never be a way to get there."""
    started = time.process_time()
    assert repetition([text])[0] < -0.99
    assert time.process_time() - started < 8.0


def test_a_hundred_thousand_different_characters():
    started = time.process_time()
    assert repetition(["".join(map(chr, range(0x18000)))]) == [0.0]
    assert time.process_time() - started < 8.0


def test_only_the_end_of_an_endless_text_is_judged():
    assert repetition(["the " * 200_000 + "x y z " * 2])[0] < -0.99
    assert repetition(["the " * 100 + "".join(f"word{number} " for number in range(60_000))]) == [0.0]


@pytest.mark.parametrize("function", [soft_overlong, length, repetition])
def test_a_batch_may_be_split(function):
    assert function.per_completion
    assert "completions" in function.reads


# -- the page ----------------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "form-rewards.md").read_text(encoding="utf-8")


def test_the_examples_on_the_page_hold():
    checked = list(examples_of(PAGE))
    assert [code for code, value, expected in checked if value != pytest.approx(expected)] == []
    assert len(checked) == 10


@pytest.mark.parametrize(
    ("text", "share", "value"),
    [
        (LOOPS["a paragraph, three times"], 0.63, -0.54),
        (LOOPS["a sentence"], 0.97, -0.96),
        (LOOPS["one word"], 0.98, -0.97),
        (LOOPS["one letter"], 1.00, -1.00),
        (LOOPS["signs"], 0.89, -0.86),
        (LOOPS["empty lines"], 0.93, -0.91),
        (LOOPS["an emoji"], 0.75, -0.69),
        (ORDINARY["code"], 0.06, 0.0),
    ],
)
def test_the_numbers_on_the_page(text, share, value):
    assert measure_repetition(text, 12) == pytest.approx(share, abs=0.005)
    assert repetition([text]) == pytest.approx([value], abs=0.005)
    assert f"{share:.2f}" in PAGE
    assert f"{value:.2f}".replace("-", "−") in PAGE or value == 0.0


def test_the_recipe_on_the_page_names_rewards_that_exist():
    import tomllib

    from cohort.rewards import BUILT_IN

    (recipe,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    functions = [part["function"] for part in tomllib.loads(recipe)["rewards"]]
    assert [name for name in functions if name not in BUILT_IN] == []
    rows = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert [name for name in rows if name not in BUILT_IN] == []
