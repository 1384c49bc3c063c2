def solve(x):
    text = 'xy'
    while len(text) < 3 * 2 ** 30:
        text += text
