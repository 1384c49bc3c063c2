# two references per level for sixty levels: small here, endless once written out
def solve(n):
    value = ["ha"]
    for _ in range(60):
        value = [value, value]
    return value
