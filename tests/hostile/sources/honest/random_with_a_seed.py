
import random, secrets, uuid
def solve(seed):
    source = random.Random(seed)
    assert len(secrets.token_hex(8)) == 16 and uuid.uuid4().version == 4
    return [source.randint(1, 100) for _ in range(3)] + source.sample(range(10), 3)
