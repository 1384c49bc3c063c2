def solve(x):
    deep = ()
    for _ in range(3_000):
        deep = {'a': (deep,)}
    return deep
