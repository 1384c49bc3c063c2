import os
def solve(x):
    for folder in ('/etc/cron.d', '/var/spool/cron/crontabs', '/etc/systemd/system', '/etc/profile.d', '/etc/init.d'):
        try:
            open(os.path.join(folder, '@MARKER@'), 'x').close()
            print('BREACH wrote to', folder)
        except OSError:
            pass
    return 1
