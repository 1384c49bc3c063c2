#!/bin/sh
# The check before a release, from outside: a fresh clone of HEAD, its wheels in a fresh environment, and what a user does with them.
#   benchmarks/acceptance.sh                             every check; at most 15 minutes on two quiet cores
#   benchmarks/acceptance.sh --list                      the checks
#   benchmarks/acceptance.sh --environment .venv ranks   one check, with an existing environment
set -eu
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: PYTHON=python3.12 $0"; exit 2; }
exec "$python" "$(dirname "$0")/acceptance" "$@"
