"""Train a language model, GPT-2, Qwen3 or Llama: texts or tokens in, checkpoints out.

    python train.py mytexts/                                            texts, made tokens first, to out/
    python train.py --use_gpu --use_amp --compile                       data/ from pretokenize.py, GPT-2 Small, to out/
    python train.py --model_size mini --compile --use_amp               on a laptop's processor
    python train.py --use_gpu --resume_from auto                        continue where the last run in out/ stopped
    python train.py --check                                             what can this machine do? no data needed
    python train.py --use_gpu --dry_run --gpu_cost_per_hour 2           what will it take? four steps, nothing written

Read it from top to bottom: the flags, then main in the order of events, then the loop and the step. What these call is
machinery in gpt/: planning/ decides before the run, training/ is what a step is made of, watching/ says what happens. A
step is one optimizer step over accumulated micro-batches of B sequences of T tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpt.checkpoint.recorded import recorded_flags
from gpt.common import flags
from gpt.common.errors import Exit, UserError, guard
from gpt.common.ranks import world_size
from gpt.optimizers.table import OPTIMIZERS
from gpt.planning.contradictions import contradictions
from gpt.planning.early import TRIAL, before_torch, in_tokens, make_tokens
from gpt.planning.relations import RELATIONS

# ---------------------------------------------------------------- flags


def schedule_of_switch(is_on: bool, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What --use_lr_scheduler, or --no-use_lr_scheduler, is as --lr_schedule. Raises ValueError beside another one."""
    name = asked.get("lr_schedule", "cosine" if is_on else "constant")
    if (name == "constant") == is_on:
        raise ValueError(f"--lr_schedule {name}: not with --{'' if is_on else 'no-'}use_lr_scheduler")
    return {"lr_schedule": name}


def without_smoothing(share: float, asked: Mapping[str, Any]) -> dict[str, Any]:
    """--label_smoothing 0, which older runs recorded. Raises ValueError for more: a teacher stands in its place."""
    if share:
        raise ValueError(f"--label_smoothing {share:g}: went out. Drop it, or give a --teacher")
    return {}


def read_flags(argv: Sequence[str]) -> flags.Namespace:
    """The flags as a namespace. Raises UserError (exit 2) with every problem found."""
    whole, real, text, one_of = flags.whole, flags.real, flags.text, flags.one_of
    parser = flags.Parser("train.py", "Trains a language model. A step is one optimizer step; losses are in nats.",
                          RELATIONS)

    parser.own.flag("--config", text("FILE"), None, "TOML file of flags, name = value on each line; the command line "
                    "wins", "none")
    g = parser.group("data")
    g.flag("texts", flags.one_or_more(text("TEXT")), None, "texts, made tokens first, in NAME.tokens beside them",
           "none")
    parser.becomes["texts"] = in_tokens
    g.flag("--data_dir", flags.one_or_more(text("DIR[:WEIGHT]")), "data", "folder of token files, which the next four "
           "flags override; several, as in a:0.7 b:0.3, are mixed by weights in tokens, without weights by their sizes")
    g.flag("--bin_file", text(), None, "training tokens: a file, a folder or a glob of shards", "those in --data_dir")
    g.flag("--val_bin_file", text(), None, "validation tokens: a file, a folder or a glob of shards",
           "those beside the training tokens, else the tail of --bin_file")
    g.flag("--tokenizer_file", text(), None, "the tokenizer of the tokens", "tokenizer.json in --data_dir")
    g.flag("--metadata_file", text(), None, "the metadata of the tokens", "metadata.json in --data_dir")
    g.flag("--vocab_size", whole(1, 2**24), None, "number of ids, where neither metadata nor tokenizer says",
           "from those", hidden=True)
    g.flag("--preload", one_of("auto", "gpu", "ram", "mmap"), "auto", "where the tokens live; auto: the fastest that "
           "fits")
    g.switch("--allow_new_data", False, "resume on other tokens than the checkpoint was trained on", hidden=True)

    g = parser.group("model")
    g.flag("--arch", one_of("gpt2", "qwen3", "llama"), None, "the network", "gpt2; qwen3 with a size that "
           "is chosen without a GPU")
    g.flag("--model_size", one_of("tiny", "mini", "gpt2_small", "gpt2_medium", "gpt2_large", "gpt2_xl"), None,
           "layers, heads, width: 4 4 128, 6 6 384, 12 12 768, 24 16 1024, 36 20 1280, 48 25 1600; the next flags "
           "override them", "gpt2_small; without a GPU what fits the corpus and --max_minutes or 15")
    g.flag("--init_from", text("PATH"), None, "weights to start from: a checkpoint, a folder of them, out/best, a "
           "Hugging Face folder of GPT-2, Qwen3 or Llama, or hf://OWNER/NAME@REVISION on the hub; the model takes "
           "their shape", "random weights")
    g.flag("--teacher", text("PATH"), None, "a finished model of the same tokenizer, out say, whose probabilities are "
           "half of each target: a small text then teaches a larger model, or more passes, more", "none")
    g.flag("--n_layer", whole(1, 1024), None, "number of blocks", "by size")
    g.flag("--n_head", whole(1, 1024), None, "number of attention heads, a divisor of the width", "by size")
    g.flag("--n_embd", whole(1, 2**16), None, "width of the residual stream", "by size")
    g.flag("--seq_length", whole(1, 2**20), None, "tokens of a sequence, T", "1024, without a GPU 256, or what the "
           "corpus allows")
    g.flag("--dropout", real(0, 1, below=True), None, "share of activations dropped; other sizes of micro-batches draw "
           "other masks", "0.1 where Muon reads a small text 6 times or more, else 0")
    g.switch("--bias", None, "biases in linear layers and norms", "on for gpt2; the others have none")
    g.flag("--n_kv_head", whole(1, 1024), None, "heads of keys and values in qwen3 and llama", "a third of --n_head, "
           "or half", hidden=True)
    g.flag("--n_inner", whole(1, 2**20), None, "width inside the MLP in qwen3 and llama", "blocks as large as gpt2's",
           hidden=True)
    g.flag("--rope_theta", real(1, 1e9, above=True), None, "base of the rotary frequencies in qwen3 and llama", "10000",
           hidden=True)
    g.switch("--tie_weights", True, "one matrix for the embedding and the output layer")

    g = parser.group("horizon")
    g.flag("--batch_size", flags.auto_or(whole(1, 2**20)), None, "sequences per device per forward pass; auto: the "
           "largest that is found to fit, with the tokens of a step unchanged",
           "what fits: up to 16,384 tokens on a GPU, 512 to 4,096 without")
    g.flag("--gradient_accumulation_steps", whole(1, 2**20), world_size(), "micro-batches a step, of all processes "
           "together; double it to halve --batch_size", "one for each process")
    g.flag("--epochs", whole(1), None, "passes over the tokens", "as many as --max_steps needs, else 1 to 10, "
           "more of a small text with Muon")
    g.flag("--max_steps", whole(1), None, "steps after which the run ends, if that is sooner than --epochs", "no limit")
    g.flag("--max_minutes", real(0, 1e6, above=True, unit="MINUTES"), None, "minutes after which the run ends, all "
           "included; --epochs and --max_steps stay upper limits", "no limit")
    g.flag("--cooldown_from", text("PATH"), None, "a checkpoint to go on from while the learning rate falls from where "
           "it is to --min_lr", "off")
    g.flag("--cooldown", flags.share_or_steps(), None, "the share, 0.2, or the number, 500, of the steps in which the "
           "rate falls", "0.2", hidden=True)
    g.flag("--patience", whole(1), None, "validations without a new best after which the run ends", "off")

    g = parser.group("optimizer: decay on matrices and embeddings only")
    each = OPTIMIZERS.items()
    g.flag("--optimizer", one_of("auto", *OPTIMIZERS), "auto", "; ".join(f"{name}: {row.words}" for name, row in each)
           + "; auto: muon for steps of many tokens, adamw for trained weights and where --learning_rate, --beta1 or "
           "--beta2 is given")
    g.flag("--learning_rate", real(0, 10, above=True), None, "peak; halve it when the loss jumps", "by size and batch")
    g.flag("--embedding_learning_rate", real(0, 10, above=True), None, "peak of all that is not in a block's matrices",
           "--learning_rate where that is given", hidden=True)
    g.flag("--init_std", real(0, 1, above=True), None, "deviation of the normal initial weights", "0.02, more for "
           "AdamW at its default rate in models narrower than 1,000", hidden=True)
    g.flag("--lr_schedule", one_of("linear", "cosine", "wsd", "constant"), None, "how it falls after the warm-up; wsd: "
           "constant, and at the end in a line", "linear")
    g.flag("--min_lr", real(0, 10), None, "learning rate at the end", "0, with cosine a hundredth of the peak")
    g.flag("--warmup_steps", whole(0), None, "steps of linear warm-up", "10%, at most 2,000; none with constant")
    g.old("--decay_share", real(0, 1, above=True), lambda share, asked: {"cooldown": share})
    g.old("--cooldown_steps", whole(1), lambda steps, asked: {"cooldown": steps})
    g.old("--use_lr_scheduler", flags.SWITCH, schedule_of_switch)
    g.flag("--weight_decay", real(0, 10), None, "decoupled, per step and learning rate",
           "0.1, with Muon more over a small text, by passes and the model's size")
    g.flag("--beta1", real(0, 1, below=True), 0.9, "decay of the running mean of gradients")
    g.flag("--beta2", real(0, 1, below=True), None, "decay of the running mean of squared gradients",
           "0.95 at 0.5M tokens a step to 0.99 at fewer than 0.1M")
    g.flag("--grad_clip", real(0, 1e6), None, "largest norm of the gradient; 0: not clipped", "1")
    g.old("--label_smoothing", real(0, 1, below=True), without_smoothing)
    g.flag("--seed", whole(0, 2**63 - 1), 1337, "of weights, data order and dropout")

    g = parser.group("machine")
    g.switch("--use_gpu", None, "require a GPU, NVIDIA's or Apple's; exit 5 where there is none", "if there is one")
    g.switch("--use_amp", None, "mixed precision", "on with a GPU; off on a CPU, but for "
             "a size that is chosen where it has bf16")
    g.flag("--model_parallel", one_of("auto", "ddp", "fsdp", "hsdp"), "auto", "how several processes share a model; "
           "ddp: each has all; fsdp: each a shard; hsdp: each machine all; auto: ddp where that fits")
    g.flag("--amp_dtype", one_of("auto", "bf16", "fp16"), "auto", "auto: bf16 where it is native, else fp16 with loss "
           "scaling")
    g.switch("--compile", None, "torch.compile, or eager with a warning where it fails", "on with CUDA")
    g.flag("--compile_mode", one_of("default", "blocks", "reduce-overhead", "max-autotune-no-cudagraphs"), None,
           "default: the whole model; blocks: block by block, compiled in seconds, about 1% slower; reduce-overhead: "
           "CUDA graphs, for small models; autotuning: compiles longer and may run faster",
           "default; blocks for GPUs without bf16, and of several processes")
    g.old("--compile_blocks", flags.SWITCH, lambda is_on, asked: {"compile_mode": "blocks" if is_on else "default"})
    g.switch("--deterministic", False, "only kernels whose results do not depend on timing: slower on a GPU, where a "
             "resumed run then equals one that was never stopped")
    g.switch("--activation_checkpointing", False, "recompute blocks in the backward pass: a third of the memory, 1.3 "
             "times as long")

    g = parser.group("output")
    g.flag("--output_dir", text("DIR"), "out", "folder of checkpoints and metrics.jsonl")
    g.flag("--checkpoint_interval", whole(1), 1, "epochs between checkpoints; those stay")
    g.flag("--checkpoint_every", flags.one_or_more(flags.cadence()), "10m", "steps, 500, or minutes, 10m, between "
           "rolling checkpoints; or both; 0: off")
    g.old("--checkpoint_every_steps", whole(1), lambda steps, asked: flags.with_cadence(asked, steps, ""))
    g.old("--checkpoint_every_minutes", real(0, 1e6), lambda minutes, asked: flags.with_cadence(asked, minutes, "m"))
    g.flag("--keep_checkpoints", whole(1), 3, "rolling checkpoints that stay, besides the best by validation")
    g.flag("--mirror_to", text("DIR"), None, "folder on another disk, to which checkpoints are copied beside training; "
           "--resume_from auto goes on from there where --output_dir is empty", "none")
    g.flag("--resume_from", text("PATH|auto"), None, "a checkpoint, a folder of them (newest), or auto: newest in "
           "--output_dir, else a new run", "a new run")
    g.switch("--overwrite", False, "delete the checkpoints that another run left in --output_dir", hidden=True)
    g.flag("--eval_interval", whole(1), None, "steps between validations", "ten over the run, at most 1,000 apart")
    g.flag("--eval_tokens", whole(1), None, "tokens of a validation, always the same ones; all if there are fewer",
           "a hundredth of the run's, 16,384 to 524,288")
    g.flag("--eval_batches", whole(1), None, "the same in batches of --batch_size", "off",
           hidden=True)
    g.flag("--sample_interval", whole(0), None, "steps between samples of text; 0: none", "five over the run")
    g.flag("--sample_prompt", flags.escaped(), None, "text that samples continue", "a newline")
    g.flag("--log_interval", whole(1), None, "steps between log lines", "100 over the run, at most 20 apart")
    g.flag("--tracker", flags.one_or_more(one_of("tensorboard", "wandb", "none")), None,
           "where the figures, samples and advice of metrics.jsonl go besides; needs the package of its name",
           "none")
    g.old("--tensorboard", flags.SWITCH, lambda is_on, asked: {
        "tracker": ["tensorboard", *flags.in_list(asked.get("tracker"))]} if is_on else {})

    g = parser.group("plan")
    g.switch("--check", False, "what this machine can do, and the hours of each size, here and on common cards; "
             "reads no data, trains nothing")
    g.switch("--verbose", False, "print the whole plan, not only size, time and disk", hidden=True)
    g.switch("--dry_run", False, "print the plan, run four steps, write nothing")
    g.flag("--overfit", whole(1), None, "batches to learn by heart: can this set-up learn? exit 6 if not; writes "
           "nothing", "off")
    g.flag("--gpu_cost_per_hour", real(0, 1e6, unit="PRICE"), None, "price of a GPU's hour, with --dry_run or --check",
           "no cost shown")
    g.switch("--debug", False, "show the traceback of an error")
    return parser.read(argv, contradictions, recorded_flags)


def answer_early(argv: Sequence[str]) -> int:
    """Checks flags and packages before the seconds that importing torch takes; has texts made tokens."""
    args = read_flags(argv[3:] if argv[:1] == [TRIAL] else argv)
    before_torch(args.init_from, args)
    if args.texts and not args.check and argv[:1] != [TRIAL]:
        make_tokens(args, args.data_dir)
    return 0


if __name__ == "__main__":
    guard(answer_early)

import math
import time

import torch

from gpt.planning.check import check_machine
from gpt.planning.inputs import choose_inputs, choose_machine, session
from gpt.planning.pace import Deadline, Pace, dry_run, keep_to_minutes, measure_pace, with_horizon
from gpt.planning.plan import say_first, say_rest
from gpt.planning.setup import answer_trial, choose_setup
from gpt.training import recovery
from gpt.training.checkpointing import Checkpointer
from gpt.training.overfit import overfit_batches
from gpt.training.starting import forget_best_on_other_tokens, open_output, settings_of, start
from gpt.training.state import FAST, Parts, Run, Runtime, StepResult, TrainState, build_run
from gpt.training.validation import Validator
from gpt.watching.monitor import Monitor

# ---------------------------------------------------------------- main, in the order of events


def main(argv: Sequence[str], parts: Parts = FAST) -> int:
    """Checks all that the run needs, then trains; returns the exit code."""
    if argv[:1] == [TRIAL]:
        return answer_trial(read_flags(argv[3:]), int(argv[1]), int(argv[2]), take_step)
    began, args = time.monotonic(), read_flags(argv)
    with session(args.use_gpu) as at:
        if args.check:
            return check_machine(args, choose_machine(args), at.out)

        # What is there: tokens, the model's shape, a checkpoint to resume from, the machine.
        inputs = choose_inputs(args, at)
        machine = choose_machine(args, inputs.prefers_bf16)
        runtime = Runtime.of(machine, at.processes, at.out, at.signals)

        # What will be trained and how, each default with its reason.
        deadline = Deadline(args.max_minutes, inputs.stored, began)
        setup = choose_setup(inputs, runtime, parts, deadline, argv)
        if setup is None:  # a resumed run that has nothing left to do
            return Exit.DONE
        say_first(setup)

        # The model, its optimizer, its batches. Steps are measured and undone; they fix the horizon of --max_minutes.
        run = build_run(setup, parts, TrainState.from_stored(inputs.stored))
        validator = Validator(run)
        with recovery.explaining_memory(run):
            if run.state.step < setup.recipe.total_steps:
                recovery.compile_run(run)
            pace = measure_pace(run, take_step, validator, deadline)
        run.follow(with_horizon(deadline, setup, pace, run.state.step))
        return train(run, pace, deadline, validator, argv)


def train(run: Run, pace: Pace, deadline: Deadline, validator: Validator, argv: Sequence[str]) -> int:
    """Trains from random weights, those of --init_from, or a checkpoint; returns the exit code."""
    setup, signals = run.setup, run.setup.runtime.signals
    forget_best_on_other_tokens(run)
    if not setup.args.overfit:
        say_rest(setup, pace, run.state.step)

    # The start.
    settings = settings_of(setup)
    checkpointer = Checkpointer(run, settings, validator.tokenizer)
    start(run, settings, validator.tokenizer)

    # The run.
    with recovery.explaining_memory(run), recovery.explaining_the_end(run, checkpointer):
        if setup.args.dry_run:
            return dry_run(run, pace)
        if setup.args.overfit:
            return overfit_batches(run, take_step)
        with open_output(run, argv, settings, checkpointer) as monitor:
            setup.processes.watch(signals, lambda: run.decisions.num_asked, lambda: checkpointer.is_busy, pace.step)
            loop(run, pace, deadline, validator, checkpointer, monitor)
            return save_and_close(run, checkpointer, monitor)


# ---------------------------------------------------------------- the loop and the step


def loop(run: Run, pace: Pace, deadline: Deadline, validator: Validator, checkpointer: Checkpointer,
         monitor: Monitor) -> None:
    """Trains from the state's step to the horizon, a signal, the end of --max_minutes, or the end of patience."""
    args, recipe, runtime = run.setup.args, run.setup.recipe, run.setup.runtime
    state, decisions, out, signals = run.state, run.decisions, runtime.out, runtime.signals

    validate_first(run, validator, checkpointer, monitor)
    runtime.clock.start()
    deadline.start(state)

    while state.step < recipe.total_steps and not decisions.agree("stop", signals.number is not None):
        # Learning rate: a pure function of the step.
        out.now(f"step {state.step + 1:,}")
        for group in run.optimizer.param_groups:
            group["lr"] = group["lr_scale"] * recipe.learning_rate_at(state.step + 1)

        # Forward, backward, clip, update; again in smaller micro-batches where memory runs out.
        try:
            result = take_step(run)
        except recovery.Abandoned:  # a resumed run replays the step from its first micro-batch
            break

        # Count.
        state.step += 1
        state.samples_seen += recipe.samples_per_step
        state.seconds = deadline.used

        # Log what the device has done: of a GPU a step later, when it has more to do.
        monitor.add(result)
        monitor.log()

        # Save, validate, sample: at their intervals, and after the last step.
        is_late = deadline.is_near(pace.ending(recipe, checkpointer.save_seconds))
        is_too_late = decisions.agree("end", is_late and runtime.processes.is_first)
        is_last = is_too_late or state.step == recipe.total_steps
        stays = is_last or checkpointer.stays()
        saves = decisions.agree("save", checkpointer.is_wanted()) or stays or checkpointer.is_due()
        validates = is_last or state.step % recipe.eval_interval == 0
        samples = recipe.sample_interval > 0 and (is_last or state.step % recipe.sample_interval == 0)
        if saves or validates or samples:
            monitor.log(at_once=True)
        if saves or validates:
            monitor.count_skipped()
        checkpointer.settle(wait=False)
        is_best = validates and validate(run, validator, checkpointer, monitor)
        if validates and not is_last and keep_to_minutes(run, deadline, pace.ending(recipe, checkpointer.save_seconds)):
            recipe, checkpointer.settings, saves = run.setup.recipe, settings_of(run.setup), True
        if saves or is_best:
            checkpointer.save(stays)
        if samples:
            monitor.show_sample(validator.sample())
        if args.patience and state.validations_without_gain >= args.patience:
            out.say(f"patience    {args.patience} validations without a new best: the run ends here")
            break
        if is_too_late and state.step < recipe.total_steps:
            out.say(deadline.describe_end(state, recipe, args.output_dir))
            break
    monitor.log(at_once=True)


def take_step(run: Run, num_micro_batches: int | None = None) -> StepResult:
    """One optimizer step by try_step, again in smaller micro-batches where memory runs out; the loop counts it.

    It takes the next samples, unless fewer micro-batches are given, at the rates of the optimizer's groups. The host
    waits for no device. Raises Abandoned, and the out-of-memory error where a single sequence at a time is too much, or
    others wait.
    """
    rng = run.setup.machine.rng_state()
    while True:
        num = num_micro_batches or run.accumulation
        try:
            return try_step(run, recovery.micro_batches(run, num), num)
        except recovery.GIVEN_UP:
            recovery.undo(run, rng)
            raise
        except (RuntimeError, MemoryError) as error:
            if not recovery.can_shrink(run, error):
                raise
        recovery.shrink(run, rng)  # not in the except clause: there the error holds the tensors of the failed step


def try_step(run: Run, batches: Iterable[tuple[torch.Tensor, torch.Tensor]], num: int) -> StepResult:
    """Forward, backward, clip, update on num micro-batches; nothing changes where a loss or the norm is not finite.

    All have the same number of targets, so the mean of their losses is that of the step.
    """
    setup, parallel, optimizer, scaler = run.setup, run.parallel, run.optimizer, run.scaler
    run.model.round_weights()
    mean_loss = torch.zeros((), device=setup.machine.device)

    # Forward and backward, micro-batch by micro-batch; the gradients add up.
    for number, (inputs_BT, targets_BT) in enumerate(batches, 1):
        with parallel.adding_gradients(is_last=number == num):
            with setup.machine.autocast():
                loss = parallel.forward(inputs_BT, targets_BT, run.teacher_output(inputs_BT)) / num
            scaler.scale(loss).backward()
        mean_loss += loss.detach()

    # Clip: the fused optimizer divides by grad_scale on its way, and does nothing where found_inf is 1.
    scaler.unscale_(optimizer)
    gradients = [p.grad for p in run.model.parameters() if p.grad is not None]
    mean_loss, norm = parallel.loss_and_norm(mean_loss, gradients)
    skipped = optimizer.found_inf = (~(norm + mean_loss).isfinite()).float()  # type: ignore[attr-defined]
    if setup.recipe.grad_clip:
        optimizer.grad_scale = (norm / setup.recipe.grad_clip).clamp(min=1.0)  # type: ignore[attr-defined]

    # Update.
    optimizer.step()
    scaler.update()
    optimizer.zero_grad(set_to_none=not parallel.keeps_gradients)
    return StepResult(mean_loss, norm, skipped)


def validate_first(run: Run, validator: Validator, checkpointer: Checkpointer, monitor: Monitor) -> None:
    """Before the first step: the loss of the weights of --init_from, or the validation that a run ended without."""
    state, recipe, out = run.state, run.setup.recipe, run.setup.out
    if run.setup.args.init_from and state.step == 0 and (found := validator.measure()):
        out.say(f"validation before the first step | loss {found.nats:.4f}")
    monitor.show_bar()
    if state.validated_step < state.step and (
            state.step % recipe.eval_interval == 0 or state.step == recipe.total_steps):
        validate(run, validator, checkpointer, monitor)
        if state.validated_step == state.step:  # a checkpoint never changes: a new one takes its place
            checkpointer.save(checkpointer.stays())


def validate(run: Run, validator: Validator, checkpointer: Checkpointer, monitor: Monitor) -> bool:
    """Measures the validation loss and counts it; true if it is the best so far."""
    state = run.state
    found = validator.measure()
    if found is None:  # without validation tokens; or after a signal, and a resumed run validates this step
        return False
    is_best = math.isfinite(found.nats) and (state.best_val_loss is None or found.nats < state.best_val_loss)
    monitor.log_validation(found, is_best)
    checkpointer.validations.append((state.step, found.nats, found.bits_per_byte))
    state.validated_step = state.step
    state.validations_without_gain = 0 if is_best else state.validations_without_gain + 1
    if is_best:
        state.best_val_loss, state.best_step = found.nats, state.step
    return is_best


def save_and_close(run: Run, checkpointer: Checkpointer, monitor: Monitor) -> int:
    """The last save and the closing block; returns the exit code. Raises UserError (exit 5) if nothing was saved."""
    seconds, signals = monitor.seconds, run.setup.runtime.signals
    signals.hear(int(run.setup.processes.largest(signals.number or 0)))
    is_saved = checkpointer.finish()
    monitor.close(seconds, is_saved)
    if run.state.step and not is_saved:
        raise UserError(Exit.MACHINE, f"the last state could not be saved. {checkpointer.last_good()} when "
                                      f"{run.setup.args.output_dir} has {checkpointer.plan.checkpoint_bytes:,} bytes.")
    monitor.say_what_next(checkpointer.best_step)
    return Exit.DONE if signals.number is None else 128 + signals.number


if __name__ == "__main__":
    guard(main)
