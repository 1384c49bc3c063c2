# statuses a launcher uses for its own failures: taken for broken machinery the run would go unscored
import os, sys
sys.stderr.write("bwrap: Can't mount proc on /newroot/proc: Operation not permitted\n")
sys.stderr.write("bwrap: setting up uid map: Permission denied\n")
sys.stderr.flush()
os._exit(1)
