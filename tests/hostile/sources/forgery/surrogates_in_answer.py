def solve(x):
    print('\ud800 out'.encode('utf-8', 'surrogatepass'))
    return {'\udcff': '\ud800' * 10}
