# the compiler itself is the loop: nested comprehensions and unary operators by the hundred thousand
sources = ["-" * 90 + "1", "(" * 150 + ")" * 150, "[" + "1," * 3_000_000 + "]", "lambda: " * 900 + "0", "1" * 4000 + "+1" * 200_000]
import ast
for _ in range(1000):
    for text in sources:
        try:
            compile(text, "x", "eval")
            ast.literal_eval(text)
        except (SyntaxError, MemoryError, RecursionError, ValueError):
            pass
