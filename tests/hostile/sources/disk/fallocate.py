import os
def solve(x):
    held, kept = 0, []
    for number in range(64):
        try:
            descriptor = os.open(f'f{number}', os.O_CREAT | os.O_RDWR)
            kept.append(descriptor)
            os.posix_fallocate(descriptor, 0, 48 * 2 ** 20)
            held += 48
        except OSError:
            pass
    if held > @FILES_MB@ + 64:
        print('BREACH', held, 'MB set aside', flush=True)
    return held
