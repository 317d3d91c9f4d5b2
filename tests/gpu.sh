#!/usr/bin/env bash
# Every figure of a GPU, in parts of less than ten minutes each, the most precious first.
#
#     bash tests/gpu.sh                          all parts, an hour and a half or less
#     bash tests/gpu.sh tests peers              some of: tests peers ladder memory fp16 decode saving run graphs tuned
#                                                steps
#     LIMIT=560 bash tests/gpu.sh                stops after so many seconds; the same command goes on from there
#     FORCE=1 bash tests/gpu.sh memory           again, though it is done
#     NANOGPT=~/nanoGPT bash tests/gpu.sh peers  nanoGPT's folder
#     CORPUS=data bash tests/gpu.sh run          a folder of pretokenize.py, for the real run of RUN_MINUTES=18
#     SMALL=1 bash tests/gpu.sh                  the same on a processor, with a tiny model: does it work?
#
# What is done is not repeated: each command's output lies in gpu-figures/ (OUT), with its exit code and its seconds in
# NAME.status. Every part ends with a table: of each command how it ended, and the lines with its figures.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-$(command -v python || command -v python3)}
out=${OUT:-gpu-figures}
limit=${LIMIT:-100000}
all=(tests peers ladder memory fp16 decode saving run graphs tuned steps)
mkdir -p "$out"
failed=0 # 1: something failed; 75: stopped at LIMIT

where=--use_gpu
shapes=(A B gpt2_small,1024,64,50304)
model=(--model_size gpt2_small --vocab_size 50304 --seq_length 1024)
sizes=(tiny mini)
minutes=${RUN_MINUTES:-18}
if [ -n "${SMALL:-}" ]; then
    where=--no-use_gpu
    shapes=(tiny,32,4,512)
    model=(--model_size tiny --vocab_size 512 --seq_length 32 --max_steps 20 --batch_size 4)
    sizes=(tiny)
    minutes=0.4
fi

steps=(--learning_rate 0.0003 --log_interval 5 --eval_interval 99999 --sample_interval 0 --checkpoint_every_minutes 0
    --max_steps 60)

# ---------------------------------------------------------------- one command, one table

item() { # NAME COMMAND...: runs it, shows it, keeps it; not if it is done or no time is left
    local name=$1 began=$SECONDS left=$((limit - SECONDS)) code
    shift
    [ "$(head -n 1 "$out/$name.status" 2> /dev/null)" != 0 ] || [ -n "${FORCE:-}" ] || return 0
    if [ "$left" -lt 20 ]; then
        [ $failed != 0 ] || failed=75
        return 75
    fi
    echo "== $name: $*"
    timeout --foreground --kill-after 60 "$left" "$@" 2>&1 | tee "$out/$name.txt"
    code=${PIPESTATUS[0]}
    printf '%s\n' "$code" "$((SECONDS - began))" "$(date -u +%F)" "$*" > "$out/$name.status"
    [ "$code" = 0 ] || failed=1
    return "$code"
}

table() { # PART: how each of its commands ended, and the lines with its figures
    local status name
    echo "-- $1, $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2> /dev/null || uname -m)"
    for status in "$out/$1".status "$out/$1"-*.status; do
        [ -f "$status" ] || continue
        name=$(basename "$status" .status)
        echo "$name: exit code $(sed -n 1p "$status"), $(sed -n 2p "$status") s, $(sed -n 3p "$status")"
        {
            grep -E '^(machine|shape|rung|losses|memory|precision|step  |compiled|peak_memory:|tokens_per_second)' \
                "$out/$name.txt"
            grep -E '^(nanoGPT|ours|FAILED| +[0-9]+  )|[0-9.]+x$|(passed|failed).* in |^skipped' "$out/$name.txt"
            grep '^step [0-9]' "$out/$name.txt" | tail -n 1
        } | sed 's/^/    /'
    done
}

# ---------------------------------------------------------------- what the parts are made of

bench() { # NAME FLAGS...: bench.py for each shape
    local name=$1 shape
    shift
    for shape in "${shapes[@]}"; do
        item "$name-$shape" "$python" bench.py "$where" --shape "$shape" --json "$out/$name-$shape.json" \
            ${SMALL:+--steps 3} "$@"
    done
}

tokens() { # made up, once
    [ -f "$out/tokens.bin" ] || "$python" -c "
import numpy as np
np.random.default_rng(0).integers(0, 500, 2_000_000).astype('<i2').tofile('$out/tokens.bin')"
}

trained() { # NAME FLAGS...: train.py on made-up tokens
    local name=$1
    shift
    tokens
    item "$name" "$python" train.py "$where" --bin_file "$out/tokens.bin" "${model[@]}" "$@"
}

stepped() { # NAME FLAGS...: some steps, whose seconds and losses are kept
    local name=$1
    shift
    trained "$name" --output_dir "$out/$name" "${steps[@]}" "$@"
}

killed() { # kill -9 after a save, and a resumed run beside one that was never stopped
    local flags=(--deterministic --checkpoint_every_steps 10 --log_interval 1 --optimizer adamw) waited=0 child
    stepped saving-whole "${flags[@]}" --overwrite || return
    [ "$(head -n 1 "$out/saving-killed.status" 2> /dev/null)" != 0 ] || [ -n "${FORCE:-}" ] || return
    rm -rf "$out/saving-killed"
    "$python" train.py "$where" --bin_file "$out/tokens.bin" "${model[@]}" --output_dir "$out/saving-killed" \
        "${steps[@]}" "${flags[@]}" > /dev/null 2>&1 &
    child=$!
    while kill -0 $child 2> /dev/null && [ $waited -lt 3000 ]; do
        grep -q '"step": 2[5-9]' "$out/saving-killed/metrics.jsonl" 2> /dev/null && break
        sleep 0.1
        waited=$((waited + 1))
    done
    kill -9 $child 2> /dev/null
    wait $child 2> /dev/null
    stepped saving-killed "${flags[@]}" --resume_from auto
    item saving-equal "$python" -c "
import json
def losses(name):
    rows = map(json.loads, open(f'$out/saving-{name}/metrics.jsonl'))
    return {row['step']: row['loss'] for row in rows if 'loss' in row}
whole, killed = losses('whole'), losses('killed')
print('losses equal bit for bit:', sum(killed.get(step) == whole[step] for step in whole), 'of', len(whole))
raise SystemExit(killed != whole)"
}

# ---------------------------------------------------------------- the parts

part() { # NAME
    local arch optimizer size mode flags number=0
    case $1 in
    tests) item tests "$python" -m pytest -v -v -rs -m gpu ${SMALL:+--collect-only -q} ;;
    peers) [ -z "${NANOGPT:-}" ] || bench peers --peer step --peer_dir "$NANOGPT" ;;
    ladder)
        bench ladder-low --rungs 0,1,2,3
        bench ladder-high --rungs 0,4,5,6
        ;;
    tuned) bench tuned --rungs 6,7 ;;
    decode) item decode "$python" bench.py "$where" --peer decode ;;
    memory) for flags in "--use_amp" "--no-use_amp" "--use_amp --batch_size 64" \
        "--use_amp --activation_checkpointing" "--use_amp --arch qwen3" "--use_amp --optimizer adamw" \
        "--use_amp --batch_size auto --gradient_accumulation_steps 16"; do
        [ $((number += 1)) -lt 3 ] || [ -z "${SMALL:-}" ] || break
        # shellcheck disable=SC2086
        trained "memory-$(echo "$flags" | tr -d ' -')" --verbose --dry_run $flags
    done ;;
    fp16) for mode in bf16 fp16; do stepped "fp16-$mode" --overwrite --use_amp --amp_dtype $mode; done ;;
    saving) killed ;;
    run) # gpt2_small on CORPUS; the next call goes on where LIMIT stopped it
        [ -n "${CORPUS:-}" ] || { echo "run: give CORPUS=FOLDER, of pretokenize.py" && return; }
        item run "$python" train.py "$where" --data_dir "$CORPUS" "${model[@]:0:2}" --use_amp --max_minutes "$minutes" \
            --epochs 1000 --output_dir "$out/run" --resume_from auto --log_interval 20 || return
        item run-curve "$python" plot.py "$out/run" --text
        item run-text "$python" generate.py --ckpt "$out/run" "$where" --max_new_tokens 200
        ;;
    graphs) for size in "${sizes[@]}"; do
        for mode in default reduce-overhead; do
            [ -z "${SMALL:-}" ] || [ $mode = default ] || continue # CUDA graphs take a GPU
            stepped "graphs-$size-$mode" --overwrite --model_size "$size" --compile --use_amp --compile_mode $mode \
                --max_steps 200
        done
    done ;;
    steps) for arch in $("$python" -c "from architectures.table import ARCHITECTURES; print(*ARCHITECTURES)"); do
        for optimizer in $("$python" -c "from training.optimizers import OPTIMIZERS; print(*OPTIMIZERS)"); do
            trained "steps-$arch-$optimizer" --arch "$arch" --optimizer "$optimizer" --verbose --dry_run
            trained "steps-overfit-$arch-$optimizer" --arch "$arch" --optimizer "$optimizer" --overfit 1 --batch_size 2 \
                ${SMALL:+--max_steps 200 --learning_rate 0.003}
            [ -z "${SMALL:-}" ] || return 0
        done
    done ;;
    *) echo "unknown part $1; there are: ${all[*]}" >&2 && exit 2 ;;
    esac
}

[ $# -gt 0 ] || set -- "${all[@]}"
for name in "$@"; do
    part "$name"
    table "$name"
done
exit $failed
