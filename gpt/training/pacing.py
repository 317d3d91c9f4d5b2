"""Measures the seconds of a step before training, and moves the schedule's end when the pace changes."""

import time
from collections.abc import Callable
from dataclasses import replace

from gpt.architectures.table import ModelConfig
from gpt.common.errors import Exit
from gpt.common.words import percent, several, size
from gpt.machine.runtime import Runtime
from gpt.planning.deadline import SPARE, Deadline, Pace
from gpt.training.run import Figures, Run
from gpt.training.validation import SAMPLE_TOKENS, Validator

WARM_STEPS = 3  # measured at least, after a cold one
MEASURING_FRACTION, MEASURING_SECONDS = 0.02, 20.0  # of --max_minutes for measuring, and at most
LONG_SECONDS = 5.0  # one warm step that takes longer is enough; a cold one may have compiled something
MEASURED_MICRO_BATCHES = 2  # of a step, however many it has
MEASURED_SAMPLE_TOKENS = 8  # of a sample, however long it is
COPIED_BYTES, WRITTEN_BYTES = 1e9, 2e8  # a second, assumed, of a save: copied to the RAM, or written to a disk
LATER, LEAST_LATER = 0.1, 0.02  # of the steps left, and of all: the end moves to a later step only by more than both

TakeStep = Callable[..., Figures]  # train.py's take_step


def mfu(tokens_per_second: float, config: ModelConfig, runtime: Runtime) -> float | None:
    """The model FLOPs utilization of all devices together (Chowdhery et al. 2022, PaLM, section 4.1).

    None where the peak is unknown.
    """
    peak = runtime.machine.peak_flops
    return tokens_per_second * config.flops_per_token / (peak * runtime.processes.world_size) if peak else None


# ---------------------------------------------------------------- before the first step


def measure_pace(run: Run, take_step: TakeStep, validator: Validator, deadline: Deadline) -> Pace:
    """Measures a step, a validation and a sample, and derives the seconds of a save; the weights do not change.

    Call it before the optimizer's state is loaded, which it clears. If memory runs out, the run keeps the
    smaller micro-batch. Where the length depends on a step's seconds, the step is measured for longer.
    """
    setup = run.setup
    minutes = (deadline.minutes or 0.0) if deadline.plans_length else 0.0
    least_seconds = min(MEASURING_FRACTION * 60 * minutes, MEASURING_SECONDS)
    step_seconds = _measure_step(run, take_step, setup.args.dry_run, least_seconds)
    num_val_tokens = setup.corpus.val.length if setup.corpus.val else 0
    val_token_seconds, sample_seconds = _measure_between_steps(run, validator, num_val_tokens)
    write_seconds = setup.checkpoint_bytes / WRITTEN_BYTES
    copy_seconds = setup.checkpoint_bytes / COPIED_BYTES if setup.memory.saves_through_copy else write_seconds
    return Pace(step_seconds, val_token_seconds, num_val_tokens, sample_seconds,
                save_seconds=copy_seconds, last_save_seconds=write_seconds,
                checkpoint_interval=setup.args.checkpoint_interval)


def _measure_between_steps(run: Run, validator: Validator, num_val_tokens: int) -> tuple[float, float]:
    """Seconds of a token of validation, where there are any, and of a sample, 0 without samples."""
    setup, processes = run.setup, run.setup.runtime.processes
    windows = min(run.micro_batch * processes.world_size, run.recipe.eval_windows(setup.config))

    def seconds_of(measure: Callable[[int], object], amount: int) -> float:
        started = time.perf_counter()
        measure(amount)
        return time.perf_counter() - started

    seconds_of(validator.measure, windows)  # the first time it compiles
    validation = seconds_of(validator.measure, windows)
    sample = 0.0
    if setup.shows_samples:
        seconds_of(validator.sample_text, 1)  # the first time a GPU loads its kernels
        sample = seconds_of(validator.sample_text, MEASURED_SAMPLE_TOKENS)
    setup.runtime.machine.backend.release_memory()  # so that the next tensors lie together
    validation, sample = processes.from_main(lambda: (validation, sample))
    tokens = min(num_val_tokens, windows * setup.config.seq_length)
    return validation / max(1, tokens), sample * SAMPLE_TOKENS / MEASURED_SAMPLE_TOKENS


def _measure_step(run: Run, take_step: TakeStep, whole: bool, least_seconds: float) -> float:
    """Seconds of a training step, measured for least_seconds while there is no optimizer state yet.

    The lower quartile counts, the fastest of three: other programs make a step longer, never shorter. A
    learning rate of 0 leaves the weights as they are, without the memory of a copy; the loss scale is restored,
    and the optimizer's state is cleared. Unless whole, a long step is measured once after a cold one, and a step
    of many micro-batches by some of them.
    """
    runtime = run.setup.runtime
    scaler = run.scaler.state_dict()
    num_measured = run.num_micro_batches if whole else min(MEASURED_MICRO_BATCHES, run.num_micro_batches)
    seconds: list[float] = []

    def needs_another() -> bool:
        if len(seconds) > 1 and seconds[1] > LONG_SECONDS and not whole:
            return False
        return len(seconds) <= WARM_STEPS or sum(seconds) < least_seconds

    for group in run.optimizer.param_groups:
        group["lr"] = 0.0  # until the next step, which sets its own
    with runtime.out.phase("measuring how long a step takes"):
        while runtime.processes.from_main(needs_another):
            runtime.clock.start()
            # DDP's gradients lie in its buckets from the first averaging on. Micro-batches before it would add up
            # beside them, in memory that no later step takes.
            begins_ddp = run.setup.memory.strategy == "ddp" and not seconds
            take_step(run, 1 if begins_ddp else num_measured)
            seconds.append(runtime.clock.lap())

    run.optimizer.state.clear()
    run.scaler.load_state_dict(scaler)
    runtime.gauge.waited = dict.fromkeys(runtime.gauge.waited, 0.0)  # these steps were no training
    warm = sorted(runtime.processes.from_main(lambda: seconds[1:]))
    return warm[len(warm) // 4] * run.num_micro_batches / num_measured


def dry_run(run: Run, pace: Pace) -> int:
    """Prints the measured seconds, and the cost of the rest of the run; writes nothing. Returns the exit code."""
    setup, machine = run.setup, run.setup.runtime.machine
    tokens_per_second = setup.tokens_per_step / pace.step_seconds
    steps_per_epoch = run.recipe.windows_per_epoch / run.recipe.samples_per_step
    lines = [f"step_seconds: {pace.step_seconds:.4f}, the lower quartile of {WARM_STEPS} measured steps or more",
             f"hours_per_epoch: {steps_per_epoch * pace.step_seconds / 3600:.3g}",
             f"tokens_per_second: {tokens_per_second:.0f}",
             f"validation_seconds: {pace.validation_seconds(run.recipe):.4f}, of every "
             f"{several(run.recipe.eval_interval, 'step')}"]
    if machine.on_gpu:
        lines.append(f"mfu: {percent(mfu(tokens_per_second, setup.config, setup.runtime))}")
    lines.append(f"peak_memory: {size(machine.backend.peak_memory())}")
    cost = setup.args.gpu_cost_per_hour
    if cost is not None and machine.on_gpu:
        hours = pace.seconds_left(run.recipe, run.state.step) / 3600
        lines.append(f"cost: {hours * cost * setup.runtime.processes.world_size:.2f}")
    elif cost is not None:
        lines.append(f"cost: n/a, no GPU was used. On common GPUs: --check --gpu_cost_per_hour {cost:g}")
    setup.runtime.out.say("\n".join(lines))
    return Exit.DONE


# ---------------------------------------------------------------- while it trains


def move_end(run: Run, deadline: Deadline, pace: Pace, save_seconds: float) -> bool:
    """Moves the schedule's end to the last step within --max_minutes, if that is far from the present end.

    Returns True if the last step moved; the run then has another recipe, and the bar another end. Other
    programs change the pace; with the moved end the learning rate still falls to its lowest, and no minutes
    stay unused. save_seconds is the time of the last save. All processes call it after a validation.
    """
    setup, recipe = run.setup, run.recipe
    if deadline.minutes is None:
        return False
    most_steps = setup.recipe_for(None).total_steps
    ending_seconds = pace.ending_seconds(recipe, save_seconds)
    last = setup.runtime.processes.from_main(
        lambda: deadline.replan_last_step(run.state.step, recipe, ending_seconds, most_steps))
    total = recipe.total_steps
    left = total - run.state.step
    sooner = max(1, SPARE * left)
    later = max(1, LATER * left, LEAST_LATER * total)
    if -sooner <= last - total <= later:
        return False
    run.adopt(replace(setup, recipe=recipe.until(last)))
    setup.runtime.out.bar(last, run.state.step)
    return True
