"""Train a language model, GPT-2, Qwen3 or Llama: texts or tokens in, checkpoints out.

    python train.py mytexts/                                            texts, made tokens first, to out/
    python train.py --use_gpu --use_amp --compile                       data/ from pretokenize.py, GPT-2 Small, to out/
    python train.py --model_size mini --compile --use_amp               on a laptop's processor
    python train.py --use_gpu --resume_from auto                        continue where the last run in out/ stopped
    python train.py --check                                             what can this machine do? no data needed
    python train.py --use_gpu --dry_run --gpu_cost_per_hour 2           what will it take? four steps, nothing written

Read it from top to bottom: the flags, then main in the order of events, then the loop and the step. The
machinery is in gpt/: planning/ decides before the run, training/ has the parts of a step, watching/ prints and
records. A step is one optimizer step over accumulated micro-batches of B sequences of T tokens.
"""

from argparse import SUPPRESS, Namespace
from collections.abc import Iterable, Sequence

from gpt.checkpoint.recorded import recorded_flags
from gpt.common.ending import guard
from gpt.common.errors import Exit, UserError
from gpt.common.flags import Parser, Switch, auto_or, escaped, fraction, one_of, positive, real, steps, text, whole
from gpt.common.ranks import world_size
from gpt.optimizers.table import OPTIMIZERS
from gpt.planning.early import before_torch, contradictions, expand_shorthands, make_tokens
from gpt.planning.relations import RELATIONS

# ---------------------------------------------------------------- flags


def read_flags(argv: Sequence[str]) -> Namespace:
    """Reads each flag from the first that has it: the command line, --config, the resumed run, the defaults.

    Raises UserError (exit 2) for a wrong flag.
    """
    # What stays None is decided in gpt/planning/, precision and compiling in gpt/machine/device.py.
    parser = Parser("train.py", "Trains a language model. A step is one optimizer step; losses are in nats.",
                    RELATIONS, expand_shorthands)
    parser.add_argument("--config", type=text("FILE"), help="TOML file of flags; the command line wins (default: none)")

    g = parser.add_argument_group("data")
    g.add_argument("texts", nargs="*", type=text("TEXT"), help="texts, tokenized first, to NAME.tokens beside them")
    g.add_argument("--data_dir", nargs="+", type=text("DIR[:WEIGHT]"), default="data", help="folder of token files, "
                   "which the next four flags override; several are mixed: a:0.7 b:0.3 by tokens, a b by their sizes")
    g.add_argument("--bin_file", type=text(), help="training tokens: file, folder or glob (default: in --data_dir)")
    g.add_argument("--val_bin_file", type=text(), help="validation tokens: file, folder or glob (default: beside the "
                   "training tokens, else the tail of --bin_file)")
    g.add_argument("--tokenizer_file", type=text(), help="tokenizer.json of the tokens (default: only --data_dir's)")
    g.add_argument("--metadata_file", type=text(), help="metadata.json of the tokens (default: only --data_dir's)")
    g.add_argument("--vocab_size", type=whole(1, 2**24), help=SUPPRESS)  # where neither metadata nor tokenizer says it
    g.add_argument("--preload", type=one_of("auto", "gpu", "ram", "mmap"), default="auto", help="where the tokens "
                   "are kept; auto: the fastest place that fits")
    g.add_argument("--allow_new_data", action=Switch, default=False, help=SUPPRESS)  # resume on other tokens

    g = parser.add_argument_group("model")
    g.add_argument("--arch", type=one_of("gpt2", "qwen3", "llama"), help="architecture (default: gpt2; qwen3 where "
                   "the size is chosen, without an NVIDIA GPU)")
    g.add_argument("--model_size", type=one_of("tiny", "mini", "gpt2_small", "gpt2_medium", "gpt2_large", "gpt2_xl"),
                   help="layers, heads, width: 4 4 128, 6 6 384, 12 12 768, 24 16 1024, 36 20 1280, 48 25 1600; the "
                   "next flags override them (default: gpt2_small; without an NVIDIA GPU by text and minutes)")
    g.add_argument("--init_from", type=text(), help="pretrained weights to start from, and their shape: a checkpoint, "
                   "a folder of them, a Hugging Face folder of GPT-2, Qwen3 or Llama, or hf://OWNER/NAME@REVISION")
    g.add_argument("--teacher", type=text(), help="trained model to distil from: half of each target is its prediction")
    g.add_argument("--n_layer", type=whole(1, 1024), help="number of blocks (default: by size)")
    g.add_argument("--n_head", type=whole(1, 1024), help="attention heads; they divide the width (default: by size)")
    g.add_argument("--n_embd", type=whole(1, 2**16), help="width of the residual stream (default: by size)")
    g.add_argument("--seq_length", type=whole(1, 2**20), help="tokens per sequence (default: 1024; 256 without NVIDIA)")
    g.add_argument("--dropout", type=fraction(), help="fraction of activations dropped; the masks depend on "
                   "--batch_size (default: 0.1 where Muon reads a small text 6 times or more, else 0)")
    g.add_argument("--input_noise", type=fraction(), default=0.0, help="fraction of the input ids that become random")
    g.add_argument("--bias", action=Switch, help="biases in linear layers and norms of gpt2 (default: on)")
    g.add_argument("--n_kv_head", type=whole(1, 1024), help=SUPPRESS)  # a third or half of --n_head
    g.add_argument("--n_inner", type=whole(1, 2**20), help=SUPPRESS)  # width of the MLP: blocks as large as gpt2's
    g.add_argument("--rope_theta", type=real(1, 1e9, excludes_low=True), help=SUPPRESS)  # the rotary base: 10000
    g.add_argument("--tie_weights", action=Switch, default=True, help="embedding and output layer are one matrix")

    g = parser.add_argument_group("length")
    g.add_argument("--batch_size", type=auto_or(whole(1, 2**20)), help="sequences per device per forward pass; auto: "
                   "the largest part of a step that fits (default: up to 16,384 tokens on a GPU, 512 to 8,192 without)")
    g.add_argument("--gradient_accumulation_steps", type=whole(1, 2**20), default=world_size(), help="micro-batches "
                   "per step over all processes; double it to halve --batch_size (default: one for each process)")
    g.add_argument("--epochs", type=whole(1), help="passes over the tokens (default: by --max_steps, or size and text)")
    g.add_argument("--max_steps", type=whole(1), help="last step, unless --epochs end before it (default: no limit)")
    g.add_argument("--max_minutes", type=positive(1e6, "MINUTES"), help="end the run after these minutes of all starts")
    g.add_argument("--cooldown_from", type=text(), help="checkpoint after which the learning rate falls to --min_lr")
    g.add_argument("--cooldown", type=steps(), help=SUPPRESS)  # length of the fall: 0.2 of the steps
    g.add_argument("--patience", type=whole(1), help="validations without a new best that end the run (default: off)")

    g = parser.add_argument_group("optimizer: decay on matrices and embeddings only")
    g.add_argument("--optimizer", type=one_of("auto", *OPTIMIZERS), default="auto", help="; ".join(
        [f"{name}: {row.words}" for name, row in OPTIMIZERS.items()]) + "; auto: muon for steps of many tokens, "
        "adamw for pretrained weights and where --learning_rate, --beta1 or --beta2 is given")
    g.add_argument("--learning_rate", type=positive(10), help="peak; halve it if losses jump (default: by size, batch)")
    g.add_argument("--embedding_learning_rate", type=positive(10), help=SUPPRESS)  # of all but the blocks' matrices
    g.add_argument("--init_std", type=positive(1), help=SUPPRESS)  # deviation of the initial weights: 0.02 or more
    g.add_argument("--lr_schedule", type=one_of("linear", "cosine", "wsd", "constant"), help="learning rate after the "
                   "warm-up; wsd: constant, then a line down (default: linear)")
    g.add_argument("--min_lr", type=real(0, 10), help="learning rate at the end (default: 0; with cosine peak / 100)")
    g.add_argument("--warmup_steps", type=whole(0), help="steps of linear warm-up (default: 10%%, at most 2,000)")
    g.add_argument("--use_lr_scheduler", action=Switch, help=SUPPRESS)  # --lr_schedule cosine; with --no-: constant
    g.add_argument("--weight_decay", type=real(0, 10), help="decoupled weight decay (default: 0.1; by text with Muon)")
    g.add_argument("--beta1", type=fraction(), default=0.9, help="decay of the running mean of gradients")
    g.add_argument("--beta2", type=fraction(), help="decay of the running mean of squared gradients (default by batch)")
    g.add_argument("--grad_clip", type=real(0, 1e6), help="largest norm of the gradient; 0: no clipping (default: 1)")
    g.add_argument("--label_smoothing", type=fraction(), help="part of a target shared by all ids (default: 0)")
    g.add_argument("--seed", type=whole(0, 2**63 - 1), default=1337, help="seed of the weights, data order and dropout")

    g = parser.add_argument_group("machine")
    g.add_argument("--use_gpu", action=Switch, help="require a GPU, NVIDIA's or Apple's, or exit 5 (default: if any)")
    g.add_argument("--use_amp", action=Switch, help="mixed precision (default: on with a GPU; on a CPU with bf16 where "
                   "the size is chosen)")
    g.add_argument("--amp_dtype", type=one_of("auto", "bf16", "fp16"), default="auto", help="16-bit type; naming one "
                   "turns --use_amp on; auto: bf16 if native, else fp16 on a GPU")
    g.add_argument("--model_parallel", type=one_of("auto", "ddp", "fsdp", "hsdp"), default="auto", help="how processes "
                   "share a model; ddp: each has all; fsdp: each a shard; hsdp: each machine all; auto: ddp if it fits")
    g.add_argument("--compile", action=Switch, help="torch.compile; eager where it fails (default: on with CUDA)")
    g.add_argument("--compile_mode", type=one_of("default", "blocks", "reduce-overhead", "max-autotune-no-cudagraphs"),
                   help="blocks: compiles in seconds, 1%% slower; reduce-overhead: CUDA graphs, for small models; "
                   "autotuning: compiles longer, may run faster (default: default; blocks in fp16 or distributed)")
    g.add_argument("--deterministic", action=Switch, default=False, help="use deterministic kernels: slower on a GPU")
    g.add_argument("--activation_checkpointing", action=Switch, default=False, help="recompute "
                   "activations in the backward pass: 1/3 of their memory, 1.3 x the time")

    g = parser.add_argument_group("output")
    g.add_argument("--output_dir", type=text("DIR"), default="out", help="folder of checkpoints and metrics.jsonl")
    g.add_argument("--checkpoint_interval", type=whole(1), help="epochs between permanent checkpoints (default: 1; "
                   "above 20 epochs so many that at most 20 stay)")
    g.add_argument("--checkpoint_every_steps", type=whole(0), default=0, help="steps between "
                   "rolling checkpoints; 0: off")
    g.add_argument("--checkpoint_every_minutes", type=real(0, 1e6), default=10, help="minutes between "
                   "rolling checkpoints; 0: off")
    g.add_argument("--keep_checkpoints", type=whole(1), default=3, help="rolling checkpoints kept, besides the best")
    g.add_argument("--mirror_to", type=text("DIR"), help="folder on another disk to copy checkpoints to; --resume_from "
                   "auto continues from it where --output_dir is empty (default: none)")
    g.add_argument("--resume_from", type=text("PATH|auto"), help="a checkpoint, a folder of them (newest), or auto: "
                   "newest in --output_dir, else a new run (default: a new run)")
    g.add_argument("--overwrite", action=Switch, default=False, help=SUPPRESS)  # delete another run's checkpoints
    g.add_argument("--eval_interval", type=whole(1), help="steps between validations (default: a tenth, at most 1,000)")
    g.add_argument("--eval_tokens", type=whole(1), help="tokens of a validation, always the same (default: by length)")
    g.add_argument("--eval_batches", type=whole(1), help=SUPPRESS)  # --eval_tokens in batches of --batch_size
    g.add_argument("--sample_interval", type=whole(0), help="steps between samples; 0: none (default: a fifth)")
    g.add_argument("--sample_prompt", type=escaped(), help="text that samples continue (default: a newline)")
    g.add_argument("--log_interval", type=whole(1), help="steps between log lines (default: a hundredth, at most 20)")
    g.add_argument("--tracker", nargs="+", type=one_of("tensorboard", "wandb", "none"), help="program that shows "
                   "metrics.jsonl, samples and advice besides; needs the package of its name (default: none)")

    g = parser.add_argument_group("plan")
    g.add_argument("--check", action=Switch, default=False, help="hours, memory and batch, here and on common GPUs")
    g.add_argument("--verbose", action=Switch, default=False, help=SUPPRESS)  # print the whole plan
    g.add_argument("--dry_run", action=Switch, default=False, help="print the plan, run four steps, write nothing")
    g.add_argument("--overfit", type=whole(1), help="overfit N batches, write nothing; exit 6 if that fails")
    g.add_argument("--gpu_cost_per_hour", type=real(0, 1e6, unit="PRICE"), help="price of one GPU for an hour")
    return parser.read(argv, contradictions, recorded_flags)


def answer_early(argv: Sequence[str]) -> None:
    """Reports wrong flags and missing packages before torch is imported, which takes seconds; tokenizes texts."""
    args = read_flags(argv)
    before_torch(args)
    if args.texts and not args.check:
        make_tokens(args)


if __name__ == "__main__":  # after this come the slow imports, and main is called at the end of the file
    guard(answer_early)

import contextlib
import math

import torch

import data
from gpt.machine.runtime import choose_machine, open_runtime
from gpt.optimizers.build import adamw_for, build_optimizer, dtype_of_products, parameter_groups
from gpt.planning.check import check_machine
from gpt.planning.deadline import Deadline, Pace, with_length
from gpt.planning.decided import Setup
from gpt.planning.first_model import after_first_model
from gpt.planning.inputs import choose_inputs
from gpt.planning.plan import announce_model, announce_plan
from gpt.planning.setup import choose_setup
from gpt.training import recovery
from gpt.training.checkpointing import Checkpointer
from gpt.training.compiling import compile_run
from gpt.training.due import due_after_step, ends_by_patience
from gpt.training.overfit import overfit_batches
from gpt.training.pacing import dry_run, measure_pace, move_end
from gpt.training.run import ENDS_THE_RUN, Abandoned, Figures, Run, micro_batches
from gpt.training.starting import load_start
from gpt.training.strategies import Votes, build_model
from gpt.training.teacher import load_teacher
from gpt.training.validation import Validator
from gpt.watching.monitor import Monitor
from gpt.watching.output import open_output

# ---------------------------------------------------------------- main, in the order of events


def main(argv: Sequence[str]) -> int:
    """Checks all that the run needs, then trains; returns the exit code."""
    args = read_flags(argv)
    with open_runtime(args.use_gpu) as runtime:
        if args.check:
            return check_machine(args, choose_machine(args), runtime.out)

        # What there is: tokens, the model's shape, a checkpoint to resume from; then the machine.
        inputs = choose_inputs(args, runtime)
        # With --max_minutes this may train a first model; the inputs are then of a second one, distilled from it.
        inputs = after_first_model(inputs, runtime, argv)
        runtime.use(choose_machine(args, inputs.prefers_bf16))  # TF32 is on from here

        # What will be trained and how, each default with its reason (planning/recipe.py).
        deadline = Deadline(args.max_minutes, inputs.stored, runtime.began)
        setup = choose_setup(inputs, runtime, deadline)
        if setup is None:  # a resumed run that has nothing left to do
            return Exit.DONE
        announce_model(setup)

        # Model, optimizer and batches. A few steps are timed, and change no weights; --max_minutes needs their time.
        run = build_run(setup)
        validator = Validator(run)
        with recovery.explaining_memory(setup, run):
            if run.state.step < run.recipe.total_steps:  # else at most one validation is left to do
                compile_run(run)
            pace = measure_pace(run, take_step, validator, deadline)
        run.adopt(with_length(deadline, run.setup, pace, run.state.step))
        return train(run, pace, deadline, validator, argv)


def build_run(setup: Setup) -> Run:
    """Builds the model with the weights that --seed draws, its optimizer and loss scaler, and its batches."""
    args, recipe = setup.args, setup.recipe
    runtime, machine = setup.runtime, setup.runtime.machine
    with recovery.explaining_memory(setup), runtime.out.phase("building the model"):
        torch.manual_seed(args.seed)
        in_graphs = machine.compile and args.compile_mode == "reduce-overhead"
        model, strategy = build_model(setup.config, setup.options, setup.memory.strategy, runtime.processes, machine,
                                      recipe.init_std, in_graphs)
        groups = parameter_groups(model, recipe.optimizer, recipe.weight_decay, recipe.lr_scale)
        optimizer = build_optimizer(recipe.optimizer, groups, recipe.learning_rate, (args.beta1, recipe.beta2),
                                    adamw_for(machine.device), dtype_of_products(machine))
        scaler = torch.amp.GradScaler(machine.device.type, enabled=machine.precision == "fp16")
        teacher = load_teacher(args.teacher, setup.options, machine) if args.teacher else None
    with runtime.out.phase("loading the tokens"):
        windows = data.CorpusWindows(setup.corpus.train, setup.token_place, setup.config.seq_length, args.seed,
                                     machine.device, setup.corpus.components)
        batches = data.Batches(windows, setup.micro_batch, machine.device, runtime.processes)
    return Run(setup, model, optimizer, scaler, strategy, Votes(runtime.processes), batches,
               setup.new_state(), teacher)


def train(run: Run, pace: Pace, deadline: Deadline, validator: Validator, argv: Sequence[str]) -> int:
    """Loads the start, then trains, or runs --dry_run or --overfit; returns the exit code."""
    args = run.setup.args
    if not args.overfit:
        announce_plan(run.setup, pace, run.state.step)
    checkpointer = Checkpointer(run, validator.tokenizer)
    # Only now, because measure_pace clears the optimizer's state.
    load_start(run)  # pretrained weights, or the whole state of the checkpoint

    failures = recovery.explaining_failures(run, checkpointer)
    with recovery.explaining_memory(run.setup, run), contextlib.closing(checkpointer), failures:
        if args.dry_run:
            return dry_run(run, pace)
        if args.overfit:
            return overfit_batches(run, take_step)
        with open_output(run, argv, checkpointer) as monitor:
            loop(run, pace, deadline, validator, checkpointer, monitor)
            return save_and_close(run, checkpointer, monitor)


# ---------------------------------------------------------------- the loop and the step


def loop(run: Run, pace: Pace, deadline: Deadline, validator: Validator, checkpointer: Checkpointer,
         monitor: Monitor) -> None:
    """Trains until the last step, a signal, the end of --max_minutes, or the end of patience."""
    runtime, state = run.setup.runtime, run.state
    check_pretrained(run, validator, monitor)
    runtime.out.bar(run.recipe.total_steps, state.step)
    make_up_validation(run, validator, checkpointer, monitor)
    runtime.clock.start()
    deadline.start(state.step, state.seconds)

    while state.step < run.recipe.total_steps and not (ends_by_patience(run) or run.must_stop()):
        runtime.out.begin_phase(f"step {state.step + 1:,}")

        # Learning rate: warm-up, then decay, a pure function of the step. lr_scale is 1 for the blocks'
        # matrices, and a multiple for embeddings, norms and biases.
        for group in run.optimizer.param_groups:
            group["lr"] = group["lr_scale"] * run.recipe.learning_rate_at(state.step + 1)

        # Forward, backward, clip, update.
        try:
            result = take_step(run)
        except Abandoned:  # a resumed run repeats the step from its first micro-batch
            break
        state.step += 1
        state.samples_seen += run.recipe.samples_per_step
        state.seconds = deadline.seconds_used

        # Log the finished step, on a GPU the one before; too many skipped steps in a row end the run here.
        monitor.add(result)
        monitor.log()

        # Validate, save, sample: at their intervals, and after the last step.
        due = due_after_step(run, checkpointer, deadline, pace)
        if due.save or due.validate or due.sample:
            monitor.catch_up()
        checkpointer.settle(wait=False)  # notes the end of a save in flight
        is_best = end_moved = False
        if due.validate:
            is_best = validate(run, validator, checkpointer, monitor)
            if not due.is_last:
                end_moved = move_end(run, deadline, pace, checkpointer.save_seconds)
        # A moved end is saved at once, so that a resumed run has the schedule of this one.
        if due.save or is_best or end_moved:
            checkpointer.save(due.permanent)
        if due.sample:
            monitor.show_sample(validator.sample_text())
        if due.is_last:
            break
    monitor.catch_up()


def take_step(run: Run, num_micro_batches: int | None = None) -> Figures:
    """Takes one optimizer step on the next samples; if memory runs out, repeats it with smaller micro-batches.

    The caller sets the learning rates before, and counts the step. To measure a step, num_micro_batches takes
    only some of its micro-batches. The host waits for no device. Raises Abandoned after a signal, and
    TokensChanged if a token file was written to; both undo the step first. Raises the out-of-memory error if
    not even one sequence fits, or if there are several processes.
    """
    while True:
        num = num_micro_batches or run.num_micro_batches
        try:
            return try_step(run, micro_batches(run, num), num)
        except ENDS_THE_RUN:
            recovery.undo_step(run)
            raise
        except (RuntimeError, MemoryError) as error:
            if not recovery.can_halve(run, error):
                raise
        recovery.halve_micro_batch(run)  # not in the except clause: there the error holds the step's tensors
        with run.setup.runtime.clock.pause():
            compile_run(run)


def try_step(run: Run, batches: Iterable[tuple[torch.Tensor, torch.Tensor]], num: int) -> Figures:
    """Computes one step on num micro-batches: forward, backward, clip, update.

    Where the loss or the gradient's norm is not finite, weights and optimizer state stay, and skipped is 1.
    The loss is in nats. Each micro-batch divides by the same number of targets, so that every target weighs the
    same. The norm is taken before clipping.
    """
    machine, optimizer = run.setup.runtime.machine, run.optimizer
    run.model.round_weights()  # the 16-bit copies that products read under autocast, once a step
    mean_loss = torch.zeros((), device=machine.device)
    num_targets = run.batches.mean_targets(run.state.samples_seen, num)  # of conversations: answers alone count

    # Forward and backward, micro-batch by micro-batch; the gradients add up.
    for micro, (inputs_BT, targets_BT) in enumerate(batches):
        with run.strategy.accumulating(is_last=micro == num - 1):
            with machine.autocast():
                loss = run.strategy.forward(inputs_BT, targets_BT, run.teacher_output(inputs_BT), num_targets) / num
            run.scaler.scale(loss).backward()
        mean_loss += loss.detach()

    # Clip, without scaler.step: the host would wait for it. Every optimizer here divides the gradients by
    # grad_scale, and does nothing where found_inf is 1. scaler.update() reads what unscale_ has found.
    run.scaler.unscale_(optimizer)
    gradients = [p.grad for p in run.model.parameters() if p.grad is not None]
    mean_loss, norm = run.strategy.loss_and_norm(mean_loss, gradients)
    skipped = optimizer.found_inf = (~(norm + mean_loss).isfinite()).float()  # type: ignore[attr-defined]
    if run.recipe.grad_clip:
        optimizer.grad_scale = (norm / run.recipe.grad_clip).clamp(min=1.0)  # type: ignore[attr-defined]

    # Update.
    run.is_updating = True  # if memory runs out from here on, some weights may have changed: recovery.can_halve
    optimizer.step()
    run.is_updating = False
    run.scaler.update()
    optimizer.zero_grad(set_to_none=not run.strategy.keeps_gradients)
    return {"loss": mean_loss, "grad_norm": norm, "skipped": skipped}


def check_pretrained(run: Run, validator: Validator, monitor: Monitor) -> None:
    """Validates pretrained weights before the first step. Raises UserError (exit 6) for a loss that is not finite."""
    if not run.setup.args.init_from or run.state.step:
        return
    measured = validator.measure()
    if measured is None:  # without validation tokens, or after a signal
        return
    if not math.isfinite(measured.nats):
        raise UserError(Exit.DIVERGED, "--init_from: its weights give no finite loss, as where fp16 overflows. Give "
                                       "--no-use_amp, or other weights.")
    monitor.say_loss_before(measured.nats)


def make_up_validation(run: Run, validator: Validator, checkpointer: Checkpointer, monitor: Monitor) -> None:
    """Makes up for a validation that the last start missed, and saves it."""
    state, recipe = run.state, run.recipe
    is_due = state.step % recipe.eval_interval == 0 or state.step == recipe.total_steps
    if is_due and state.validated_step < state.step:
        validate(run, validator, checkpointer, monitor)
        if state.validated_step == state.step:  # a checkpoint never changes: a new one takes its place
            checkpointer.save(checkpointer.is_permanent())


def validate(run: Run, validator: Validator, checkpointer: Checkpointer, monitor: Monitor) -> bool:
    """Measures and records the validation loss; True if it is the best so far, False if none was measured."""
    state = run.state
    measured = validator.measure()
    if measured is None:  # without validation tokens; or after a signal, and a resumed run validates this step
        return False
    is_best = math.isfinite(measured.nats) and (state.best_val_loss is None or measured.nats < state.best_val_loss)
    monitor.log_validation(measured, is_best)
    checkpointer.validation_curve.append((state.step, measured.nats, measured.bits_per_byte))
    state.validated_step = state.step
    state.validations_without_gain = 0 if is_best else state.validations_without_gain + 1
    if is_best:
        state.best_val_loss, state.best_step = measured.nats, state.step
    return is_best


def save_and_close(run: Run, checkpointer: Checkpointer, monitor: Monitor) -> int:
    """Saves the last state and prints the closing block; returns 0, or 128 + n after signal n.

    Ends the trackers too. Raises UserError (exit 5) if the last state could not be saved.
    """
    runtime = run.setup.runtime
    runtime.signals.record(runtime.processes.largest(runtime.signals.number or 0))  # one process's signal ends all
    is_saved = checkpointer.finish()
    monitor.close(is_saved)
    if run.state.step and not is_saved:
        raise UserError(Exit.MACHINE, "the last state could not be saved; the warning above names the cause. "
                                      f"{checkpointer.how_to_resume()} once that is fixed.")
    monitor.say_what_next(checkpointer.best_step)
    return Exit.DONE if runtime.signals.number is None else 128 + runtime.signals.number


if __name__ == "__main__":
    guard(main)
