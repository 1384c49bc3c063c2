
import copy, gc, sys, types, weakref
class Node:
    pass
def solve():
    gone = []
    first, second = Node(), Node()
    first.other, second.other = second, first
    weakref.finalize(first, gone.append, 1)
    del first, second
    gc.collect()
    deep = copy.deepcopy({"a": [1, {2}]})
    module = types.ModuleType("made")
    exec("x = 3", module.__dict__)
    return [gone, deep, module.x, sys.getrefcount(object()) > 0]
