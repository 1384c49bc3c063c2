def solve(x):
    return float('nan') if x == 17 else [float('inf'), complex(float('nan'), 0)]
