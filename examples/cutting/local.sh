#!/bin/sh
# The same on the manager of one machine, which has neither arrays nor dependencies: it is told to wait instead.
#   sh local.sh [REQUEST] [CUTS]        (STATE_DIR: the queue's folder, if it is not the usual one)
set -eu
request=${1:-any} cuts=${2:-3}
here=$(cd "$(dirname "$0")" && pwd)
out=$PWD/cutting-out
queue() {
    verb=$1; shift
    python3 -m qtandem.local.command "$verb" ${STATE_DIR:+--state-dir "$STATE_DIR"} "$@"
}

mkdir -p "$out"
queue submit --wait --output "$out/elements" python3 "$here/workflow.py" cut "$out" "$cuts"
elements=$(tail -n 1 "$out/elements")
jobs=$(n=0; while [ $n -lt "$elements" ]; do
    queue submit --qpu "$request" python3 "$here/workflow.py" run "$out" $n
    n=$((n + 1))
done)
# shellcheck disable=SC2086  # one word a job
queue wait $jobs
queue submit --wait --output "$out/values" python3 "$here/workflow.py" join "$out"
cat "$out/values"
