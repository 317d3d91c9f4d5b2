#!/usr/bin/env bash
# Every figure of a GPU, the most precious first. A command that is done is not repeated, and each command has a time
# limit of its own: one that hangs takes nothing from the others but that time.
#
#     bash tests/gpu.sh                            all parts, about three hours
#     bash tests/gpu.sh first                      nine minutes; needs no file and no network, but pytest
#     bash tests/gpu.sh facts profile              some of the parts below
#     LIMIT=560 bash tests/gpu.sh                  stops after so many seconds; the same command goes on from there
#     RETRY=1 bash tests/gpu.sh memory             what failed again; FORCE=1: what is done, too
#     NANOGPT=~/nanoGPT bash tests/gpu.sh peers    nanoGPT's folder
#     CORPUS=data bash tests/gpu.sh run muon       a folder of pretokenize.py, for the real run of RUN_MINUTES=6, and
#                                                  for those of MUON_MINUTES=10 (without it: four passes of `start`'s)
#     SMALL=1 bash tests/gpu.sh                    the same on a processor, with a tiny model: does it work?
#     OUT=out RESTORE=old.tgz bash tests/gpu.sh    on a machine that forgets all but OUT: see below
#
# The first three calls with LIMIT=560 give:
#
#     first     facts      the machine, its software, and what train.py --check says of it
#               start      train.py as a user types it, for 3 minutes: killed by -9 after its first save, and resumed
#               talk       the text that this model writes, plain, compiled and in 8 bits; its loss by evaluate.py
#               tests      pytest -m gpu
#               kernels    the speed of each product of a step, of attention, of Newton-Schulz and of a copy
#               profile    what a step is made of, with AdamW and with Muon
#     second    peers      a step of nanoGPT beside ours, twice
#               graphs     small models with CUDA graphs and without
#               ladder     three rungs: naive, compiled with a fused AdamW, the best one
#     third     tuned      the rung whose compiler tries many kernels
#               memory     predicted and measured, for seven settings
#               decode     tokens per second, beside transformers
#               saving     a run killed by -9 and resumed equals a run that was never stopped
#
# Then come more (the other rungs, shapes and turns of ladder and peers), fp16, run, steps (every architecture with
# every optimizer), and muon, an hour: its weight decay and its learning rate around their defaults.
#
# A command's output lies in FIGURES (gpu-figures/), with its exit code, seconds, date and words in NAME.status. Every
# part ends with a table: of each command how it ended, and the lines with its figures. A command that ends well and
# shows no figure has failed.
#
# Where OUT is set, all figures and no checkpoint lie in OUT/gpu-figures.tgz after each command, every twenty seconds
# and after a signal, and LIMIT is 560. RESTORE is such an archive of an earlier call, which this one goes on from.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-$(command -v python || command -v python3)}
figures=${FIGURES:-gpu-figures}
runs=$figures/runs
limit=${LIMIT:-$([ -n "${OUT:-}" ] && echo 560 || echo 100000)}
longest=240 # seconds of a command that has no other limit
patience=1  # a factor of all these limits
first=(facts start talk tests kernels profile)
second=(peers graphs ladder)
third=(tuned memory decode saving)
all=("${first[@]}" "${second[@]}" "${third[@]}" more fp16 run steps muon)
failed=0 # 1: something failed; 75: stopped at LIMIT

where=--use_gpu
shapes=(B A gpt2_small,1024,64,50304)
model=(--model_size gpt2_small --vocab_size 50304 --seq_length 1024)
sizes=(tiny mini)
minutes=${RUN_MINUTES:-6}
muon_minutes=${MUON_MINUTES:-10}
start=(--model_size gpt2_small --max_minutes 3 --checkpoint_every_minutes 0.3)
compile=--compile
new_tokens=200
if [ -n "${SMALL:-}" ]; then
    where=--no-use_gpu
    shapes=(tiny,32,4,512)
    model=(--model_size tiny --vocab_size 512 --seq_length 32 --max_steps 20 --batch_size 4)
    sizes=(tiny)
    minutes=0.4
    muon_minutes=0.1
    start=("${model[@]:0:2}" --seq_length 32 --batch_size 4 --max_steps 1000 --checkpoint_every_steps 200)
    compile=--no-compile
    new_tokens=20
    patience=3
fi

steps=(--learning_rate 0.0003 --log_interval 5 --eval_interval 99999 --sample_interval 0 --checkpoint_every_minutes 0
    --max_steps 60)

# ---------------------------------------------------------------- what is kept

pack() { # all figures into OUT, under 10 MB: where they are more, without the longest outputs
    local kept=$OUT/gpu-figures.tgz part=$OUT/.figures.$BASHPID smaller
    for smaller in 20000 100; do
        (cd "$figures" && find . -name 'checkpoint-*' -prune -o -type f -size "-${smaller}k" \
            \( -name '*.txt' -o -name '*.json' -o -name '*.jsonl' -o -name '*.md' -o -name '*.status' \) -print0 |
            tar -czf - --null -T -) > "$part" 2> /dev/null
        [ "$(wc -c < "$part")" -gt 10000000 ] || break
    done
    mv "$part" "$kept" # a call that is killed here leaves the one before
}

leave() { # CODE: after a signal too, which ends the command that runs
    trap - EXIT HUP INT TERM
    # shellcheck disable=SC2046
    kill $(jobs -p) 2> /dev/null && wait
    [ -z "${OUT:-}" ] || pack
    exit "$1"
}

mkdir -p "$runs"
[ -z "${RESTORE:-}" ] || tar -xzf "$RESTORE" --skip-old-files -C "$figures" || exit 2
if [ -n "${OUT:-}" ]; then
    mkdir -p "$OUT"
    (while sleep 20; do pack; done) > /dev/null 2>&1 & # a sleep that is left over keeps no reader of the output waiting
fi
trap 'leave $?' EXIT
for signal in HUP INT TERM; do
    # shellcheck disable=SC2064
    trap "leave $((128 + $(kill -l $signal)))" $signal
done

# ---------------------------------------------------------------- one command, one table

item() { # NAME FIGURE COMMAND...: runs it, unless it is done or has failed before; its output has a line like FIGURE
    local name=$1 figure=$2 began=$SECONDS left=$((limit - SECONDS)) most=$((patience * longest)) code job
    shift 2
    case $(head -n 1 "$figures/$name.status" 2> /dev/null) in
    0) [ -n "${FORCE:-}" ] || return 0 ;;
    [0-9]*) [ -n "${FORCE:-}${RETRY:-}" ] || { failed=1 && return 1; } ;;
    esac
    if [ "$left" -lt 20 ]; then
        [ $failed != 0 ] || failed=75
        return 75
    fi
    echo "== $name: ${*%%$'\n'*}"
    # In the background: a signal is heard while it runs. The signal comes to the command itself, which ends its own.
    {
        timeout --foreground --kill-after 20 $((left < most ? left : most)) "$@" 2>&1 &
        trap 'kill $! 2> /dev/null' TERM
        wait $! && code=0 || code=$?
        while kill -0 $! 2> /dev/null; do wait $!; done # it has been told to stop, and saves
        echo $code > "$figures/$name.code"
    } > "$figures/$name.txt" &
    job=$!
    tail -n +1 -f --pid $job -s 0.2 "$figures/$name.txt" 2> /dev/null &
    wait $job
    wait $! # the rest of what it said is shown
    code=$(cat "$figures/$name.code") && rm "$figures/$name.code"
    [ "$(wc -c < "$figures/$name.txt")" -lt 1000000 ] ||
        { tail -c 1000000 "$figures/$name.txt" > "$figures/$name.end" && mv "$figures/$name.end" "$figures/$name.txt"; }
    if [ "$code" = 0 ] && ! grep -qE -- "$figure" "$figures/$name.txt"; then
        echo "FAILED: no line like '$figure'" | tee -a "$figures/$name.txt"
        code=90
    fi
    [ $code != 124 ] || [ $left -ge $most ] || code=cut # by LIMIT: the next call runs it again
    printf '%s\n' "$code" "$((SECONDS - began))" "$(date -u +%F)" "$*" > "$figures/$name.status"
    [ -z "${OUT:-}" ] || pack
    [ "$code" != cut ] || { [ $failed != 0 ] || failed=75; return 75; }
    [ "$code" = 0 ] || failed=1
    return "$code"
}

table() { # PART: how each of its commands ended, and the lines with its figures
    local status name
    echo "-- $1, $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2> /dev/null || uname -m)"
    for status in "$figures/$1".status "$figures/$1"-*.status; do
        [ -f "$status" ] || continue
        name=$(basename "$status" .status)
        echo "$name: exit code $(sed -n 1p "$status"), $(sed -n 2p "$status") s, $(sed -n 3p "$status")"
        {
            grep -E '^(device|software|shape|rung|losses|memory|precision|step  |compiled|peak_memory:|tokens_per_second)' \
                "$figures/$name.txt"
            grep -E '^(killed|resume +from|saved|val loss|first token)|nats per token' "$figures/$name.txt"
            grep -E '^(nanoGPT|ours|theirs|profile|FAILED| +[0-9]+  )|[0-9] us|(passed|failed).* in |^skipped' \
                "$figures/$name.txt" | head -n 60
            grep '^step [0-9]' "$figures/$name.txt" | tail -n 1
        } | sed 's/^/    /'
    done
}

# ---------------------------------------------------------------- what the parts are made of

bench() { # NAME SHAPE FIGURE FLAGS...
    local name=$1 shape=$2 figure=$3
    shift 3
    item "$name" "$figure" "$python" -m gpt.benchmarks.bench "$where" --shape "$shape" --json "$figures/$name.json" \
        ${SMALL:+--steps 3} "$@"
}

corpus() { # Python's own sources, which every machine has
    [ -f "$runs/demo/metadata.json" ] ||
        FORCE=1 longest=90 item start-corpus '^tokens: ' "$python" pretokenize.py --demo --vocab_size 8192 \
            --val_fraction 0.03 --output_dir "$runs/demo" --overwrite
}

tokens() { # made up, once
    [ -f "$runs/tokens.bin" ] || "$python" -c "
import numpy as np
np.random.default_rng(0).integers(0, 500, 2_000_000).astype('<i2').tofile('$runs/tokens.bin')"
}

trained() { # NAME FIGURE FLAGS...: train.py on made-up tokens
    local name=$1 figure=$2
    shift 2
    tokens
    item "$name" "$figure" "$python" train.py "$where" --bin_file "$runs/tokens.bin" "${model[@]}" "$@"
}

stepped() { # NAME FLAGS...: some steps, whose seconds and losses are kept
    local name=$1 code
    shift
    trained "$name" '^step [0-9]' --output_dir "$runs/$name" "${steps[@]}" "$@"
    code=$?
    [[ $name = saving-* ]] || rm -rf "$runs/$name"/checkpoint-*
    return $code
}

profiled() { # ITEM OPTIMIZER
    tokens
    longest=120 item "$1" '^profile .* a step' "$python" -m tests.gpu_profile "$where" \
        --bin_file "$runs/tokens.bin" "${model[@]}" "${steps[@]}" --max_steps 20 --optimizer "$2" \
        --output_dir "$runs/$1" --overwrite
    rm -rf "${runs:?}/$1"
}

climbed() { # PART SHAPE RUNG...: each rung alone, then all of this shape are compared with the first one
    local part=$1 shape=$2 rung
    shift 2
    for rung in "$@"; do
        bench "ladder-$shape-$rung" "$shape" '[0-9]x$' --rungs "$rung"
    done
    item "$part-$shape" '[0-9]x$' "$python" -c "
import glob, json
from gpt.benchmarks.ladder import TOLERANCES, loss_difference
files = sorted(glob.glob('$figures/ladder-$shape-?.json'))
rungs = [rung for file in files for rung in json.load(open(file))['rungs'] if 'losses' in rung]
is_good = len(rungs) > 1
for rung in rungs:
    losses = ({int(step): loss for step, loss in one['losses'].items()} for one in (rung, rungs[0]))
    difference = loss_difference(*losses)
    is_good &= difference <= TOLERANCES[rung['precision']]
    print(f\"{rung['number']:>4}  {rung['name']:<30} losses {difference:.1e}\"
          f\"{rung['ms_median']:>10,.1f} ms{rungs[0]['ms_median'] / rung['ms_median']:>8.2f}x\")
raise SystemExit(not is_good)"
}

started() { # what a user types, killed by -9 after the first save, and resumed
    corpus
    # The corpus is small. Other flags than a user's: it is read as often as the minutes allow, without the dropout of
    # many passes, and no epoch leaves a checkpoint.
    longest=260 item start-train '^resume +from' "$python" -c "
import glob, signal, subprocess, sys, time
def start(*flags):
    child = subprocess.Popen([*sys.argv[1:], *flags])
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    return child
child = start('--overwrite')
while child.poll() is None and not glob.glob('$runs/start/checkpoint-*'):
    time.sleep(0.2)
time.sleep(1)
child.kill()
print('killed by signal', -child.wait(), flush=True)
raise SystemExit(child.returncode != -9 or start('--resume_from', 'auto').wait())" \
        "$python" train.py "$where" --use_amp "$compile" --data_dir "$runs/demo" "${start[@]}" --verbose \
        --output_dir "$runs/start" --epochs 1000 --dropout 0 --checkpoint_interval 1000
}

talked() { # with the model of start
    local name
    if [ "$(head -n 1 "$figures/start-train.status" 2> /dev/null)" = 0 ] && [ ! -f "$figures/talk-evaluate.status" ] &&
        ! compgen -G "$runs/start/checkpoint-*" > /dev/null; then
        FORCE=1 started # the model has stayed on another machine
    fi
    for name in plain compile int8; do
        # shellcheck disable=SC2046
        longest=80 item "talk-$name" '^first token' "$python" generate.py --ckpt "$runs/start" "$where" \
            --prompt "def read_" --max_new_tokens "$new_tokens" --batch_size 1 \
            $([ $name = plain ] || echo "$compile") $([ $name != int8 ] || echo --quantize int8)
    done
    longest=60 item talk-evaluate 'nats per token' "$python" evaluate.py --ckpt "$runs/start" "$where" \
        --tokens "$runs/demo/val.bin"
}

tuned_muon() { # the losses of runs of equal length, with other decays and rates than Muon's defaults
    local num_steps rate decay factors of_rate of_decay
    local flags=("$where" --data_dir "${CORPUS:-$runs/demo}" "${model[@]:0:2}" --use_amp "$compile" --optimizer muon
        --seed 1 --eval_tokens 262144 --sample_interval 0 --checkpoint_interval 1000)
    [ -n "${CORPUS:-}" ] || { corpus && flags+=(--epochs 4); } # more passes would learn it by heart
    item muon-pace '^step_seconds: ' "$python" train.py "${flags[@]}" --max_steps 1000 --dry_run || return
    num_steps=$(awk "/^step_seconds: / { print int(60 * $muon_minutes / \$2) }" "$figures/muon-pace.txt")
    flags+=(--max_steps "$num_steps" --resume_from auto)
    longest=100000 item muon-default '^val loss' "$python" train.py "${flags[@]}" --output_dir "$runs/muon-default" ||
        return
    item muon-settings '^0' "$python" -c "
import glob, json
settings = json.load(open(glob.glob('$runs/muon-default/checkpoint-*/trainer_state.json')[0]))['settings']
print(settings['learning_rate'], settings['weight_decay'])" || return
    read -r rate decay < "$figures/muon-settings.txt"
    for factors in "1 0.5" "1 2" "1 4" "0.7 1" "1.4 1"; do
        read -r of_rate of_decay <<< "$factors"
        longest=100000 item "muon-rate-x$of_rate-decay-x$of_decay" '^val loss' "$python" train.py "${flags[@]}" \
            --learning_rate "$(awk "BEGIN { print $of_rate * $rate }")" --embedding_learning_rate "$rate" \
            --weight_decay "$(awk "BEGIN { print $of_decay * $decay }")" \
            --output_dir "$runs/muon-$of_rate-$of_decay" || return
        rm -rf "$runs/muon-$of_rate-$of_decay"/checkpoint-*
        [ -z "${SMALL:-}" ] || return 0
    done
}

killed() { # kill -9 after a save, and a resumed run beside one that was never stopped
    local flags=(--deterministic --checkpoint_every_steps 10 --log_interval 1 --optimizer adamw) waited=0 child
    stepped saving-whole "${flags[@]}" --overwrite || return
    if [ ! -f "$figures/saving-killed.status" ] || [ -n "${FORCE:-}${RETRY:-}" ]; then
        rm -rf "$runs/saving-killed"
        "$python" train.py "$where" --bin_file "$runs/tokens.bin" "${model[@]}" --output_dir "$runs/saving-killed" \
            "${steps[@]}" "${flags[@]}" > /dev/null 2>&1 &
        child=$!
        while kill -0 $child 2> /dev/null && [ $waited -lt 2000 ]; do
            grep -q '"step": 2[5-9]' "$runs/saving-killed/metrics.jsonl" 2> /dev/null && break
            sleep 0.1
            waited=$((waited + 1))
        done
        kill -9 $child 2> /dev/null
        wait $child 2> /dev/null
    fi
    stepped saving-killed "${flags[@]}" --resume_from auto
    item saving-equal 'losses equal .* of [1-9]' "$python" -c "
import json
def losses(name):
    rows = map(json.loads, open(f'$runs/saving-{name}/metrics.jsonl'))
    return {row['step']: row['loss'] for row in rows if 'loss' in row}
whole, killed = losses('whole'), losses('killed')
print('losses equal bit for bit:', sum(killed.get(step) == whole[step] for step in whole), 'of', len(whole))
raise SystemExit(killed != whole)"
    rm -rf "$runs"/saving-*/checkpoint-*
}

decoded() { # new tokens a second of GPT-2 with random weights, of transformers and of generate.py's decoder
    item decode 'ours .* tokens/s' "$python" -c "
import sys, tempfile, time, torch, transformers
import generate
from gpt.generation.continuation import Continuation, Sampling
from gpt.generation.sampling import generate_texts
where, device, num_new = '$where', 'cuda' if '$where' == '--use_gpu' else 'cpu', int('${SMALL:+8}' or 256)
small = dict(n_layer=2, n_embd=64, n_head=2) if '${SMALL:-}' else {}
folder = tempfile.mkdtemp()
transformers.GPT2LMHeadModel(transformers.GPT2Config(**small)).save_pretrained(folder)
prompts = torch.randint(50_000, (8, 32)).tolist()
sampling = Sampling(temperature=0.8, top_k=200)
def said(name, num, work):
    work()  # which warms up
    started = time.perf_counter()
    work()
    print(f'{name}, {num} at once {num * num_new / (time.perf_counter() - started):,.1f} tokens/s', flush=True)
for num in (1, 8):
    for dtype in (torch.float32, torch.bfloat16):
        model = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=dtype).to(device).eval()
        model.generation_config.eos_token_id = None
        ids = torch.tensor(prompts[:num], device=device)
        with torch.inference_mode():
            said(f'theirs {dtype}', num, lambda: model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=0.8, top_k=200,
                max_new_tokens=num_new, pad_token_id=0).tolist())
    for flags in ('--no-use_amp', '--use_amp', '--quantize int8', '--use_amp --compile'):
        if '--compile' not in flags or device == 'cuda':
            args = generate.read_flags(['--ckpt', folder, where, *flags.split()])
            machine = generate.device.choose_for_inference(args.use_gpu, args.use_amp, args.amp_dtype, print)
            decoder = generate.load_decoder(args, machine, generate.Path(folder), num, sampling)
            said(f'ours {flags}', num, lambda: list(generate_texts(
                decoder, [Continuation(prompt, num_new, seed) for seed, prompt in enumerate(prompts[:num])],
                sampling, ())))"
}

# ---------------------------------------------------------------- the parts

part() { # NAME
    local arch optimizer size mode flags file turn shape number=0
    case $1 in
    facts)
        longest=60 item facts-machine 'PyTorch version' bash -c "
            nvidia-smi; nvidia-smi -q -d CLOCK,POWER; nproc; free -g; df -h . /dev/shm; gcc --version
            ls \$('$python' -c \"import sysconfig; print(sysconfig.get_path('include'))\")/Python.h
            '$python' -m torch.utils.collect_env"
        longest=60 item facts-check '^attention ' "$python" train.py "$where" --check
        ;;
    start) started ;;
    talk) talked ;;
    kernels) longest=90 item kernels '[0-9] us' "$python" -m tests.gpu_kernels "$where" ;;
    profile)
        profiled profile-adamw adamw
        profiled profile-muon muon
        ;;
    tests) for file in $(grep -rl --include='test_*.py' '^@pytest.mark.gpu' tests | sort); do
        if [ -n "${SMALL:-}" ]; then
            item "tests-$(basename "$file" .py)" '[1-9][0-9]*(/[0-9]+)? tests? collected' "$python" -m pytest \
                -p no:cacheprovider -m gpu --collect-only "$file"
        else
            # A rented T4 has two cores to compile with.
            longest=$(($(nproc) < 8 ? 600 : 200)) item "tests-$(basename "$file" .py)" '[1-9][0-9]* passed' \
                "$python" -m pytest -v -rs -p no:cacheprovider -m gpu "$file"
        fi
    done ;;
    peers)
        [ -n "${NANOGPT:-}" ] || { echo "peers: give NANOGPT=FOLDER, of nanoGPT" && return; }
        for turn in 1 2; do # the first one compiles both
            longest=400 bench "peers-${shapes[0]}-$turn" "${shapes[0]}" '^ours ' --peer "$NANOGPT"
        done
        ;;
    graphs) for size in "${sizes[@]}"; do
        for mode in default reduce-overhead; do
            [ -z "${SMALL:-}" ] || [ $mode = default ] || continue # CUDA graphs take a GPU
            stepped "graphs-$size-$mode" --overwrite --model_size "$size" --compile --use_amp --compile_mode $mode \
                --max_steps 200
        done
    done ;;
    ladder) climbed ladder "${shapes[0]}" 0 6 5 ;;
    more)
        climbed more "${shapes[0]}" 4 3 2 1
        for shape in "${shapes[@]:1}"; do climbed more "$shape" 3 6; done
        [ -n "${NANOGPT:-}" ] || return
        longest=400 bench "more-${shapes[0]}-peer" "${shapes[0]}" '^ours ' --peer "$NANOGPT"
        for shape in "${shapes[@]:1}"; do
            longest=400 bench "more-$shape-peer" "$shape" '^ours ' --peer "$NANOGPT"
        done
        ;;
    saving) killed ;;
    memory) for flags in "--use_amp" "--no-use_amp" "--use_amp --batch_size 64" \
        "--use_amp --activation_checkpointing" "--use_amp --arch qwen3" "--use_amp --optimizer adamw" \
        "--use_amp --batch_size auto --gradient_accumulation_steps 16"; do
        [ $((number += 1)) -lt 3 ] || [ -z "${SMALL:-}" ] || break
        # shellcheck disable=SC2086
        trained "memory-$(echo "$flags" | tr -d ' -')" '^step_seconds: ' --verbose --dry_run $flags
    done ;;
    fp16) for mode in bf16 fp16; do stepped "fp16-$mode" --overwrite --use_amp --amp_dtype $mode; done ;;
    decode) decoded ;;
    run) # gpt2_small on CORPUS; the next call goes on where LIMIT stopped it
        [ -n "${CORPUS:-}" ] || { echo "run: give CORPUS=FOLDER, of pretokenize.py" && return; }
        longest=100000 item run '^step [0-9]' "$python" train.py "$where" --data_dir "$CORPUS" "${model[@]:0:2}" \
            --use_amp --max_minutes "$minutes" --epochs 1000 --output_dir "$runs/run" --resume_from auto \
            --log_interval 20 || return
        item run-curve val_loss grep val_loss "$runs/run/metrics.jsonl"
        item run-text 'tok/s' "$python" generate.py --ckpt "$runs/run" "$where" --max_new_tokens 200
        ;;
    tuned) longest=540 bench "tuned-${shapes[0]}" "${shapes[0]}" '[0-9]x$' --rungs 7 ;; # it compiles for minutes
    steps) for arch in $("$python" -c "from gpt.architectures.table import ARCHITECTURES; print(*ARCHITECTURES)"); do
        for optimizer in $("$python" -c "from gpt.optimizers.table import OPTIMIZERS; print(*OPTIMIZERS)"); do
            trained "steps-$arch-$optimizer" '^step_seconds: ' --arch "$arch" --optimizer "$optimizer" --verbose \
                --dry_run
            trained "steps-overfit-$arch-$optimizer" '^step [0-9]|overfit' --arch "$arch" --optimizer "$optimizer" \
                --overfit 1 --batch_size 2 ${SMALL:+--max_steps 200 --learning_rate 0.003}
            [ -z "${SMALL:-}" ] || return 0
        done
    done ;;
    muon) tuned_muon ;;
    *) echo "unknown part $1; there are: first second third ${all[*]}" >&2 && exit 2 ;;
    esac
}

[ $# -gt 0 ] || set -- "${all[@]}"
for asked in "$@"; do
    case $asked in
    first) parts=("${first[@]}") ;;
    second) parts=("${second[@]}") ;;
    third) parts=("${third[@]}") ;;
    *) parts=("$asked") ;;
    esac
    for name in "${parts[@]}"; do
        part "$name"
        table "$name"
    done
done
exit $failed
