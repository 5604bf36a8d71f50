#!/usr/bin/env bash
# Trains a part of an experiment of `mosaics arena` within a time limit, on a machine on which nothing is installed and nothing
# stays.
#
#     experiments/gpu.sh SECONDS JOBS FOLDER EXPERIMENT --suite SUITE --tasks mad-recall needle ...
#
# EXPERIMENT is a folder of experiments/: arena, ablation, long_context. Its suite.yaml is the suite unless another is given.
# Runs whose outcomes are in experiments/EXPERIMENT/outcomes are not trained again. FOLDER receives outcomes.tar.gz, every
# minute and at the end: the files of the tasks of this part, which `mosaics arena --merge` adds to those that are here. Beside
# it are the report of this part, the output of runs that ended with an error, the log, and what nvidia-smi said. With
# --estimate nothing is trained, and the report has estimate.json, the speed and memory of each contestant alone.
set -uo pipefail
[ $# -ge 4 ] || { echo "usage: experiments/gpu.sh SECONDS JOBS FOLDER EXPERIMENT [OPTIONS OF mosaics arena]" >&2; exit 2; }
seconds=$1 jobs=$2 folder=$(realpath "$3") experiment=$4
shift 4
cd "$(dirname "$0")/.." || exit 2
home=experiments/$experiment
[ -d "$home" ] || { echo "no experiment $experiment: there is no folder $home" >&2; exit 2; }
[ ! -f "$home/suite.yaml" ] || [[ " $* " == *" --suite "* ]] || set -- --suite "$home/suite.yaml" "$@"
[[ " $* " == *" --estimate "* ]] || set -- --outcomes "$home/outcomes" --jobs "$jobs" "$@"
began=$SECONDS
runs=runs/$experiment-gpu stop=40 # seconds before the limit: processes save and end, outcomes are written, files are packed
mkdir -p "$folder" "$runs" "$home/outcomes"
touch "$folder/.began"
export PYTHONPATH=carry:src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
[ ! -f carry/commit ] || export MEMORY_MOSAICS_COMMIT=$(< carry/commit)
python=${PYTHON:-python3}

pack() {
    (cd "$home" && find outcomes -name '[!.]*.jsonl' -newer "$folder/.began" -print0 |
        tar -czf "$folder/.outcomes" --null --files-from=-) && mv "$folder/.outcomes" "$folder/outcomes.tar.gz"
}

# With MPS the kernels of several processes run at the same time. It is used if a tensor can be made with it.
if command -v nvidia-cuda-mps-control > /dev/null; then
    CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d) CUDA_MPS_LOG_DIRECTORY=$(mktemp -d)
    export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    nvidia-cuda-mps-control -d
    if timeout 60 "$python" -c 'import torch; torch.ones(1, device="cuda").item()'; then
        mps=1
    else
        echo quit | timeout 10 nvidia-cuda-mps-control
        unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    fi
    nvidia-smi --query-gpu=timestamp,utilization.gpu,memory.used --format=csv -l 20 > "$folder/gpu.csv" &
    watching=$!
fi
echo "MPS: ${mps:-no}; started after $((SECONDS - began)) s"

(
    trap 'kill "$!" 2> /dev/null; exit' TERM # once what it packs is packed
    while sleep 60 & wait "$!"; do pack; done
) &
packing=$!
left=$((seconds - stop - SECONDS + began))
setsid timeout -s TERM -k $((stop - 15)) "$left" "$python" -m memory_mosaics.cli arena --out "$runs" \
    "$@" > "$folder/arena.log" 2>&1 &
arena=$!
wait "$arena"
status=$?
kill -KILL -- "-$arena" 2> /dev/null # processes that did not end with it: nothing may outlast the limit
tail -n 80 "$folder/arena.log"
echo "exit status $status (0: all trained, 124 to 143: stopped) after $((SECONDS - began)) s"
kill "$packing" ${watching:-} 2> /dev/null
wait "$packing"
pack
wc -l "$home"/outcomes/*.jsonl
grep -lsE 'Traceback|Error' "$runs"/*/trials/*/output.txt > "$folder/.failed" &&
    tar -czf "$folder/failures.tar.gz" --files-from="$folder/.failed"
(cd "$runs" && find . -maxdepth 1 -type f -name '[!.]*.*' -print0 | tar -czf "$folder/report.tar.gz" --null --files-from=-)
rm -f "$folder/.failed" "$folder/.began"
[ -z "${mps:-}" ] || echo quit | timeout 10 nvidia-cuda-mps-control
echo "packed after $((SECONDS - began)) s"
case $status in 124 | 130 | 137 | 143) exit 0 ;; *) exit "$status" ;; esac
