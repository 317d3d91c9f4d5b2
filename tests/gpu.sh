#!/usr/bin/env bash
# Every figure of a GPU, in parts that take some minutes each; what is printed also lands in gpu-figures/.
#
#     bash tests/gpu.sh                                        all parts on the GPU, an hour and a half or less
#     bash tests/gpu.sh tests ladder                           some of: tests ladder peers tuned steps memory saving
#                                                              generate
#     bash tests/gpu.sh steps                                  every network with every optimizer: the time and memory of
#                                                              a step, and whether it learns a batch by heart
#     SHAPES="B B64" bash tests/gpu.sh ladder peers            some of the shapes: A, B, B64 (B with a micro-batch of 64)
#     NANOGPT=~/nanoGPT bash tests/gpu.sh peers                nanoGPT's folder, beside transformers
#     SMALL=1 bash tests/gpu.sh ladder memory                  the same on a processor, with a tiny model: does it work?
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-$(command -v python || command -v python3)}
out=${OUT:-gpu-figures}
mkdir -p "$out"
failed=0

figure() { # NAME COMMAND...: runs it, shows it, keeps it
    local name=$1
    shift
    echo "== $name: $*"
    "$@" 2>&1 | tee "$out/$name.txt" || failed=1
}

flags_of() { # SHAPE: bench.py's flags
    case $1 in
    A) echo --shape A ;;
    B) echo --shape B ;;
    B64) echo --shape B --batch_size 64 ;;
    small) echo --model_size tiny --vocab_size 512 --seq_length 32 --batch_size 4 --steps 3 --warmup 1 --rungs 0,1,3,8 ;;
    *) echo "unknown shape $1; there are: A B B64" >&2 && exit 2 ;;
    esac
}

bench() { # NAME SHAPE FLAGS...
    local name=$1-$2 shape
    shape=$(flags_of "$2") || exit 2
    shift 2
    # shellcheck disable=SC2086
    figure "$name" "$python" bench.py "$where" $shape --json "$out/$name.json" "$@"
}

where=--use_gpu
shapes=${SHAPES:-B A B64}
model=(--model_size gpt2_small --vocab_size 50304 --seq_length 1024)
long=()
if [ -n "${SMALL:-}" ]; then
    where=--no-use_gpu
    shapes=small
    model=(--model_size tiny --vocab_size 512 --seq_length 32 --max_steps 20)
    long=(--max_steps 200 --learning_rate 0.003)
fi

make_tokens() {
    "$python" -c "
import numpy as np
np.random.default_rng(0).integers(0, 500, 2_000_000).astype('<i2').tofile('$out/tokens.bin')"
}

trained() { # NAME FLAGS...: train.py on made-up tokens
    local name=$1
    shift
    figure "$name" "$python" train.py "$where" --bin_file "$out/tokens.bin" "${model[@]}" "$@"
}

parts=("$@")
[ $# -gt 0 ] || parts=(tests ladder peers tuned steps memory saving generate)
for part in "${parts[@]}"; do
    case $part in
    tests) figure tests "$python" -m pytest -v -v -rs -m gpu ;;
    ladder) for shape in $shapes; do bench ladder "$shape" --no-tuned; done ;;
    tuned) for shape in $shapes; do bench tuned "$shape" --tuned --rungs 8,9; done ;;
    peers) for shape in $shapes; do
        [ -z "${NANOGPT:-}" ] || bench nanogpt "$shape" --no-tuned --peer nanogpt --peer_dir "$NANOGPT"
        bench transformers "$shape" --no-tuned --peer transformers
    done ;;
    steps) make_tokens
        for arch in $("$python" -c "from architectures.table import ARCHITECTURES; print(*ARCHITECTURES)"); do
            for optimizer in $("$python" -c "from training.optimizers import OPTIMIZERS; print(*OPTIMIZERS)"); do
                trained "step-$arch-$optimizer" --arch "$arch" --optimizer "$optimizer" --dry_run
                trained "overfit-$arch-$optimizer" --arch "$arch" --optimizer "$optimizer" --overfit 1 --batch_size 2 \
                    "${long[@]}"
            done
        done ;;
    memory) make_tokens
        for flags in "--use_amp" "--use_amp --batch_size 64" "--use_amp --amp_dtype fp16" "--no-use_amp" \
            "--use_amp --activation_checkpointing" "--use_amp --batch_size auto --gradient_accumulation_steps 16"; do
            # shellcheck disable=SC2086
            trained "plan$(echo "$flags" | tr -d ' -')" $flags --dry_run
        done ;;
    saving) figure saving "$python" bench.py "$where" --saving "${model[@]:0:6}" ;;
    generate) figure generate "$python" -m benchmarks.generation_peers --use_gpu ${NANOGPT:+--nanogpt "$NANOGPT"} ;;
    *) echo "unknown part $part; there are: tests ladder peers tuned steps memory saving generate" >&2 && exit 2 ;;
    esac
done
exit $failed
