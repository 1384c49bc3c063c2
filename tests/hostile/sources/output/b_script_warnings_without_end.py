# resource warnings, never-awaited coroutines and failing finalisers: messages the interpreter writes by itself
import gc, warnings
warnings.simplefilter("always")
class Fails:
    def __del__(self):
        raise ValueError("z" * 10_000)
async def never():
    pass
for _ in range(100_000):
    Fails()
    never()
    open("/dev/null")
