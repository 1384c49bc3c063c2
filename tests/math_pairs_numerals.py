"""Pairs about what is left to evaluate: where the gold is a number, the answer has to be a numeral and not the question again."""

from __future__ import annotations

from math_pairs_written import RIGHT, UNEVALUATED, UNREAD, WRONG, box

ARITHMETIC = [
    *(
        (box(answer), "177", UNEVALUATED, "left to evaluate")
        for answer in (
            "95 + 82",
            "354/2",
            r"\frac{354}{2}",
            "354 \\div 2",
            "177/1",
            "177 + 0",
            r"177 \cdot 1",
            "177^1",
            "９５＋８２",
            "(95+82)",
            "|95 + 82|",
            r"\{95 + 82\}",
            "[95 + 82]",
            r"95 + 82 \text{ apples}",
            r"(95 + 82) \text{ cm}",
            r"\$95 + 82",
            "= 95 + 82",
            r"\approx 95 + 82",
            "95 + 82 = 82 + 95",
            "x = 95 + 82",
            "95 + 82 = x",
            "f(2) = 95 + 82",
            "(A) 95 + 82",
            r"\boxed{95 + 82}",
            r"1.77 \times 10^{1+1}",
            r"177 \times 10^0",
            r"0.177 \times 10^3",
            r"\sum_{k=1}^{1} 177",
            r"\int_0^{177} 1 dx",
        )
    ),
    *(
        (box(answer), "177", RIGHT, "a numeral")
        for answer in (
            "177",
            "177.0",
            "+177",
            "(177)",
            r"\text{177}",
            r"\boxed{177}",
            r"1.77 \times 10^2",
            r"1.77 \cdot 10^{+2}",
            "1.77e2",
            "17700\\%",
            r"\$177",
            "177 dollars",
            r"177 \text{ apples}",
            "177 pairs",
            "95 + 82 = 177",
            "177 = 95 + 82",
            "x = 177 = 95 + 82",
        )
    ),
    ("The answer is 95 + 82.", "177", UNEVALUATED, "left to evaluate, in words"),
    ("#### 95 + 82", "177", UNEVALUATED, "left to evaluate, behind hashes"),
    ("<answer>95 + 82</answer>", "177", UNEVALUATED, "left to evaluate, in tags"),
    ("<answer>What is 95 + 82?</answer>", "177", UNREAD, "the question itself"),
    (box("95 + 82?"), "177", UNREAD, "the question itself"),
    (box("95 + 81"), "177", WRONG, "not even its value is right"),
    (box("177 = 95 + 81"), "177", WRONG, "a chain that does not hold"),
    (box("2^7"), "128", UNEVALUATED, "a power"),
    (box(r"\sqrt{225}"), "15", UNEVALUATED, "a root"),
    (box("3!"), "6", UNEVALUATED, "a factorial"),
    (box("--7"), "7", UNEVALUATED, "two signs"),
    (box(r"-\frac{-1}{2}"), "0.5", UNEVALUATED, "two signs"),
    (box("10^3"), "1000", UNEVALUATED, "a power of ten"),
    (box(r"30 \times 10^7"), r"3 \times 10^8", UNEVALUATED, "not normalised"),
    (box("300000000"), r"3 \times 10^8", RIGHT, "scientific notation as gold"),
    (box("2^{-1}"), r"\frac12", UNEVALUATED, "a negative power"),
    (box("i^2"), "-1", UNEVALUATED, "a complex power"),
    (box("5 - 5"), "0", UNEVALUATED, "a difference"),
    (box("x/x"), "1", UNEVALUATED, "letters that cancel"),
    (box(r"\cos 0"), "1", UNEVALUATED, "a function"),
    (box(r"5 \times 10^1 \times 10^1"), "500", UNEVALUATED, "two powers of ten"),
    (box(r"\begin{aligned} 95 + 82 \end{aligned}"), "177", UNEVALUATED, "in an environment"),
    (box("(B) 95 + 82"), "(B) 177", UNEVALUATED, "behind a choice"),
    (box(r"177 \approx 95 + 82"), "177", RIGHT, "the exact part is a numeral"),
    (box("000177"), "177", RIGHT, "digits"),
    (box("+ +177"), "177", UNEVALUATED, "two signs"),
    (box("-+177"), "-177", UNEVALUATED, "two signs"),
    (box("59 times 3"), "177", UNREAD, "a product in words"),
    ("The answer is 95 + 82, which is 177.", "177", RIGHT, "worked out behind the comma"),
    ("The answer is $95 + 82$, which equals $177$. Done.", "177", RIGHT, "worked out behind the comma"),
    ("The answer is 95 + 82, which is 178.", "177", WRONG, "a chain that does not hold"),
    ("The answer is 177, which is 3 times 59.", "177", RIGHT, "what is said of a numeral"),
    ("The answer is 177, which is 95 + 82.", "177", RIGHT, "what is said of a numeral"),
]

FRACTIONS = [
    (box("2/4"), "1/2", UNEVALUATED, "not in lowest terms"),
    (box(r"\frac{1.0}{2.0}"), "1/2", UNEVALUATED, "a fraction of decimals"),
    (box("1e2/3"), "100/3", UNEVALUATED, "a fraction of decimals"),
    (box("1,000/3"), "1000/3", RIGHT, "thousands"),
    (box(r"\frac{1}{-2}"), "-1/2", UNEVALUATED, "the denominator is below 1"),
    (box(r"{1 \over 2}"), "1/2", RIGHT, "a fraction of plain TeX"),
    (box(r"{2 \over 4}"), "1/2", UNEVALUATED, "not in lowest terms"),
    (box("2/4"), r"\frac{2}{4}", RIGHT, "written as the gold is"),
    (box(r"\frac{-3}{6}"), "-3/6", RIGHT, "written as the gold is"),
    (box("1/2"), r"\frac{2}{4}", RIGHT, "in lowest terms"),
    (box("4/8"), r"\frac{2}{4}", UNEVALUATED, "neither"),
    (box(r"\frac{0.5}{1}"), "0.5", UNEVALUATED, "a fraction of decimals"),
    (box(r"2\frac{1}{3}"), "7/3", RIGHT, "a mixed number"),
    (box(r"2\frac{2}{6}"), "7/3", UNEVALUATED, "not in lowest terms"),
    (box("1 4/3"), "7/3", UNEVALUATED, "its fraction is not proper"),
    (box(r"2 + \frac13"), "7/3", UNEVALUATED, "a sum"),
    (box(r"33\frac13\%"), r"\frac13", RIGHT, "percent of a mixed number"),
    (box(r"\frac{100}{2}\%"), "0.5", UNEVALUATED, "percent of a quotient"),
    (box("2.5 million"), "2500000", RIGHT, "a name of a number"),
    (box("5 dozen"), "60", UNEVALUATED, "a dozen multiplies"),
    (box("60"), "5 dozen", RIGHT, "a dozen in the gold"),
    (box("5 pairs"), "10", WRONG, "nothing is multiplied by what is counted"),
    (box("2/4"), "1:2", UNEVALUATED, "a fraction for a ratio"),
    (box(r"(\frac24, 3)"), "(0.5, 3)", UNEVALUATED, "in a pair"),
    (box("(2^2, 7)"), "(4, 5)", WRONG, "the other member is wrong"),
    (box(r"(2^2, \sqrt8)"), "(4, 3)", WRONG, "the other member is wrong"),
    (box("[1+1, 5)"), "[2, 5)", UNEVALUATED, "in an interval"),
    (box(r"x \ge \frac{4}{2}"), r"[2, \infty)", UNEVALUATED, "in an inequality"),
    (box("x = 1 + 1, y = 3"), "x=2, y=3", UNEVALUATED, "in a list of names"),
    (box(r"90^\circ + 90^\circ"), r"180^\circ", WRONG, "degrees and none"),
    (box(r"\frac{360}{2}^\circ"), r"180^\circ", UNEVALUATED, "with a unit"),
]

SOLVED = [
    (box("2x = 4"), "x = 2", UNEVALUATED, "an equation that is left to solve"),
    (box("3x + 7 = 22"), "x = 5", UNEVALUATED, "an equation that is left to solve"),
    (box("1+1 < x < 2+2"), "(2, 4)", UNEVALUATED, "ends that are left to evaluate"),
    (box("x - 2 = 0"), "x = 2", UNEVALUATED, "an equation that is left to solve"),
    (box("2 = x"), "x = 2", RIGHT, "the other way round"),
    (box("x - 2 > 0"), "x > 2", UNEVALUATED, "an inequality that is left to solve"),
    (box("2 < x"), r"(2, \infty)", RIGHT, "the other way round"),
]

EXPRESSIONS = [
    (box("4^5"), "2^{10}", RIGHT, "the gold is a power"),
    (box("1024"), "2^{10}", RIGHT, "the gold is a power"),
    (box(r"\frac{2}{\sqrt{2}}"), r"\sqrt{2}", RIGHT, "the gold is a root"),
    (box("177"), "95 + 82", RIGHT, "the gold is a sum"),
    (box(r"\frac{4+6i}{2}"), "2+3i", RIGHT, "the gold is complex"),
]

UNITS = [
    (box("5 times"), "5", RIGHT, "a count"),
    (box("5 times 2"), "5", UNREAD, "a product"),
    (box("5¢"), "5 cents", RIGHT, "a currency"),
    (box("5¢"), r"\$5", WRONG, "another currency"),
    (box(r"12 \text{ years old}"), "12", RIGHT, "what a unit measures"),
    (box("12 years old"), "12 years", RIGHT, "what a unit measures"),
    (box("12 apples left"), "12", RIGHT, "what a unit measures"),
    (box("12 feet tall"), "12 inches", WRONG, "another unit"),
    (box("7 + 5 apples left"), "12", UNEVALUATED, "left to evaluate, with a unit"),
    (box("12 left"), "12", UNREAD, "no unit"),
]

RATIOS_AND_TIMES = [
    *((box(answer), "10:30", WRONG, "a time, in no proportion") for answer in ("1:3", "2:6", "20:60", r"\frac13", "3:10")),
    (box("10:30"), "10:30", RIGHT, "the same time"),
    (box(r"\frac{7}{32}"), "7:32", RIGHT, "it may be a time, and is in lowest terms"),
    (box("28:60"), "7:15", UNEVALUATED, "a ratio not in lowest terms"),
    (box("2:3"), "4:6", RIGHT, "the gold is not in lowest terms"),
]

LETTERS_AND_DEGREES = [
    *((box(answer), "A", WRONG, "another letter behind it") for answer in ("(A) B", "A: B", "(A) (B)", r"(A) \mathrm{B}")),
    (box("(A) B"), "B", WRONG, "two letters"),
    (box("(A) x"), "A", RIGHT, "what the choice stands for"),
    (box(r"\pi^{\circ}"), r"\pi", WRONG, "degrees for radians"),
    (box(r"2\pi \text{ degrees}"), r"2\pi", WRONG, "degrees for radians"),
    (box(r"\pi \text{ radians}"), r"\pi", RIGHT, "radians"),
]

REFUSED_BEFORE = [
    (box("|x|>1"), r"(-\infty,-1)\cup(1,\infty)", RIGHT, "a bound on an absolute value"),
    (box("1 < |x|"), r"x<-1 \text{ or } x>1", RIGHT, "a bound on an absolute value"),
    (box(r"|x| \ge 1"), r"(-\infty,-1)\cup(1,\infty)", WRONG, "the ends belong to it"),
    (box(r"|x| \le \sqrt{2}"), r"[-\sqrt2,\sqrt2]", RIGHT, "a bound that is a root"),
    (box("-3 < x < 3"), "|x| < 3", RIGHT, "as gold"),
    (box("|x| > -1"), r"(-\infty,-1)\cup(1,\infty)", WRONG, "a bound below 0"),
    (box("|x| < 3"), "|y| < 3", WRONG, "another name"),
    (box("(-2,2)"), "|z| < 2", WRONG, "the modulus of a complex number"),
    (box(r"x \in \{0,\pm 2\}"), r"\{-2,0,2\}", RIGHT, "two signs inside a set"),
    (box(r"0, \pm 2"), "-2, 0, 2", RIGHT, "two signs in a list"),
    (box(r"\pm 1, \pm 2"), "1,-1,2,-2", RIGHT, "two signs, twice"),
    (box(r"\{\pm 2\}"), "2", WRONG, "two signs are two members"),
    (box(r"\frac16 \approx 16.67\%"), r"\frac16", RIGHT, "rounded to a percentage"),
    (box(r"\frac16 \approx 16.68\%"), r"\frac16", WRONG, "a wrong rounding"),
]

NUMERALS = [*ARITHMETIC, *FRACTIONS, *SOLVED, *EXPRESSIONS, *UNITS, *RATIOS_AND_TIMES, *LETTERS_AND_DEGREES, *REFUSED_BEFORE]
