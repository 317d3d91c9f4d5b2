#!/usr/bin/env bash
# Every figure of a GPU, in parts of less than ten minutes each, the most precious first.
#
#     bash tests/gpu.sh                          all parts, an hour and a half or less
#     bash tests/gpu.sh tests peers              some of: tests peers ladder memory fp16 decode saving run graphs tuned
#                                                steps; `peers` is all of peers-A, peers-B and peers-B64, and so on
#     LIMIT=560 bash tests/gpu.sh                stops after so many seconds; the same command goes on from there
#     FORCE=1 bash tests/gpu.sh memory           again, though it is done
#     NANOGPT=~/nanoGPT bash tests/gpu.sh peers  nanoGPT's folder, beside transformers
#     SHAPES="B B64" bash tests/gpu.sh ladder    some of the shapes: A, B, B64 (B with a micro-batch of 64)
#     CORPUS=data bash tests/gpu.sh run          a folder of pretokenize.py, for the real run of RUN_MINUTES=18
#     SMALL=1 bash tests/gpu.sh                  the same on a processor, with a tiny model: does it work?
#
# What is done is not repeated: each command's output lies in gpu-figures/ (OUT), with its exit code and its seconds in
# NAME.status. Every part ends with a table in Markdown, gpu-figures/PART.md; benchmarks/gpu_figures.py makes it.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-$(command -v python || command -v python3)}
out=${OUT:-gpu-figures}
limit=${LIMIT:-100000}
all=(tests peers ladder memory fp16 decode saving run graphs tuned steps)
mkdir -p "$out"
failed=0 # 1: something failed; 75: stopped at LIMIT

where=--use_gpu
shapes=${SHAPES:-A B B64}
model=(--model_size gpt2_small --vocab_size 50304 --seq_length 1024)
shape_of_model=(--model_size gpt2_small --vocab_size 50304)
few=(--max_steps 60)
sizes="tiny mini"
long=()
share=540 # seconds of the real run in one call
minutes=${RUN_MINUTES:-18}
if [ -n "${SMALL:-}" ]; then
    where=--no-use_gpu
    shapes=small
    model=(--model_size tiny --vocab_size 512 --seq_length 32 --max_steps 20 --batch_size 4)
    shape_of_model=(--model_size tiny --vocab_size 512)
    few=(--max_steps 60 --batch_size 4)
    sizes=tiny
    long=(--max_steps 200 --learning_rate 0.003)
    share=12
    minutes=0.4
fi

# ---------------------------------------------------------------- one command, one table

item() { # NAME COMMAND...: runs it, shows it, keeps it; not if it is done or no time is left
    local name=$1 began=$SECONDS left=$((limit - SECONDS)) code
    shift
    [ "$(head -n 1 "$out/$name.status" 2> /dev/null)" != 0 ] || [ -n "${FORCE:-}" ] || return 0
    if [ "$left" -lt 20 ]; then
        [ $failed != 0 ] || failed=75
        return 75
    fi
    [ "${seconds:-0}" -eq 0 ] || [ "$seconds" -gt "$left" ] || left=$seconds
    echo "== $name: $*"
    timeout --foreground --kill-after 60 "$left" "$@" 2>&1 | tee "$out/$name.txt"
    code=${PIPESTATUS[0]}
    printf '%s\n' "$code" "$((SECONDS - began))" "$(date -u +%F)" "$*" > "$out/$name.status"
    [ "$code" = 0 ] || failed=1
    return "$code"
}

table() { # PART
    "$python" -m benchmarks.gpu_figures "$1" "$out" | tee "$out/$1.md"
}

# ---------------------------------------------------------------- what the parts are made of

flags_of() { # SHAPE: bench.py's flags
    case $1 in
    A) echo --shape A ;;
    B) echo --shape B ;;
    B64) echo --shape B --batch_size 64 ;;
    small) echo --model_size tiny --vocab_size 512 --seq_length 32 --batch_size 4 --steps 3 --warmup 1 ;;
    *) echo "unknown shape $1; there are: A B B64" >&2 && exit 2 ;;
    esac
}

bench() { # NAME SHAPE FLAGS...
    local name=$1-$2 shape
    shape=$(flags_of "$2") || exit 2
    shift 2
    # shellcheck disable=SC2086
    item "$name" "$python" bench.py "$where" $shape --limit_minutes 5 --json "$out/$name.json" "$@"
}

make_tokens() {
    [ -f "$out/tokens.bin" ] || "$python" -c "
import numpy as np
np.random.default_rng(0).integers(0, 500, 2_000_000).astype('<i2').tofile('$out/tokens.bin')"
}

trained() { # NAME FLAGS...: train.py on made-up tokens
    local name=$1
    shift
    make_tokens
    item "$name" "$python" train.py "$where" --bin_file "$out/tokens.bin" "${model[@]}" "$@"
}

stepped() { # NAME FLAGS...: some steps, whose seconds and losses are kept
    local name=$1
    shift
    trained "$name" --output_dir "$out/$name" --overwrite --learning_rate 0.0003 --log_interval 5 --eval_interval 99999 \
        --sample_interval 0 --checkpoint_every_minutes 0 "${few[@]}" "$@"
}

killed() { # kill -9 after a save, and a resumed run beside one that was never stopped
    local flags=(--deterministic --checkpoint_every_steps 10 --log_interval 1 --optimizer adamw)
    stepped saving-whole "${flags[@]}" || return
    [ "$(head -n 1 "$out/saving-resumed.status" 2> /dev/null)" != 0 ] || [ -n "${FORCE:-}" ] || return
    make_tokens
    local command=("$python" train.py "$where" --bin_file "$out/tokens.bin" "${model[@]}" --learning_rate 0.0003
        --eval_interval 99999 --sample_interval 0 --checkpoint_every_minutes 0 "${few[@]}" "${flags[@]}"
        --output_dir "$out/saving-killed")
    rm -rf "$out/saving-killed"
    "${command[@]}" > "$out/saving-killed.txt" 2>&1 &
    local child=$! waited=0
    while kill -0 $child 2> /dev/null && [ $waited -lt 3000 ]; do
        grep -q '"step": 2[5-9]' "$out/saving-killed/metrics.jsonl" 2> /dev/null && break
        sleep 0.1
        waited=$((waited + 1))
    done
    kill -9 $child 2> /dev/null
    wait $child 2> /dev/null
    item saving-resumed "${command[@]}" --resume_from auto
}

real_run() { # gpt2_small on CORPUS; stopped after its share of the time, the next call goes on
    local corpus=(--data_dir "${CORPUS:-}") turn
    if [ -z "${CORPUS:-}" ]; then
        [ -n "${SMALL:-}" ] || { echo "run: give CORPUS=FOLDER, of pretokenize.py" && return; }
        make_tokens
        corpus=(--bin_file "$out/tokens.bin" --vocab_size 512 --seq_length 32 --batch_size 4)
    fi
    for turn in 1 2 3; do
        seconds=$share item run "$python" train.py "$where" "${corpus[@]}" "${shape_of_model[@]:0:2}" --use_amp \
            --max_minutes "$minutes" --epochs 1000 --output_dir "$out/run" --resume_from auto --log_interval 20 ||
            [ $? = 124 ] || return
        [ "$(head -n 1 "$out/run.status")" = 124 ] || break
        failed=0
        [ $((limit - SECONDS)) -gt 60 ] || break
    done
    [ "$(head -n 1 "$out/run.status")" = 0 ] || return
    item run-curve "$python" plot.py "$out/run" --output "$out/run.png"
    [ -z "${CORPUS:-}" ] || item run-text "$python" generate.py --ckpt "$out/run" "$where" --max_new_tokens 200
}

# ---------------------------------------------------------------- the parts

part() { # NAME
    local shape=${1#*-} arch optimizer size mode number=0 card flags
    case $1 in
    tests) item tests "$python" -m pytest -v -v -rs -m gpu ${SMALL:+--collect-only -q} ;;
    peers-*)
        [ -z "${NANOGPT:-}" ] || bench nanogpt "$shape" --no-tuned --peer nanogpt --peer_dir "$NANOGPT" --peer_turns 2
        bench transformers "$shape" --no-tuned --peer transformers --peer_turns 2
        ;;
    ladder-*)
        bench ladder-low "$shape" --no-tuned --rungs 0,1,2,3,4
        bench ladder-high "$shape" --no-tuned --rungs 0,5,6,7,8,10,11
        ;;
    tuned-*) bench ladder-tuned "$shape" --tuned --rungs 8,9 ;;
    memory) for flags in "--use_amp" "--use_amp --batch_size 64" "--use_amp --loss_kernel" "--use_amp --loss_chunk_tokens 0" \
        "--no-use_amp" "--use_amp --activation_checkpointing" "--use_amp --arch qwen3" "--use_amp --optimizer adamw" \
        "--use_amp --batch_size auto --gradient_accumulation_steps 16"; do
        [ -z "${SMALL:-}" ] || [ "$flags" = --use_amp ] || [ "$flags" = --no-use_amp ] || continue
        # shellcheck disable=SC2086
        trained "memory$(echo "$flags" | tr -d ' -')" --verbose --dry_run $flags
    done ;;
    fp16)
        stepped fp16-bf16 --use_amp --amp_dtype bf16
        stepped fp16-fp16 --use_amp --amp_dtype fp16
        for card in T4 "RTX 3060"; do
            make_tokens
            item "fp16-as${card// /}" "$python" -m benchmarks.small_card "$card" "$where" --bin_file "$out/tokens.bin" \
                "${model[@]}" --use_amp --verbose --dry_run
        done
        ;;
    decode)
        if [ -n "${SMALL:-}" ]; then
            item decode "$python" -m benchmarks.generation_peers --turns 1 --tokens 4 --only "ours fp32, 1"
        else
            item decode "$python" -m benchmarks.generation_peers --use_gpu ${NANOGPT:+--nanogpt "$NANOGPT"}
        fi
        ;;
    saving)
        item saving-stall "$python" bench.py "$where" --saving "${shape_of_model[@]}" --json "$out/saving-stall.json"
        killed
        ;;
    run) real_run ;;
    graphs) for size in $sizes; do
        for mode in default reduce-overhead; do
            [ -z "${SMALL:-}" ] || [ $mode = default ] || continue # CUDA graphs take a GPU
            stepped "graphs-$size-$mode" --model_size "$size" --compile --use_amp --compile_mode $mode --max_steps 200
        done
    done ;;
    steps) for arch in $("$python" -c "from architectures.table import ARCHITECTURES; print(*ARCHITECTURES)"); do
        for optimizer in $("$python" -c "from training.optimizers import OPTIMIZERS; print(*OPTIMIZERS)"); do
            trained "steps-$arch-$optimizer" --arch "$arch" --optimizer "$optimizer" --verbose --dry_run
            trained "overfit-$arch-$optimizer" --arch "$arch" --optimizer "$optimizer" --overfit 1 --batch_size 2 \
                ${long[@]+"${long[@]}"}
            number=$((number + 1))
            [ -z "${SMALL:-}" ] || [ $number -lt 2 ] || return 0
        done
    done ;;
    *) echo "unknown part $1; there are: ${all[*]}" >&2 && exit 2 ;;
    esac
}

"$python" -m benchmarks.gpu_figures machine "$out" "$where" || exit
[ $# -gt 0 ] || set -- "${all[@]}"
for name in "$@"; do
    case $name in
    peers | ladder | tuned) names=$(for shape in $shapes; do echo "$name-$shape"; done) ;;
    *) names=$name ;;
    esac
    for one in $names; do
        part "$one"
        table "$one"
    done
done
exit $failed
