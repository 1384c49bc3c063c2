# a list and a dict that contain themselves
def solve(n):
    knot = [1]
    tie = {"knot": knot}
    knot.append(tie)
    knot.append((knot, tie))
    return knot
