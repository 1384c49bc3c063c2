
import asyncio
async def slow(k):
    await asyncio.sleep(0.01)
    return k
async def main(n):
    results = await asyncio.gather(*(slow(k) for k in range(n)))
    results.append(await asyncio.to_thread(sum, results))
    async with asyncio.timeout(1):
        await asyncio.sleep(0)
    return results
def solve(n):
    return asyncio.run(main(n))
