def solve(x):
    kept = []
    for place in range(8_000_000):
        kept.append({place: [place]})
    return len(kept)
