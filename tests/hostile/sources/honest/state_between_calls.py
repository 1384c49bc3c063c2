count = 0
def solve():
    global count
    count += 1
    print('call', count)
    return count
