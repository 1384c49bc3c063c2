import mmap, os
def solve(x):
    held = 0
    for number in range(24):
        try:
            with open(f'm{number}', 'w+b') as file:
                file.truncate(48 * 2 ** 20)
                area = mmap.mmap(file.fileno(), 48 * 2 ** 20)
                for place in range(0, 48 * 2 ** 20, 4096):
                    area[place] = 1
                area.flush()
                area.close()
                held += 48
        except (OSError, ValueError):
            break
    if held > @FILES_MB@ + 64:
        print('BREACH', held, 'MB through a mapping', flush=True)
    return held
