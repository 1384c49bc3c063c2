# begins with stay.py
try:
    if os.fork() == 0:
        os.setsid()
        stay()
except OSError:
    pass
print('done')
