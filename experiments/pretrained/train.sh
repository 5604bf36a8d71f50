#!/usr/bin/env bash
# Makes the models that come with the package: tokens on a CPU, then, on a GPU on whose machine nothing is installed and
# nothing stays, training, evaluation and packing.
#
#     experiments/pretrained/train.sh prepare [STORIES]
#     experiments/pretrained/train.sh train SECONDS FOLDER [flags of mosaics train]
#
# prepare writes data/pretrained, 2 bytes per token, and carry, what Python needs there. train reads them and writes to FOLDER
# an archive of each model, which is a folder of src/memory_mosaics/pretrained, results.json and logs.tar.gz. RATES has the
# learning rates to try, "3e-3 6e-3" unless it is set.
set -euo pipefail
command=${1:-} python=${PYTHON:-python3}
cd "$(dirname "$0")/../.."
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
data=data/pretrained
mosaics=("$python" -m memory_mosaics.cli)

prepare() {
    export PYTHONPATH=src
    "${mosaics[@]}" prepare "stories:${1:-60000}:0" --valid stories:1500:1 --out $data/tokens --tokenizer bpe --vocabulary 4096
    "${mosaics[@]}" prepare stories:1500:2 --out $data/report --tokenizer $data/tokens --valid_share 0
    "$python" -m pip install --quiet --no-deps --upgrade --target carry --constraint constraints.txt \
        jsonargparse docstring-parser typeshed-client
    git describe --always --abbrev=40 --exclude='*' --dirty=' with changes' > carry/commit
    du -sh $data carry
}

train() {
    local left=$(($1 - 90)) folder runs=runs/pretrained name rate out ended=0 # 90 s: evaluation, packing
    folder=$(realpath "$2")
    shift 2
    mkdir -p "$folder" $runs
    export PYTHONPATH=carry:src
    [ ! -f carry/commit ] || MEMORY_MOSAICS_COMMIT=$(< carry/commit) && export MEMORY_MOSAICS_COMMIT
    for name in memory-mosaic-stories llama-stories; do
        for rate in ${RATES:-3e-3 6e-3}; do
            out=$runs/$name-$rate
            timeout -s TERM -k 20 "$left" "${mosaics[@]}" train $data/tokens --preset $name --out "$out" \
                --training.learning_rate $rate --runtime.samples 0 "$@" > "$out.log" 2>&1 &
        done
    done
    wait
    tail -n 3 $runs/*.log
    OMP_NUM_THREADS=$(nproc) "$python" experiments/pretrained/package.py $runs $data $runs/package || ended=$?
    (cd $runs && tar -czf "$folder/logs.tar.gz" ./*.log ./*/results.json ./*/log.jsonl ./*/run.yaml)
    for name in memory-mosaic-stories llama-stories; do
        [ ! -d $runs/package/$name ] || tar -czf "$folder/$name.tar.gz" -C $runs/package $name
    done
    [ ! -f $runs/package/results.json ] || cp $runs/package/results.json "$folder"
    ls -l "$folder"
    return "$ended"
}

case $command in
prepare | train) "$@" ;;
*) sed -n '2,10s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac
