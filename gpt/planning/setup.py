"""Makes the decisions before the first step in their order: dropout, kernels, place of the tokens, recipe, memory."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpt.checkpoint.find import is_inside
from gpt.checkpoint.folder import Retention
from gpt.checkpoint.mirror import Mirror
from gpt.common.errors import Exit, UserError
from gpt.common.ranks import trains_first_of_two
from gpt.common.words import duration, several, size
from gpt.machine.environment import available_ram
from gpt.machine.runtime import Runtime
from gpt.planning import defaults
from gpt.planning.deadline import Deadline
from gpt.planning.decided import Setup, measures_same_tokens, same_everywhere
from gpt.planning.evidence import ngram_statistics
from gpt.planning.inputs import Inputs
from gpt.planning.kernels import choose_kernels, use_attention
from gpt.planning.memory import (
    MemorySetting,
    checkpoint_bytes_of,
    choose_batch_size,
    choose_sharing,
    halve_after_out_of_memory,
    has_room_for_copy,
    has_room_for_sample,
    micro_batch_of,
    setting_of,
)
from gpt.planning.recipe import ENDLESS, Recipe, choose_recipe, records_step_size
from gpt.planning.relations import of_another_recipe
from gpt.planning.sizing import FRACTION_OF_PEAK, UNKNOWN_PEAK, choose_options
from gpt.tokens.corpus import Corpus
from model import Options


def choose_setup(inputs: Inputs, runtime: Runtime, deadline: Deadline) -> Setup | None:
    """Decides everything that the flags leave open, each with its reason, the same in all processes.

    Returns None, after a line with the reason, for a resumed run with neither steps nor a validation left.
    Raises UserError: exit 2 or 4 like choose_recipe(), and 2 where processes cannot share a step. Exit 5 means
    that not one sequence fits, that --preload gpu has no GPU, or that processes differ.
    """
    args, corpus = inputs.args, inputs.corpus
    machine, processes = runtime.machine, runtime.processes
    options = choose_options(args.activation_checkpointing, inputs.is_pretrained, machine, inputs.stored.environment)
    dropout = processes.from_main(lambda: _choose_dropout(inputs, options, runtime, deadline))
    config = replace(inputs.config, dropout=dropout)
    inputs = replace(inputs, config=config)
    kernels = processes.from_main(
        lambda: choose_kernels(config, machine, options.loss_chunk, inputs.stored.environment))
    use_attention(kernels.attention)
    options = replace(options, loss_chunk=kernels.loss_chunk, label_smoothing=args.label_smoothing or 0.0)

    # The recipe, with the micro-batch that fits beside the tokens.
    place, why_place = processes.from_main(lambda: choose_place(args.preload, corpus, runtime))
    strategy, why_strategy, most_batch_size = processes.from_main(
        lambda: choose_sharing(args, inputs.sizing, config, options, machine, processes))
    recipe_for = partial(choose_recipe, inputs, most_batch_size)
    recipe = recipe_for(deadline.length)
    if inputs.resumed and processes.from_main(
            lambda: _say_if_finished(inputs, recipe, recipe_for(None), deadline, runtime)):
        processes.from_main(lambda: _complete_mirror(inputs, recipe, runtime))
        return None
    memory = setting_of(args, config, options, machine, processes, recipe.optimizer, strategy)
    recipe = _with_fitting_micro_batch(recipe, inputs, memory, runtime, corpus.train.num_bytes if place == "gpu" else 0)
    micro_batch = micro_batch_of(recipe, processes.world_size)

    # The bytes of a checkpoint, and the memory of a step.
    weights = 0 if machine.backend.has_own_memory else 4 * config.num_parameters
    held_bytes = weights + (corpus.train.num_bytes if place == "ram" else 0)
    checkpoint_bytes = checkpoint_bytes_of(config, memory.optimizer_bytes)
    memory = replace(memory, accumulates=recipe.samples_per_step > micro_batch * processes.world_size,
                     saves_through_copy=processes.from_main(
                         lambda: has_room_for_copy(checkpoint_bytes, held_bytes)))
    shows_samples = recipe.sample_interval > 0 and processes.from_main(
        lambda: has_room_for_sample(config, memory, machine, processes))

    ngrams = None
    other_recipe = args.overfit or args.teacher or args.input_noise or of_another_recipe(args.origin.given)
    if inputs.sizing and processes.is_main and not other_recipe:
        with runtime.out.phase("reading the text's n-grams"):
            ngrams = ngram_statistics(corpus)
    setup = Setup(**vars(inputs), runtime=runtime, options=options, kernels=kernels, recipe=recipe, memory=memory,
                  checkpoint_bytes=checkpoint_bytes, token_place=place, why_token_place=why_place,
                  micro_batch=micro_batch, why_strategy=why_strategy, recipe_for=recipe_for,
                  shows_samples=shows_samples, ngrams=ngrams)
    processes.check_same(same_everywhere(setup))
    return setup


def _choose_dropout(inputs: Inputs, options: Options, runtime: Runtime, deadline: Deadline) -> float:
    """Chooses the dropout: the flag's, else the checkpoint's unless it is 0, else a default by the passes.

    No step is measured yet: an estimate of the machine's speed converts --max_minutes to steps.
    """
    args, config = inputs.args, inputs.config
    machine, processes = runtime.machine, runtime.processes
    shares_ram = machine.on_gpu and not machine.backend.has_own_memory
    if (args.dropout is not None or args.init_from or args.compile_mode == "reduce-overhead"
            or (shares_ram and args.activation_checkpointing)):
        return args.dropout or 0.0
    most_batch_size = choose_sharing(args, inputs.sizing, config, options, machine, processes).micro_batch
    recipe_for = partial(choose_recipe, inputs, most_batch_size)
    length = deadline.length
    if length is None and args.max_minutes:
        tokens_per_step = recipe_for(None).samples_per_step * config.seq_length
        speed = inputs.sizing.speed if inputs.sizing else FRACTION_OF_PEAK * (machine.peak_flops or UNKNOWN_PEAK)
        speed *= processes.world_size
        length = int(60 * args.max_minutes * speed / (config.flops_per_token * tokens_per_step))
        length = max(length, 1 + (args.warmup_steps or 0))  # an estimate is no reason to refuse a warm-up
    recipe = recipe_for(length)
    is_large = config.num_parameters >= defaults.LEAST_PARAMETERS * inputs.corpus.train.length
    default = defaults.DROPOUT if recipe.is_regularized and is_large and recipe.passes >= defaults.MANY_PASSES else 0.0
    return inputs.stored.settings.get("dropout") or default


def _with_fitting_micro_batch(recipe: Recipe, inputs: Inputs, memory: MemorySetting, runtime: Runtime,
                              tokens_on_gpu: int) -> Recipe:
    """The recipe with the micro-batch of the resumed run, or the largest for --batch_size auto; its steps stay.

    Several processes halve it after a start that ran out of memory. tokens_on_gpu are bytes.
    """
    args, processes = inputs.args, runtime.processes
    keeps_step = records_step_size(inputs.stored.settings, recipe.samples_per_step)
    if keeps_step and not any(change.startswith("batch_size ") for change in args.origin.changed):
        recipe = recipe.with_micro_batch(inputs.stored.settings["batch_size"])  # halved where memory ran out
    elif args.batch_size == "auto":
        recipe = recipe.with_micro_batch(processes.from_main(
            lambda: choose_batch_size(recipe, inputs.config, memory, runtime, tokens_on_gpu)))
    if processes.world_size > 1:
        recipe = recipe.with_micro_batch(processes.from_main(
            lambda: halve_after_out_of_memory(Path(args.output_dir), recipe, runtime.out)))
    return recipe


def _say_if_finished(inputs: Inputs, recipe: Recipe, longest: Recipe, deadline: Deadline, runtime: Runtime) -> bool:
    """True, after a line that says so, for a resumed run with nothing left, neither steps nor a validation.

    longest is the recipe for any number of minutes.
    """
    args, state = inputs.args, inputs.stored.state
    # On other validation tokens the count begins again.
    is_patient = (state.validations_without_gain < (args.patience or math.inf)
                  or not measures_same_tokens(inputs.stored, inputs.corpus, recipe.eval_tokens))
    is_out_of_time = deadline.is_used_up(state.seconds)
    if state.step < recipe.total_steps and is_patient and not is_out_of_time:
        return False
    lacks_validation = (state.step == recipe.total_steps and state.validated_step < state.step
                        and inputs.corpus.val and not args.dry_run)
    if lacks_validation:
        more = "its last validation is missing and follows now"
    elif trains_first_of_two():
        more = "the second model follows"
    elif not is_patient:
        more = (f"{several(state.validations_without_gain, 'validation')} brought no new best; "
                "raise --patience to continue")
    elif recipe.cooldown and state.step >= recipe.total_steps:
        more = f"cooled down; to train on from before: {recipe.command_from_plateau(args)}"
    elif is_out_of_time or recipe.total_steps < longest.total_steps:  # the minutes planned the last step
        more = f"raise --max_minutes to continue: all starts together took {duration(state.seconds)}"
    else:
        more = "raise --epochs or --max_steps to continue"
    planned = f" of {recipe.total_steps:,}" if recipe.epochs < ENDLESS else ""
    runtime.out.say(f"already at step {state.step:,}{planned}; {more}")
    return not lacks_validation


def _complete_mirror(inputs: Inputs, recipe: Recipe, runtime: Runtime) -> None:
    """Completes the mirror of a run that is finished in its own folder; waits for its disk at most 20 minutes."""
    args, state = inputs.args, inputs.stored.state
    is_here = inputs.resumed and is_inside(inputs.resumed.folder, Path(args.output_dir))
    if args.mirror_to and is_here and not args.dry_run:
        protected = frozenset((state.best_step, recipe.plateau_end or 0))
        mirror = Mirror(args, runtime.out)
        mirror.update(Retention(state.step, args.keep_checkpoints, protected))
        mirror.finish()


def choose_place(requested: str, corpus: Corpus, runtime: Runtime) -> tuple[str, str]:
    """The place of the training tokens ('gpu', 'ram' or 'mmap') and the reason. Raises UserError (exit 5)."""
    backend, num_processes = runtime.machine.backend, runtime.processes.local_world_size
    free_bytes = backend.free_memory() if backend.has_own_memory else None
    if requested == "gpu" and corpus.train.num_bytes > (free_bytes or 0):
        reason = "the run uses no GPU with its own memory"  # an Apple GPU shares the RAM
        if backend.has_own_memory:
            reason = f"the tokens take {size(corpus.train.num_bytes)}, and {size(free_bytes or 0)} of the GPU are free"
        raise UserError(Exit.MACHINE, f"--preload gpu: {reason}. Give --preload auto.")
    place, why = choose_preload(requested, corpus.train.num_bytes, free_bytes, available_ram())
    if place == "ram" and num_processes > 1:
        return "mmap", f"once in RAM for all {num_processes} processes of a machine"
    return place, why


def choose_preload(requested: str, num_bytes: int, gpu_free_bytes: int | None,
                   ram_free_bytes: int) -> tuple[str, str]:
    """Chooses the place of the tokens for --preload; returns 'gpu', 'ram' or 'mmap' and the reason.

    auto takes the GPU if the tokens fit in a tenth of its free memory. Otherwise it takes RAM if they fit in
    half of the free RAM, or a memory map, which needs no room. ram that does not fit becomes mmap; gpu is not
    compared with the free memory. Without a GPU, gpu_free_bytes must be None, and the caller must refuse gpu.
    """
    tokens, free = size(num_bytes), f"half of the {size(ram_free_bytes)} of free RAM"
    if requested == "auto" and num_bytes <= (gpu_free_bytes or 0) // 10:
        return "gpu", f"{tokens} fit in a tenth of the {size(gpu_free_bytes or 0)} of free GPU memory"
    if requested not in ("auto", "ram"):
        return requested, "as requested"
    if num_bytes <= ram_free_bytes // 2:
        return "ram", "as requested" if requested == "ram" else f"{tokens} fit in {free}"
    return "mmap", f"{tokens} exceed {free}"
