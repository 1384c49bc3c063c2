import urllib.request
def solve(x):
    for address in ('http://127.0.0.1:@PORT@/', 'http://169.254.169.254/latest/meta-data/', 'http://1.1.1.1/', 'ftp://127.0.0.1:@PORT@/x'):
        try:
            urllib.request.urlopen(address, timeout=0.3)
            print('BREACH an answer from', address)
        except Exception:
            pass
    return 1
