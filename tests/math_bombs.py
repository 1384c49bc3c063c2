"""Completions that hang, crash or flood a verifier that is not careful, and injections that one with `eval` would run."""

from __future__ import annotations

import random


def box(answer: str) -> str:
    return rf"\boxed{{{answer}}}"


BOMBS: dict[str, str] = {
    "tower of powers": box("9^9^9^9"),
    "tower in braces": box("9^{9^{9^{9}}}"),
    "tower of small powers": box("2^{2^{2^{2^{2^{2^{2}}}}}}"),
    "ten to the ten to the ten": box("10^{10^{10}}"),
    "the same plus one": box("10^{10^{10}}+1"),
    "power with a long exponent": box("7^{123456789123456789}+1"),
    "python power": box("9**9**9**9"),
    "factorial of a factorial": box("((10!)!)!"),
    "large factorial": box("99999999!"),
    "larger factorial": box("(10^{15})!"),
    "many factorials": box("+".join(["9999!"] * 90)),
    "huge binomial": box(r"\binom{10^{12}}{10^{11}}"),
    "scientific": box("1e999999999"),
    "scientific and negative": box("1e-999999999"),
    "long digits": box("9" * 900),
    "very long digits": box("9" * 1_000_000),
    "long fraction": box(r"\frac{" + "7" * 390 + "}{" + "3" * 390 + "}"),
    "long decimals": box("0." + "3" * 395),
    "nested powers of a variable": box("x^{x^{x^{x^{x^{x^{x}}}}}}"),
    "large power of a sum": box("(x+y+z+1)^{999999}"),
    "products of sums": box("".join(f"(x+{n})^{{99}}" for n in range(60))),
    "nested radicals": box(r"\sqrt{2+" * 60 + "2" + "}" * 60),
    "nested fractions": box(r"\frac{1}{1+" * 60 + "x" + "}" * 60),
    "nested braces": box("{" * 400 + "1" + "}" * 400),
    "unclosed braces": box("{" * 50_000 + "1"),
    "deep parentheses": box("(" * 400 + "1" + ")" * 400),
    "very deep parentheses": "answer is " + "(" * 100_000 + "1" + ")" * 100_000,
    "many minus signs": box("-" * 900 + "1"),
    "many boxes": r"\boxed{" * 60_000 + "1" + "}" * 60_000,
    "giant matrix": box(r"\begin{pmatrix}" + r"\\".join("&".join(["1"] * 20) for _ in range(20)) + r"\end{pmatrix}"),
    "giant set": box(r"\{" + ",".join(f"\\sqrt{{{n}}}" for n in range(2, 90)) + r"\}"),
    "set of sixty roots": box(r"\{" + ",".join(f"\\sqrt{{{n}}}" for n in range(2, 61)) + r"\}"),
    "infinite sum": box(r"\sum_{n=1}^{\infty} \frac{\sin(n^n)}{n!+\ln n}"),
    "long sum": box(r"\sum_{n=1}^{999999} \frac{1}{n}"),
    "long product": box(r"\prod_{n=1}^{999999} (n^{n}+1)"),
    "hard integral": box(r"\int_0^{\infty} e^{-x^2} \sin(x^3) \ln(x) dx"),
    "harder integral": box(r"\int_0^1 \frac{\sin(x^5+x)^{7}}{\cos(x^3)+\ln(x+2)} dx"),
    "hard limit": box(r"\lim_{x\to 0} \frac{\sin(\tan(x))-\tan(\sin(x))}{\arcsin(\arctan(x))-\arctan(\arcsin(x))}"),
    "power in a sum": box(r"\sum_{n=1}^{5} 9^{9^{9}}"),
    "factorial in a sum": box(r"\sum_{n=1}^{3} (99999^{99999})!"),
    "power in an integral": box(r"\int_0^1 x^{99999} (1-x)^{99999} dx"),
    "sum of sums": box(r"\sum_{a=1}^{999}\sum_{b=1}^{999}\sum_{c=1}^{999} \frac{1}{a+b+c}"),
    "sine of a large number": box(r"\sin(10^{900})"),
    "log of a tower": box(r"\ln(10^{10^{10^{10}}})"),
    "floor of a large number": box(r"\lfloor 10^{900} \cdot \pi \rfloor"),
    "think tags": "<think>" * 100_000 + box("1"),
    "closing think tags": "</think>" * 100_000 + "x",
    "hashes": "#" * 400_000 + " 1",
    "answer is": "answer is " * 60_000,
    "spaces": "answer is" + " " * 500_000 + "x",
    "unicode flood": box("²" * 900),
    "zero-width flood": box("\u200b" * 900 + "1"),
    "combining flood": box("1" + "\u0301" * 900),
    "surrogates": box("\ud800" * 100),
    "commas": box("1," * 480),
    "dollars": "$" * 200_000,
    "pipes": box("|" * 900),
    "primes": box("f" + "'" * 900),
    "many letters": box("x" * 900),
    "percent signs": box("5" + "%" * 900),
    "units": box("5 " + "cm " * 300),
    "relations": box("=".join(["x"] * 300)),
    "null bytes": box("\x00" * 500),
}

INJECTIONS = [
    "__import__('os').system('touch {canary}')",
    "eval(\"__import__('os').system('touch {canary}')\")",
    'exec(\'open("{canary}","w")\')',
    "open('{canary}', 'w').write('x')",
    "(lambda: open('{canary}','w'))()",
    "lambda x: __import__('os').mkdir('{canary}')",
    "[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == 'Popen'][0](['touch', '{canary}'])",
    "().__class__.__mro__[1].__subclasses__()",
    "\\text{{__import__('os').system('touch {canary}')}}",
    "\\frac{{__import__('os').system('touch {canary}')}}{{1}}",
    "\\begin{{pmatrix}} __import__('os').system('touch {canary}') \\end{{pmatrix}}",
    "\\input{{|touch {canary}}}",
    "\\write18{{touch {canary}}}",
    "\\immediate\\write18{{touch {canary}}}",
    "1 + __import__('pathlib').Path('{canary}').touch()",
    'sympify(\'__import__("os").system("touch {canary}")\')',
    'parse_expr(\'open("{canary}","w")\')',
    "Symbol('x', __import__('os').system('touch {canary}'))",
    "Integer(__import__('os').system('touch {canary}'))",
    'f\'{{__import__("os").system("touch {canary}")}}\'',
    "$(touch {canary})",
    "`touch {canary}`",
    "; touch {canary} ;",
    "1); __import__('os').system('touch {canary}') #",
    "1\n__import__('os').system('touch {canary}')",
    "globals()['__builtins__']['__import__']('os').system('touch {canary}')",
    "x.__class__.__init__.__globals__['os'].system('touch {canary}')",
    "\\sum_{{n=__import__('os').system('touch {canary}')}}^{{5}} n",
    "\\operatorname{{eval}}(\\text{{open('{canary}','w')}})",
    "2**__import__('os').system('touch {canary}')",
]
PIECES = [
    "\\frac{1}{2}",
    "{",
    "}",
    "(",
    ")",
    "^",
    "_",
    "$",
    "\\",
    "'",
    '"',
    "\n",
    "+",
    "=",
    ",",
    "1",
    "x",
    "\\sqrt",
    "\u200b",
    "ﬀ",
    ";",
    "!",
    "%",
]
SHAPES = [
    "\\boxed{%s}",
    "$%s$",
    "\\boxed{$%s$}",
    "The answer is %s",
    "#### 1%s",
    "\\boxed{1+%s}",
    "\\boxed{(%s, 1)}",
    "\\boxed{x = %s}",
]


def fuzzed(count: int, canary: str, seed: int = 0) -> list[tuple[str, str]]:
    """(completion, the payload in it): injections cut, doubled, spliced and wrapped."""
    dice = random.Random(seed)
    made = []
    for _ in range(count):
        payload = dice.choice(INJECTIONS).replace("{{", "{").replace("}}", "}").replace("{canary}", canary)
        for _ in range(dice.randrange(1, 5)):
            place = dice.randrange(len(payload) + 1)
            match dice.randrange(4):
                case 0:
                    payload = payload[:place] + dice.choice(PIECES) + payload[place:]
                case 1:
                    payload = payload[:place] + payload[place + 1 :]
                case 2:
                    payload = dice.choice(PIECES) + payload + dice.choice(PIECES)
                case 3:
                    other = dice.choice(INJECTIONS).replace("{{", "{").replace("}}", "}").replace("{canary}", canary)
                    payload = payload[:place] + other[dice.randrange(len(other)) :]
        made.append((dice.choice(SHAPES) % payload, payload))
    return made
