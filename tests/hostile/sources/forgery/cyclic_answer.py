def solve(x):
    loop = []
    loop.append(loop)
    loop.append({'a': loop})
    return loop
