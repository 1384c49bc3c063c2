def solve(x):
    made = 0
    try:
        for number in range(200_000):
            open(f'file{number}', 'w').close()
            made += 1
    finally:
        print('made', made, flush=True)
    return made
