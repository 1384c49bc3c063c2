
import asyncio
async def solve(n):
    await asyncio.sleep(0)
    return n + 1
