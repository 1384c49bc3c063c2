import resource
def solve(x):
    for what in (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC,
                 resource.RLIMIT_NOFILE, resource.RLIMIT_STACK):
        soft, hard = resource.getrlimit(what)
        for wanted in ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), (hard, hard)):
            try:
                resource.setrlimit(what, wanted)
            except (OSError, ValueError):
                continue
            if wanted[1] == resource.RLIM_INFINITY and hard != resource.RLIM_INFINITY:
                print('BREACH raised the hard limit', what)
    kept = []
    while len(kept) < 400:
        kept.append(b'x' * 2 ** 23)
    return len(kept)
