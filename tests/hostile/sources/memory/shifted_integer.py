def solve(x):
    return (1 << (8 * 3 * 2 ** 30)).bit_length()
