#!/bin/sh
# Circuit cutting on Slurm, three jobs in a chain: cut; an array of 216 elements, each with a QPU; join.
#   sh submit.sh [REQUEST] [CUTS]
# An element pends for a free slot on its own, so as many run at once as the QPUs have slots.
set -eu
request=${1:-any} cuts=${2:-3}
here=$(cd "$(dirname "$0")" && pwd)
out=$PWD/cutting-out
elements=1 n=0
while [ $n -lt "$cuts" ]; do elements=$((elements * 6)) n=$((n + 1)); done

step() { # NAME OPTION... -- ARGUMENT...
    name=$1; shift
    options=; while [ "$1" != -- ]; do options="$options $1"; shift; done; shift
    # shellcheck disable=SC2086  # options are words without blanks
    sbatch --parsable --job-name="cutting-$name" --time=10 $options --wrap "python3 '$here/workflow.py' $name '$out' $*"
}

cut=$(step cut -- "$cuts")
run=$(step run --dependency="afterok:$cut" --qpu="$request" --array=0-$((elements - 1)) -- '$SLURM_ARRAY_TASK_ID')
join=$(step join --dependency="afterok:$run" --output="$out-%j.txt" --)
echo "cut $cut, run $run (0-$((elements - 1))), join $join: the values will be in $out-$join.txt"
