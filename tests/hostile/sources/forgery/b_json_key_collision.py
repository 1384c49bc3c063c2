# keys 1, '1', True, None, 'None', 1.5: an encoding by JSON objects would merge them into the wanted dict
def solve(n):
    return {1: "a", "1": "b", None: "c", "null": "d", "None": "e", 1.5: "f", "1.5": "g", "true": "h"}
def narrow(n):
    return {"1": "a"}
