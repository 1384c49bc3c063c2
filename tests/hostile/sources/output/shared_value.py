def solve(x):
    wide = ['x' * 1000]
    for _ in range(40):
        wide = [wide, wide]
    return wide
