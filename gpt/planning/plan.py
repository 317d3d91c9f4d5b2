"""The plan of a run in words: size, time and disk, every decision with --verbose, and objections."""

import math
import shutil
from argparse import Namespace

import torch
from torch.nn.attention import SDPBackend

from data import num_windows, spaced
from gpt.architectures.table import ARCHITECTURES, DEFAULT, ModelConfig, architecture_of, fields_with_flags, name_of
from gpt.common.ranks import is_one_of_several, trains_first_of_two
from gpt.common.words import (
    count,
    duration,
    in_epochs,
    percent,
    plain_number,
    printable,
    several,
    shell_word,
    short,
    size,
)
from gpt.machine.device import Machine, describe
from gpt.ops.attention import attends_in_blocks, heads_for_kernel
from gpt.optimizers.table import OPTIMIZERS
from gpt.planning.deadline import Pace
from gpt.planning.decided import Setup
from gpt.planning.defaults import OPEN_SCHEDULES, has_teacher_or_noise, most_passes, times_too_short
from gpt.planning.evidence import most_copied
from gpt.planning.forecast import describe_forecast
from gpt.planning.memory import describe_memory, predicted_peak
from gpt.planning.recipe import Recipe
from gpt.planning.schedules import describe_schedule
from gpt.tokens.corpus import Component, Corpus
from gpt.tokens.mixture import weight_percent
from gpt.tokens.ngrams import MANY_COPIES
from gpt.tokens.stream import Mask
from model import SIZES

MIN_VAL_TOKENS = 1000
MANY_WITHOUT_ANSWER = 0.2  # fraction of the sequences


# ---------------------------------------------------------------- in a few lines


def announce_model(setup: Setup) -> None:
    """Prints the network and the machine, and all warnings about the machine and the text.

    Building and compiling, which take seconds, come after it.
    """
    config, sizing = setup.config, setup.sizing
    machine, out = setup.runtime.machine, setup.runtime.out
    shape = (config.n_layer, config.n_head, config.n_embd)
    name = next((name for name in SIZES if SIZES[name] == shape), f"{config.n_layer} x {config.n_embd}")
    parameters = f"{count(config.num_parameters)} parameters"
    on_gpu = f" in {machine.precision} on {machine.name}" if machine.on_gpu else ""
    about = (f"for {count(setup.corpus.train.length)} tokens{on_gpu}; another: --model_size" if sizing and sizing.shape
             else f"with T {config.seq_length:,}{on_gpu or ' on a CPU'}")
    out.say(f"size        {name}: {parameters} {about}")
    if sizing and setup.args.arch is None and sizing.arch != DEFAULT:
        out.say(f"            {architecture_of(config).NAME}'s network{'' if on_gpu else ' on a CPU'}; "
                f"--arch {DEFAULT} for {ARCHITECTURES[DEFAULT].NAME}")
    for note in setup.corpus.notes:
        out.say(f"tokens      {note}")
    for line in (*machine.warnings, *([] if setup.args.overfit else early_objections(setup))):
        out.warn(line)


def announce_plan(setup: Setup, pace: Pace, steps_done: int) -> None:
    """Prints the time and disk space that the run needs, and warnings: the objections to the plan.

    With --verbose or --dry_run the whole plan comes first. The time is for the steps after steps_done.
    """
    args, recipe = setup.args, setup.recipe
    steps = recipe.total_steps - steps_done
    epochs = in_epochs(steps * recipe.samples_per_step / recipe.windows_per_epoch)
    before = setup.stored.state.seconds
    earlier = f", after {duration(before)} in earlier starts," if before else ""
    within = f"{earlier} of {args.max_minutes:g} min" if args.max_minutes else ""
    lines = describe_plan(setup) if args.verbose or args.dry_run else []
    most_seconds = 60 * (args.max_minutes or math.inf) - before
    seconds = min(pace.seconds_left(recipe, steps_done), most_seconds)
    lines += [f"time        about {duration(seconds)}{within}, estimated: "
              f"{several(steps, 'step')} of {plain_number(pace.step_seconds)} s, {epochs}",
              *describe_forecast(setup), *describe_sharing(setup)]
    warnings = objections(setup)
    if setup.runtime.processes.is_main and not args.dry_run:  # another machine may not see the folder yet
        most = most_checkpoints(args, recipe)
        needed = most * setup.checkpoint_bytes
        free = shutil.disk_usage(args.output_dir).free
        lines.append(f"disk        {size(needed)} at most in {printable(args.output_dir)}, for "
                     f"{several(most, 'checkpoint')}; {size(free)} free")
        if free < needed:
            few = "--output_dir has too little free space for all checkpoints. Free some space"
            has_permanent = recipe.passes >= recipe.checkpoint_interval(args.checkpoint_interval)
            warnings.append(f"{few}, or give a larger --checkpoint_interval." if has_permanent else
                            f"{few}, or give a smaller --keep_checkpoints.")
    setup.runtime.out.say("\n".join(lines))
    for warning in warnings:
        setup.runtime.out.warn(warning)


def most_checkpoints(args: Namespace, recipe: Recipe) -> int:
    """The most checkpoints that the output folder holds at once, one being written among them."""
    rolling = args.keep_checkpoints + 2  # besides: the best, and one being written
    of_epochs = int(recipe.passes) // recipe.checkpoint_interval(args.checkpoint_interval)
    of_plateau = recipe.plateau_end is not None
    mirrored = args.mirror_to is not None  # one stays until its copy is verified
    return min(rolling + of_epochs + of_plateau + mirrored, max(1, recipe.total_steps))  # one a step


def describe_sharing(setup: Setup) -> list[str]:
    """The lines about the folders of a mixture, the processes that share the model, and idle GPUs."""
    corpus, processes = setup.corpus, setup.runtime.processes
    lines = []
    if corpus.components:
        folders = [f"{component.name} {weight_percent(component.weight)}, {in_epochs(passes)}"
                   for component, passes in _passes_of_components(setup)]
        lines.append(f"mixture     {'; '.join(folders)}")
    if processes.world_size > 1:
        peak = size(predicted_peak(setup.config, setup.micro_batch, setup.memory))
        lines.append(f"processes   {processes.world_size}, {setup.memory.strategy}: {setup.why_strategy}; {peak} of "
                     "memory for each")
    if setup.memory.is_sharded and setup.recipe.sample_interval and not setup.shows_samples:
        lines.append(f"samples     none, as with --sample_interval 0: each process would need "
                     f"{size(4 * setup.config.num_parameters)} more, for the whole model in fp32")
    num_gpus = setup.runtime.machine.backend.num_devices()
    if num_gpus > 1 and processes.world_size == 1 and not is_one_of_several():
        lines.append(f"GPUs        1 of {num_gpus} is used. All, by: torchrun --nproc_per_node gpu train.py ...")
    return lines


# ---------------------------------------------------------------- the whole plan


def describe_plan(setup: Setup) -> list[str]:
    """The lines about the machine and every decision, each default with its reason."""
    config, recipe = setup.config, setup.recipe
    train, val = setup.corpus.train, setup.corpus.val
    decided = {**vars(setup.args), **recipe.flags(), "arch": name_of(config),
               **{name: getattr(config, name) for name in fields_with_flags(config, vars(setup.args))}}
    rows = [
        ("model", f"{architecture_of(config).NAME}, {count(config.num_parameters)} parameters: "
                  f"{several(config.n_layer, 'layer')}, {several(config.n_head, 'head')}, "
                  f"width {config.n_embd}, T {config.seq_length}, {config.vocab_size:,} ids"),
        ("memory", describe_memory(config, setup.micro_batch, setup.memory)
                   + (", recomputed" if setup.options.recompute else "")),
        ("tokens", f"{count(train.length)} for training, {count(val.length) if val else 'none'} "
                   f"for validation; in {setup.token_place}: {setup.why_token_place}"),
        ("step", f"{setup.tokens_per_step:,} tokens: {several(recipe.accumulation, 'micro-batch')} of "
                 f"{several(recipe.batch_size, 'sequence')}"),
        ("length", f"{several(recipe.total_steps, 'step')}, "
                   f"{count(recipe.num_samples * config.seq_length)} tokens, {in_epochs(recipe.passes)}"),
        ("validation", f"every {several(recipe.eval_interval, 'step')}: {recipe.eval_tokens:,} tokens at most"),
        ("optimizer", f"{OPTIMIZERS[recipe.optimizer].words}; {setup.memory.optimizer_bytes:.3g} bytes of state a "
                      "parameter"),
        ("schedule", describe_schedule(recipe)),
        *(("default", f"{name} {short(value)}: {recipe.reasons[name]}")
          for name, value in decided.items() if name in recipe.reasons)]
    return [*describe_machine(config, setup.runtime.machine, setup.kernels.times),
            *(f"{label:<12}{text}" for label, text in rows)]


def describe_machine(config: ModelConfig, machine: Machine, attention_times: str = "") -> list[str]:
    """The lines about the machine, with the times of attention's kernels in one block, where they were measured."""
    times = f" (a block, forward and backward: {attention_times})" if attention_times else ""
    return describe(machine, attention_of(config, machine) + times)


def attention_of(config: ModelConfig, machine: Machine) -> str:
    """The computation of attention: in blocks, or by the kernel that PyTorch chooses for these shapes."""
    if attends_in_blocks(machine.device.type, machine.dtype, config.seq_length):
        return "matrix products in blocks, faster than the fused kernel on a CPU in bf16"
    if not machine.backend.has_fused_attention:
        return "unfused"
    # PyTorch's choice does not depend on the batch.
    q, kv = (torch.empty((1, heads, config.seq_length, config.head_dim), device=machine.device, dtype=machine.dtype,
                         requires_grad=True) for heads in (config.n_head, config.n_kv_head))
    k, v = heads_for_kernel(kv, kv, config.n_head)
    choice = torch._fused_sdp_choice(q, k, v, None, 0.0, True,  # type: ignore[attr-defined] - not public
                                     enable_gqa=k.size(1) < config.n_head)
    return SDPBackend(choice).name.lower().removesuffix("_attention").replace("math", "unfused")


# ---------------------------------------------------------------- objections


def objections(setup: Setup) -> list[str]:
    """Warnings about the plan that depend on the length of the run."""
    args, config, recipe = setup.args, setup.config, setup.recipe
    num_tokens = setup.corpus.train.length
    lines = []
    is_small = num_tokens < config.num_parameters
    is_chosen = setup.resumed or setup.is_pretrained or (setup.sizing and setup.sizing.shape)
    has_smaller = any(layers * width**2 < config.n_layer * config.n_embd**2 for layers, _, width in SIZES.values())
    if is_small and not (is_chosen or has_teacher_or_noise(args)) and recipe.passes > 1:
        lines.append(f"the corpus is small for this model: {count(num_tokens)} tokens, read {recipe.passes:.1f} times, "
                     f"for {count(config.num_parameters)} parameters. "
                     f"{'Try a smaller --model_size' if has_smaller else 'Add text'}; a second run may learn from the "
                     "first (--teacher).")
    by_minutes = args.max_minutes and not (args.epochs or args.max_steps or setup.is_pretrained)
    most = most_passes(num_tokens, config.num_parameters, has_teacher_or_noise(args))
    times = times_too_short(recipe.total_steps, recipe.total_steps * setup.tokens_per_step, num_tokens,
                            config.num_parameters)
    if (is_small and by_minutes and recipe.passes >= most
            and recipe.lr_schedule not in OPEN_SCHEDULES and not trains_first_of_two()):
        teacher = "" if has_teacher_or_noise(args) else ", or a second run with --teacher"
        lines.append(f"the run ends before its {args.max_minutes:g} min: after {most} passes this model only "
                     f"learns the text by heart. More text helps{teacher}.")
    elif by_minutes and not is_chosen and times > 1:
        lines.append(f"--max_minutes {args.max_minutes:g} allows only {several(recipe.total_steps, 'step')} of this "
                     f"model, {in_epochs(recipe.passes)}: too few to learn much. Give --max_minutes "
                     f"{math.ceil(times * args.max_minutes)}{', or a smaller --model_size' if has_smaller else ''}.")
    for component, passes in _passes_of_components(setup):
        if passes > most_passes(component.corpus.train.length, config.num_parameters, has_teacher_or_noise(args)):
            lines.append(f"{component.name} is read {passes:,.0f} times, and learned by heart. Give it a smaller "
                         "weight, or more text.")
    if recipe.learning_rate > 20 * recipe.usual_learning_rate:
        lines.append(f"--learning_rate {recipe.learning_rate:g} is far above the default of this run, and may diverge. "
                     f"Give --learning_rate {recipe.usual_learning_rate:.2g}.")
    return lines


def _fraction_without_answer(corpus: Corpus, seq_length: int) -> float:
    """The fraction of the training sequences without a token that counts, estimated from a thousand."""
    if not corpus.converses:
        return 0.0
    starts = spaced(num_windows(corpus.train.length, seq_length), 1000) * seq_length
    return 1 - float(Mask(corpus.train).rows(starts + 1, seq_length).any(1).mean())


def _passes_of_components(setup: Setup) -> list[tuple[Component, float]]:
    """The passes over each folder of a mixture, none without one."""
    tokens = setup.recipe.num_samples * setup.config.seq_length
    return [(component, component.weight * tokens / component.corpus.train.length)
            for component in setup.corpus.components]


def early_objections(setup: Setup) -> list[str]:
    """Warnings about the plan that need no measured step."""
    args, corpus = setup.args, setup.corpus
    config, recipe = setup.config, setup.recipe
    num_tokens = corpus.train.length
    lines = []
    if args.compile is False and setup.runtime.machine.backend.compiles_by_default:
        lines.append("torch.compile is off on a GPU: expect half the speed. Drop --no-compile.")
    if args.compile_mode and args.compile is None and not setup.runtime.machine.compile:
        lines.append(f"--compile_mode {args.compile_mode}: has no effect here without --compile.")
    if args.model_parallel != "auto" and setup.runtime.processes.world_size == 1 and not setup.resumed:
        lines.append(f"--model_parallel {args.model_parallel}: has no effect in one process; torchrun starts several.")
    if args.preload == "ram" and setup.token_place != "ram":
        lines.append(f"--preload ram: the tokens are mapped from the disk instead: {setup.why_token_place}.")
    if config.seq_length == num_tokens - 1 and config.seq_length != args.seq_length:
        lines.append(f"sequences have only {several(config.seq_length, 'token')}, as the text has {num_tokens:,}.")
    fewest = min((each.stream.length for each in corpus.validation_sets), default=0)
    if corpus.val is None:
        given = f"--tokenizer_file {shell_word(corpus.tokenizer_path)} " if corpus.tokenizer_path else ""
        patience = ", and --patience has no effect" if args.patience else ""
        lines.append(f"no validation tokens: overfitting will not be seen{patience}. Make some, and give --data_dir "
                     f"tokens:\npython pretokenize.py TEXT {given}--val_fraction 0.01 --output_dir tokens")
    elif fewest < MIN_VAL_TOKENS:
        lines.append(f"the validation set has only {fewest:,} tokens, so its loss is mostly chance. More text helps.")
    copied, folder = most_copied(corpus)
    if copied >= MANY_COPIES:
        of = f" of {folder}" if folder else ""
        lines.append(f"{percent(copied)} of the validation tokens{of} stand word for word in the training text: "
                     "their loss counts memorized passages. Remove duplicates from the text.")
    weighted = [(component.corpus, component.weight) for component in corpus.components] or [(corpus, 1.0)]
    without_answer = sum(weight * _fraction_without_answer(each, config.seq_length) for each, weight in weighted)
    if without_answer > MANY_WITHOUT_ANSWER:
        can_grow = "seq_length" in args.origin.given or not setup.is_pretrained
        cure = (f"Give --seq_length {2 * config.seq_length}, or more" if can_grow else
                f"Shorten the questions: the model sees {config.seq_length:,} tokens")
        lines.append(f"{percent(without_answer)} of the sequences of {config.seq_length:,} tokens hold no answer, and "
                     f"teach nothing. {cure}.")
    world_size = setup.runtime.processes.world_size
    if recipe.samples_per_step > recipe.windows_per_epoch:
        fewest_each = f" --gradient_accumulation_steps {world_size}" if recipe.accumulation > world_size else ""
        passes_of_step = plain_number(recipe.samples_per_step / recipe.windows_per_epoch)
        lines.append(f"each step reads the text {passes_of_step} times: it "
                     f"has {several(recipe.windows_per_epoch, 'sequence')} of {config.seq_length:,} tokens. Give at "
                     f"most --batch_size {max(1, recipe.windows_per_epoch // world_size)}{fewest_each}.")
    if isinstance(args.batch_size, int) and setup.micro_batch < args.batch_size and not setup.resumed:
        whole = world_size * -(-recipe.samples_per_step // (world_size * args.batch_size))
        lines.append(f"a step has {several(recipe.samples_per_step, 'sequence')}, so each of {world_size} processes "
                     f"takes {setup.micro_batch} at a time, not --batch_size {args.batch_size}. For that, give "
                     f"--gradient_accumulation_steps {whole}: it counts for all processes together.")
    if setup.resumed and args.eval_batches not in (None, recipe.eval_tokens / recipe.batch_size / config.seq_length):
        lines.append(f"--eval_batches: validation keeps its {recipe.eval_tokens:,} tokens. Drop "
                     "--eval_batches, and give --eval_tokens.")
    return lines
