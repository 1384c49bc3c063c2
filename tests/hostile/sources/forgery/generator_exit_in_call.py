def solve(x):
    raise GeneratorExit if x == 17 else StopIteration
