#!/usr/bin/env bash
# Every figure of a GPU, in parts that take some minutes each; what is printed also lands in gpu-figures/.
#
#     bash tests/gpu.sh                                        all parts on the GPU
#     bash tests/gpu.sh ladder peers                           some of: tests ladder peers memory saving
#     NANOGPT=~/nanoGPT bash tests/gpu.sh peers                nanoGPT's folder, beside transformers
#     SMALL=1 bash tests/gpu.sh ladder memory                  the same on a processor, with a tiny model: does it work?
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
out=${OUT:-gpu-figures}
mkdir -p "$out"
failed=0

figure() { # NAME COMMAND...: runs it, shows it, keeps it
    local name=$1
    shift
    echo "== $name: $*"
    "$@" 2>&1 | tee "$out/$name.txt" || failed=1
}

where=--use_gpu
shapes=("--shape A" "--shape B" "--shape B --batch_size 64")
model=(--model_size gpt2_small --vocab_size 50304 --seq_length 1024)
if [ -n "${SMALL:-}" ]; then
    where=--no-use_gpu
    shapes=("--model_size tiny --vocab_size 512 --seq_length 32 --batch_size 4 --steps 3 --warmup 1 --rungs 0,1,3,8")
    model=(--model_size tiny --vocab_size 512 --seq_length 32 --max_steps 20)
fi

parts=("$@")
[ $# -gt 0 ] || parts=(tests ladder peers memory saving)
for part in "${parts[@]}"; do
    case $part in
    tests) figure tests "$python" -m pytest -q -m gpu ;;
    ladder) for i in "${!shapes[@]}"; do
        # shellcheck disable=SC2086
        figure "ladder-$i" "$python" bench.py $where ${shapes[$i]} --json "$out/ladder-$i.json"
    done ;;
    peers) for i in "${!shapes[@]}"; do
        # shellcheck disable=SC2086
        [ -z "${NANOGPT:-}" ] || figure "nanogpt-$i" "$python" bench.py $where ${shapes[$i]} --peer nanogpt \
            --peer_dir "$NANOGPT" --json "$out/nanogpt-$i.json"
        # shellcheck disable=SC2086
        figure "transformers-$i" "$python" bench.py $where ${shapes[$i]} --peer transformers \
            --json "$out/transformers-$i.json"
    done ;;
    memory) "$python" -c "
import numpy as np
np.random.default_rng(0).integers(0, 500, 2_000_000).astype('<i2').tofile('$out/tokens.bin')"
        for flags in "--use_amp" "--use_amp --batch_size auto" "--use_amp --amp_dtype fp16" "--no-use_amp" \
            "--use_amp --activation_checkpointing"; do
            # shellcheck disable=SC2086
            figure "plan$(echo "$flags" | tr -d ' -')" "$python" train.py $where --bin_file "$out/tokens.bin" \
                "${model[@]}" $flags --dry_run
        done ;;
    saving) figure saving "$python" bench.py $where --saving "${model[@]:0:6}" ;;
    *) echo "unknown part $part; there are: tests ladder peers memory saving" >&2 && exit 2 ;;
    esac
done
exit $failed
