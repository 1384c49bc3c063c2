
import bisect, collections, functools, heapq, itertools, operator
def solve(n):
    heap = []
    for value in range(n, 0, -1):
        heapq.heappush(heap, value)
    counted = collections.Counter("mississippi").most_common(2)
    @functools.cache
    def fib(k):
        return k if k < 2 else fib(k - 1) + fib(k - 2)
    return [heapq.nsmallest(3, heap), counted, fib(90), bisect.bisect([1, 3, 5], 4),
            list(itertools.islice(itertools.accumulate(itertools.count(1)), 5)), functools.reduce(operator.mul, range(1, 6)),
            [len(list(g)) for _, g in itertools.groupby("aabccc")], collections.OrderedDict(a=1), collections.deque([1, 2, 3], 2)[0]]
