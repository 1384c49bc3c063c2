# a list nested a hundred thousand deep: recursion in the encoder, in the host's decoder, in comparison, in deallocation
def solve(n):
    value = []
    for _ in range({17: 900, 18: 100_000, 19: 3_000_000}[n]):
        value = [value]
    return value
