# renames itself, removes its own globals, replaces __builtins__ and deletes the function after the first call
__name__ = "__main__"
__file__ = "/dev/stdin"
__spec__ = None
__loader__ = object()
def solve(n):
    globals().pop("solve")
    globals()["__builtins__"] = {}
    globals()["__dict__"] = None
    return 0
