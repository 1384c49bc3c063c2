def solve(x):
    return eval('(' * 500_000 + '1' + ')' * 500_000) + eval('-' * 3_000_000 + '1')
