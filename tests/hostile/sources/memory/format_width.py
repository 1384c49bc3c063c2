def solve(x):
    return len('%3000000000d' % 1) + len(f'{1:3000000000}')
