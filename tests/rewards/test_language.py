"""Language by scripts: shares counted by hand, notation left out, disguises seen through, nothing that takes long."""

from __future__ import annotations

import time

import pytest

from cohort.rewards.language import (
    LANGUAGES,
    count_words,
    find_notation,
    find_prompt_scripts,
    find_script,
    language_consistency,
)


def share(text: str, target: str) -> float | None:
    return language_consistency([text], target_language=target)[0]


def words(text: str) -> dict[str, int]:
    return {"+".join(sorted(scripts)): count for scripts, count in count_words(text).items()}


# -- shares by hand ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        ("We add the two numbers", "en", 1.0),
        ("We add the two numbers", "zh", 0.0),
        ("We add 所以 numbers", "en", 3 / 5),  # three words, two Han letters
        ("We add 所以 numbers", "zh", 2 / 5),
        ("我们需要 compute 这个", "zh", 6 / 7),
        ("我们需要compute这个", "zh", 6 / 7),
        ("Сначала сложим числа, then we check", "ru", 3 / 6),
        ("Сначала сложим числа, then we check", "sr", 6 / 6),
        ("まず数を足します then check", "ja", 8 / 10),
        ("まず数を足します then check", "zh", 2 / 10),
        ("먼저 숫자를 더한다 now", "ko", 3 / 4),
        ("أولا نجمع العددين now", "ar", 3 / 4),
        ("पहले हम संख्याएँ जोड़ते हैं now", "hi", 5 / 6),
        ("πρώτα προσθέτουμε now", "el", 2 / 3),
        ("ראשית נחבר now", "he", 2 / 3),
        ("ก่อนอื่น now", "th", 5 / 6),  # five letters, their vowel and tone signs aside
        ("Trước hết ta cộng", "vi", 1.0),
        # what has no words is not paid
        ("", "en", 0.0),
        (" \n\t", "en", 0.0),
        ("12 + 34 = 46", "en", 0.0),
        ("$x = 4$", "en", 0.0),
        ("\u0301\u0301", "en", 0.0),
        ("\ud800\udfff", "en", 0.0),
    ],
)
def test_shares_by_hand(text, target, expected):
    assert share(text, target) == pytest.approx(expected, abs=1e-15)
    assert language_consistency([[{"role": "assistant", "content": text}]], target_language=target) == [share(text, target)]


def test_scripts_cannot_tell_english_from_french():
    """Said in the documentation; here so that nobody believes otherwise."""
    assert share("D'abord nous additionnons les deux nombres", "en") == share("We add the two numbers", "fr") == 1.0


def test_more_foreign_words_are_never_better():
    shares = [share("we add the numbers " * 3 + "所以 " * count, "en") for count in range(8)]
    assert shares == [12 / (12 + 2 * count) for count in range(8)]
    shares = [share("所以 " * 3 + "numbers " * count, "zh") for count in range(8)]
    assert shares == [6 / (6 + count) for count in range(8)]


# -- the target --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "scripts"),
    [
        ("What is 12 + 34?", {"Latin"}),
        ("12 加 34 等于多少？", {"Han", "Bopomofo"}),
        ("12足す34はいくつですか", {"Han", "Hiragana", "Katakana"}),
        ("Сколько будет 12 + 34?", {"Cyrillic"}),
        ("计算 `print(hello)` 的输出, where $x$ is 3", {"Han", "Bopomofo"}),
        ("Translate 你好 into plain English please", {"Latin"}),
        ("12+34=", None),
        ("", None),
        ([{"role": "system", "content": "Think step by step before you answer."}, {"role": "user", "content": "十二加三十四"}], {"Han", "Bopomofo"}),
        ([{"role": "user", "content": "十二加三十四"}, {"role": "assistant", "content": "46"}, {"role": "user", "content": "and twice that?"}], {"Latin"}),
        ([{"role": "system", "content": "Скажи число."}], {"Cyrillic"}),
    ],
)  # fmt: skip
def test_auto_is_what_the_question_is_written_in(prompt, scripts):
    assert find_prompt_scripts(prompt) == (None if scripts is None else frozenset(scripts))
    (value,) = language_consistency(["so it is forty-six"], prompts=[prompt])
    assert value == (None if scripts is None else float(scripts == {"Latin"}))


def test_every_row_can_have_its_own_target():
    assert language_consistency(["hello there"] * 3, target_language=["en", "zh", "Latin"]) == [1.0, 0.0, 1.0]
    values = language_consistency(["hello there"] * 2, prompts=["你好", "hi there"], target_language=["auto", "zh-Hans"])
    assert values == [0.0, 0.0]


@pytest.mark.parametrize("name", ["zh", "ZH", "zh-CN", "zh_TW", "zh-Hans", " zh "])
def test_a_region_changes_nothing(name):
    assert share("我们", name) == 1.0


def test_names_of_scripts_are_targets_too():
    assert share("Привет world", "Cyrillic") == share("Привет world", "cyrillic") == 0.5
    assert share("数 カナ", "Han") == pytest.approx(1 / 3)


def test_an_unknown_target_is_refused():
    with pytest.raises(ValueError, match="target_language: unknown language code or script 'cyrilic'; did you mean 'cyrillic'"):
        share("a", "cyrilic")
    with pytest.raises(ValueError, match="target_language: unknown language code or script None"):
        language_consistency(["a"], target_language=[None])
    with pytest.raises(ValueError, match='"auto" reads the prompts; pass prompts'):
        language_consistency(["a"])


def test_the_codes_are_distinct():
    assert len(LANGUAGES) > 90
    assert all(len(code) == 2 and code.islower() for code in LANGUAGES)


# -- notation ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        # left out: mathematics
        ("所以 $f(x) = \\sin x + constant$", {"Han": 2}),
        ("所以 $$\\sum_{i} value$$ 是", {"Han": 3}),
        ("所以 \\(alpha + beta\\) 与 \\[gamma delta\\]", {"Han": 3}),
        ("所以 \\begin{align*} speed &= way \\end{align*} 对", {"Han": 3}),
        ("所以 \\frac{a}{b} 与 x, y, n", {"Han": 3}),
        ("sin x 加 log y, 最大 max", {"Han": 3}),
        ("三角形 ABC 与 ABCD", {"Han": 4}),
        ("Δx 是 5 cm 与 3 μm", {"Han": 2}),
        ("设 ℵ 与 𝑥 与 ℝ", {"Han": 3}),
        # left out: code, links, tags, identifiers
        ("用 `print value` 打印", {"Han": 3}),
        ("```python\nfor item in items:\n    print(item)\n```\n好", {"Han": 1}),
        ("见 https://example.org/some/page 吧", {"Han": 2}),
        ("<think>好</think><answer>对</answer>", {"Han": 2}),
        ("foo_bar x1 item2 好", {"Han": 1}),
        ("\\begin{itemize} good \\end{itemize}", {"Latin": 1}),
        # counted all the same: what is foreign cannot hide in notation
        ("so $\\text{因为} x$ holds", {"Latin": 2, "Han": 2}),
        ("```python\n# 先排序\nprint(1)\n```\nDone", {"Latin": 1, "Han": 3}),
        ("look `привет` here", {"Latin": 2, "Cyrillic": 1}),
        # marks that open nothing
        ("it costs $5 and then $10 more", {"Latin": 5}),
        ("a ` stray mark", {"Latin": 2}),
        ("an \\[ opened formula", {"Latin": 3}),
        ("``` opened for ever", {"Latin": 3}),
        ("one $ two $ three", {"Latin": 3}),
        ("\\$five or \\$six dollars", {"Latin": 4}),
        ("`" + "long words " * 40 + "`", {"Latin": 80}),
        # single letters are words in other scripts
        ("я и ты", {"Cyrillic": 3}),
        ("I do", {"Latin": 1}),
    ],
)
def test_notation_is_no_language(text, counted):
    assert words(text) == counted


def test_where_notation_is():
    text = r"a `b` $c$ \(d\) \[e\] $$f$$ <g> \h http://i.j \begin{cases}k\end{cases}"
    spans = [text[start:end] for start, end in find_notation(text)]
    assert spans == ["`b`", "$c$", r"\(d\)", r"\[e\]", "$$f$$", "<g>", r"\h", "http://i.j", r"\begin{cases}k\end{cases}"]


# -- disguises ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("ｈｅｌｌｏ ｗｏｒｌｄ", {"Latin": 2}),  # full-width
        ("𝓱𝓮𝓵𝓵𝓸 𝐰𝐨𝐫𝐥𝐝", {"Latin": 2}),  # mathematical alphabets
        ("ⓗⓔⓛⓛⓞ", {"Latin": 1}),  # circled
        ("ﾃｽﾄ", {"Katakana": 3}),  # half-width
        ("ﬁne", {"Latin": 1}),  # a ligature
        ("pаypаl", {"Cyrillic+Latin": 1}),  # two Cyrillic letters
        ("hεllo", {"Greek+Latin": 1}),
        ("cafe\u0301 nai\u0308ve", {"Latin": 2}),  # combining accents
        ("h\u0336e\u0336l\u0336l\u0336o\u0336", {"Latin": 1}),
        ("می\u200cخواهم", {"Arabic": 1}),  # a joiner inside the word
        ("हिन्दी", {"Devanagari": 1}),
        ("об\u02bcєкт", {"Cyrillic": 2}),  # a letter apostrophe parts words as any other does
    ],
)
def test_letters_in_disguise(text, counted):
    assert words(text) == counted


def test_a_word_of_two_alphabets_is_of_neither():
    assert share("pаypаl", "en") == share("pаypаl", "ru") == 0.0
    assert share("we use pаypаl", "en") == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("letter", "script"),
    [
        *(
            ("a", "Latin"),
            ("ß", "Latin"),
            ("ж", "Cyrillic"),
            ("ω", "Greek"),
            ("あ", "Hiragana"),
            ("ア", "Katakana"),
            ("ー", "Katakana"),
        ),
        *(
            ("中", "Han"),
            ("々", "Han"),
            ("ㄅ", "Bopomofo"),
            ("한", "Hangul"),
            ("ㅎ", "Hangul"),
            ("अ", "Devanagari"),
            ("ا", "Arabic"),
        ),
        *(("א", "Hebrew"), ("ก", "Thai"), ("ລ", "Lao"), ("ខ", "Khmer"), ("က", "Myanmar"), ("ཀ", "Tibetan"), ("ა", "Georgian")),
        *(
            ("ա", "Armenian"),
            ("አ", "Ethiopic"),
            ("ব", "Bengali"),
            ("ਅ", "Gurmukhi"),
            ("અ", "Gujarati"),
            ("ଅ", "Oriya"),
            ("அ", "Tamil"),
        ),
        *(
            ("అ", "Telugu"),
            ("ಅ", "Kannada"),
            ("അ", "Malayalam"),
            ("අ", "Sinhala"),
            ("ｈ", "Latin"),
            ("𝒉", "Latin"),
            ("µ", "Greek"),
        ),
    ],
)
def test_scripts(letter, script):
    assert find_script(letter) == script


@pytest.mark.parametrize("other", [*"1½_ .-。！٣", "\u0301", "\ud800", "\U0010ffff", "\x00", "😀", "ℵ"])
def test_what_is_no_letter(other):
    assert find_script(other) == ""


# -- time --------------------------------------------------------------------------------------------------------------


MEGABYTES = {
    "letters": "a" * 10**6,
    "words": "ab " * 333_333,
    "spaces": " " * 10**6,
    "marks": "\u0301\u0323" * 500_000,
    "ticks": "`" * 10**6,
    "dollars": "$" * 10**6,
    "opened dollars": "$a " * 333_333,
    "opened brackets": r"\[" * 500_000,
    "opened environments": r"\begin{align}" * 77_000,
    "slashes": "\\" * 10**6,
    "a command": "\\" + "A" * 10**6,
    "opened tags": "<" * 10**6,
    "links": "http://" * 140_000,
    "Han": "中文" * 500_000,
    "surrogates": "\ud800" * 10**6,
    "different characters": "".join(map(chr, range(0x18000))),
}


@pytest.mark.parametrize("name", MEGABYTES)
def test_a_megabyte_ends_in_time(name):
    started = time.process_time()
    (value,) = language_consistency([MEGABYTES[name]], prompts=["a question"])
    assert value is not None
    assert 0.0 <= value <= 1.0
    assert time.process_time() - started < 8.0


def test_a_batch_may_be_split():
    assert language_consistency.per_completion
    assert language_consistency.reads == ("completions", "prompts", "target_language")
