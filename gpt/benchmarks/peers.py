"""Times a step of nanoGPT's unchanged train.py beside one of ours."""

import re
import statistics
from dataclasses import replace

from gpt.benchmarks.ladder import LEARNING_RATE, TUNED, Bench, ladder, problem_of, run_rung
from gpt.common.errors import Exit, UserError
from model import SIZES

# nanoGPT's train.py executes configurator.py of the current folder, which reads its arguments.
IN_ITS_FOLDER = ("import os, runpy, sys; os.chdir(sys.argv.pop(1)); sys.path.insert(0, os.getcwd()); "
                 "runpy.run_path('train.py', run_name='__main__')")


def time_step(bench: Bench, peer_dir: str) -> None:
    """Prints the median seconds of a step of nanoGPT's train.py and of our best rung, in one precision.

    The seconds also go into bench.figures. Raises UserError (exit 5) if a run failed,
    and SystemExit after a signal.
    """
    shape, on_gpu = bench.shape, bench.machine.on_gpu
    best = ladder(shape, bench.machine)[TUNED - 1]
    ours = replace(best, flags={**best.flags, "use_amp": on_gpu})  # on a CPU nanoGPT knows fp32 alone
    folder = (bench.folder / "nanogpt").resolve()
    folder.mkdir()
    for name in ("train.bin", "val.bin"):  # as pretokenize.py writes them they are nanoGPT's files too
        (folder / name).symlink_to((bench.folder / "train.bin").resolve())
    # The dict {"vocab_size": N} as nanoGPT's train.py reads it, in pickle's protocol 0.
    (folder / "meta.pkl").write_text(f"(S'vocab_size'\nI{shape.vocab_size}\nd.")
    precision = str(bench.machine.dtype)[6:] if on_gpu else "float32"  # without torch.
    flags = {"dataset": folder, "out_dir": folder / "out", "eval_iters": 1, "eval_interval": 10**9,
             "log_interval": 1,
             "gradient_accumulation_steps": 1, "batch_size": shape.batch_size, "block_size": shape.seq_length,
             **dict(zip(("n_layer", "n_head", "n_embd"), SIZES[shape.model_size], strict=True)),
             "bias": True, "decay_lr": False,
             "learning_rate": LEARNING_RATE, "max_iters": bench.warmup + bench.steps - 1,
             "device": bench.machine.device.type, "dtype": precision}

    def theirs() -> float:
        answer = bench.run(["-c", IN_ITS_FOLDER, peer_dir,
                            *(f"--{name}={value}" for name, value in flags.items())])
        steps = re.findall(r"iter (\d+): .* time ([\d.]+)ms", answer.stdout)
        problem = problem_of(answer)
        if problem:
            raise UserError(Exit.MACHINE, f"nanoGPT: {problem}")
        return statistics.median(float(ms) / 1e3 for step, ms in steps if int(step) >= bench.warmup)

    bench.figures["seconds"] = seconds = {}
    for name, way in (("nanoGPT", theirs), ("ours", lambda: run_rung(bench, ours)["ms_median"] / 1e3)):
        with bench.out.phase(name):
            seconds[name] = way()
        bench.out.say(f"{name:<10}{seconds[name]:>12,.6g} seconds{seconds['nanoGPT'] / seconds[name]:>8.2f}x")
