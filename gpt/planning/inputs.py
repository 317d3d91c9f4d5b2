"""The inputs of a run: the tokens, the model's shape, the checkpoint to resume from.

All inputs are checked before any decision; independent problems are reported together.
"""

import contextlib
from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path

from gpt.architectures.table import ModelConfig, fields_with_flags
from gpt.checkpoint import find, load
from gpt.checkpoint.folder import owned
from gpt.checkpoint.mirror import holds_this_run, prepare_mirror
from gpt.checkpoint.steps import numbered_in, steps_in
from gpt.checkpoint.stored import NEW_RUN, FoundCheckpoint, StoredState, TrainState, manifest_entries
from gpt.common.errors import Exit, InvalidCheckpoint, Problems, UserError
from gpt.common.files import is_same_folder, sha256_of, split_checkpoint_name
from gpt.common.flags import with_values
from gpt.common.names import FIRST_MODEL, MANIFEST, METADATA, PRETOKENIZE_LOCK, TOKENIZER, WEIGHTS
from gpt.common.progress import Progress
from gpt.common.words import printable, shell_word
from gpt.hub.download import download_flag
from gpt.hub.names import as_recorded
from gpt.machine.backends import NVIDIA, gpu_in_use, gpu_of_this_system
from gpt.machine.runtime import Runtime
from gpt.planning.early import refuse_folder_of_another_run, refuse_foreign_config
from gpt.planning.schedules import Cooldown, schedule_of
from gpt.planning.sizing import SIZE_FLAGS, Sizing, choose_config, choose_sizing
from gpt.tokens.corpus import Corpus, open_corpus
from gpt.tokens.files import SUFFIXES, beside_tokens, folders_of
from gpt.tokens.mixture import check_lengths, mix, mixture_in_words
from gpt.tokens.tokenizer import load_tokenizer

LEAST_TO_FALL = 0.01  # of the peak, from which a cooldown still learns: the end of a cosine


@dataclass(frozen=True)
class Inputs:
    """The checked inputs of a run: args, tokens, the model's shape, the checkpoint to resume from.

    args names the local folders of models from the hub. sizing is the program's choice of network and size,
    None for pretrained weights and on a GPU with its own memory. config has the dropout of its flag, 0
    without one, which choose_setup may replace. resumed is None for a new run. teacher_sha256 is of the
    weights of --teacher; None without one, and for a Hugging Face folder.
    """

    args: Namespace
    corpus: Corpus
    sizing: Sizing | None
    config: ModelConfig
    resumed: FoundCheckpoint | None
    teacher_sha256: str | None

    @property
    def prefers_bf16(self) -> bool:
        """True where the program chose the size, here or for --config, and for a resumed run that began in bf16."""
        if self.resumed:
            return self.stored.environment.get("precision") == "bf16"
        return bool(self.sizing) and not self.args.origin.given.intersection(SIZE_FLAGS)

    @property
    def is_pretrained(self) -> bool:
        """True for a run that began from pretrained weights."""
        return bool(self.args.init_from or self.stored.state.init_from)

    @property
    def stored(self) -> StoredState:
        """The training state of the checkpoint; NEW_RUN for a new run."""
        return self.resumed.stored if self.resumed else NEW_RUN

    def new_state(self) -> TrainState:
        """A new copy of the checkpoint's counters, all zero for a new run."""
        return replace(self.stored.state)


def choose_inputs(args: Namespace, runtime: Runtime) -> Inputs:
    """Checks the inputs in the main process, which sends its results to the other processes.

    Downloads models of the hub. Unless nothing is written, creates the output folder, which stays
    locked until the runtime closes, and tries the mirror. Raises one UserError with all problems,
    and the exit code of the first.
    """
    if args.overfit:
        above_zero = {"dropout": 0.0, "input_noise": 0.0, "teacher": None, "label_smoothing": 0.0}
        left_out = sorted(args.origin.given.intersection(above_zero))
        if left_out:
            runtime.out.say(f"overfit     without --{' --'.join(left_out)}, which would keep the loss above zero")
        args = with_values(args, **above_zero)
    args = download_flag(args, "init_from", runtime.out)
    processes = runtime.processes
    checked = processes.from_main(lambda: _check(args, runtime))
    resumed = checked.resumed
    manifest = processes.from_main(lambda: sha256_of(resumed.folder / MANIFEST) if resumed else "")
    if processes.is_main:
        return checked
    args = with_values(args, teacher=checked.args.teacher)
    if args.init_from and find.is_inside(Path(checked.args.init_from), Path(args.init_from)):
        args = with_values(args, init_from=checked.args.init_from)
    with processes.errors_of_this_rank():
        corpus = find_corpus(args)
        config = choose_config(args, corpus.vocab_size, corpus.train.length, checked.sizing)
        if resumed:
            find.wait_until_here(resumed.folder, manifest)
            config = as_in_checkpoint(config, resumed.folder, args)
        return Inputs(args, corpus, checked.sizing, config, resumed, checked.teacher_sha256)


def _check(args: Namespace, runtime: Runtime) -> Inputs:
    """Checks and returns the inputs in the main process. Raises one UserError with all problems."""
    problems = Problems()
    corpus = resumed = None
    out = runtime.out
    writes = not (args.dry_run or args.overfit)
    if args.origin.replaced:
        out.say(f"config      on the command line {', '.join(args.origin.replaced)}")
    if args.origin.recorded:
        changed = f"; on the command line {', '.join(args.origin.changed)}" if args.origin.changed else ""
        out.say(f"resume      with the flags in {args.origin.recorded}{changed}")
    with problems.catch():
        _check_device(args)
    with problems.catch():
        if writes:
            runtime.resources.enter_context(owned(Path(args.output_dir)))
            if args.mirror_to:
                prepare_mirror(args, out)
    with problems.catch():
        if writes or args.resume_from or args.cooldown_from:
            resumed = choose_resume(args, writes, out)
    with problems.catch():
        if args.teacher:
            _refuse_missing_teacher(args.teacher)
    names_tokens = {"data_dir", "bin_file", "metadata_file"} & {*args.origin.given}
    if (args.resume_from or args.cooldown_from) and not (args.origin.recorded or names_tokens):
        problems.stop()  # neither flags nor a record say which tokens the run has
    with problems.catch(), out.phase("checking the tokens"):
        corpus = find_corpus(args)
        if args.init_from:
            folder, weights = load.starting_config(args.init_from)
            _check_tokenizer("--init_from", folder, corpus.tokenizer_path, out, weights.vocab_size < corpus.vocab_size)
            if runtime.processes.world_size > 1:  # all load this checkpoint of a run, though a newer one may appear
                args = with_values(args, init_from=str(folder))
    problems.stop()
    assert corpus

    if resumed and (init_from := args.origin.excluded.get("init_from")):
        origin = resumed.stored.state.init_from
        if not origin:
            raise UserError(Exit.FLAGS, f"{printable(resumed.folder)} is of a run that began from random weights. Drop "
                                        "--init_from.")
        # A checkpoint by the name of its run, or a model of the hub without its commit.
        if as_recorded(init_from) not in (origin, str(Path(origin).parent), origin.partition("@")[0]):
            out.say(f"resume      --init_from has no effect: the run began from {printable(origin)}")
    inputs = inputs_for(args, corpus, args.max_minutes, out)
    if resumed:
        config = as_in_checkpoint(inputs.config, resumed.folder, args)
        find.check_same(resumed, config, corpus.identity, corpus.tokenizer_sha256, args.allow_new_data,
                        mixture_in_words(corpus.components), args.mirror_to)
        _check_teacher(inputs, resumed)
        stored = resumed.stored
        limits = [args.epochs, args.max_steps]
        num_before = stored.data.get("train_tokens", corpus.train.length)
        is_new_text = (stored.data.get("train_sha256"), num_before) != (corpus.identity, corpus.train.length)
        if is_new_text and not args.allow_new_data:  # the same file: a validation file was added or removed
            raise UserError(Exit.DATA, f"the checkpoint was trained on {num_before:,} tokens of this text, and this "
                                       f"run has {corpus.train.length:,}. Give the same validation file as before, or "
                                       "none if there was none, or --allow_new_data.")
        if is_new_text:
            stored = replace(stored, state=replace(stored.state, samples_of_others=stored.state.samples_seen))
        if is_new_text or stored.settings.get("limits", limits) != limits:  # the same minutes plan another end
            stored = replace(stored, settings={**stored.settings, "max_minutes": None})
        inputs = replace(inputs, config=config, resumed=resumed._replace(stored=stored))
    return inputs


def _check_device(args: Namespace) -> None:
    """Raises UserError (exit 5) for flags that the device does not support."""
    if args.use_gpu and (reason := gpu_of_this_system().why_unavailable()):
        raise UserError(Exit.MACHINE, f"--use_gpu: {reason}, or give --no-use_gpu to train on the CPU.")
    if args.compile_mode == "reduce-overhead" and (reason := NVIDIA.why_unavailable()):
        raise UserError(Exit.MACHINE, f"--compile_mode reduce-overhead: {reason}, or give --compile_mode default.")
    gpu = gpu_in_use(args.use_gpu)
    # On Apple's GPU recomputation would drop other values.
    if args.activation_checkpointing and args.dropout and gpu and not gpu.has_own_memory:
        raise UserError(Exit.MACHINE, "--activation_checkpointing and --dropout: not together on Apple's GPU. "
                                      "Give --dropout 0 or --no-activation_checkpointing.")


def inputs_for(args: Namespace, corpus: Corpus, max_minutes: float | None, out: Progress) -> Inputs:
    """The inputs of a new run on a corpus in these minutes: its size, and the teacher, if any."""
    with out.phase("measuring the processor"):
        sizing = choose_sizing(args, corpus, max_minutes)
    config = choose_config(args, corpus.vocab_size, corpus.train.length, sizing)
    check_lengths(corpus, config.seq_length)
    teacher_sha256 = None
    if args.teacher:
        args = with_values(args, teacher=choose_teacher(args.teacher, config, corpus.tokenizer_path, out))
        teacher_sha256 = _weights_sha256(Path(args.teacher))
    return Inputs(args, corpus, sizing, config, None, teacher_sha256)


# ---------------------------------------------------------------- the checkpoint


def as_in_checkpoint(config: ModelConfig, folder: Path, args: Namespace) -> ModelConfig:
    """The config with the fields of a checkpoint's model that no flag sets, as the epsilon of norms.

    A run from pretrained weights may have more ids than the corpus; they stay. Unchanged for a checkpoint that
    cannot be read or has another architecture.
    """
    with contextlib.suppress(InvalidCheckpoint):  # find.check_same reports it with more detail
        recorded = load.read_config(folder)
        if type(recorded) is type(config):
            return replace(recorded, **{name: getattr(config, name) for name in fields_with_flags(config, vars(args))},
                           vocab_size=max(config.vocab_size, recorded.vocab_size))
    return config


def choose_resume(args: Namespace, writes: bool, out: Progress) -> FoundCheckpoint | None:
    """The verified checkpoint to resume from and its state, or None for a new run.

    A --resume_from that names the mirror means --output_dir, into which prepare_mirror has copied the
    checkpoint. writes is False for a run that writes nothing: it copies nothing, and the name means the mirror.
    Raises UserError: exit 4 without a sound checkpoint or for a folder of another run, exit 2 if --overwrite
    would delete the model to start from.
    """
    output_dir = Path(args.output_dir)
    requested = args.resume_from or ""
    is_mirror = requested and args.mirror_to and writes and is_same_folder(requested, args.mirror_to)
    if is_mirror and (not steps_in(output_dir) or holds_this_run(Path(args.mirror_to), output_dir)):
        requested = "auto"
    if requested or args.cooldown_from is not None:
        with out.phase("verifying the checkpoint"):
            found = (find.find_resume(requested, output_dir, args.overwrite, out.warn) if args.cooldown_from is None
                     else choose_cooldown(args, out))
        if writes and not (found and find.is_inside(found.folder, output_dir)):
            refuse_foreign_config(args)
        if found and not find.is_inside(found.folder, output_dir):
            _refuse_unfinished_checkpoint(output_dir)
        elif not (found or steps_in(output_dir / FIRST_MODEL)):
            out.say(f"resume      no checkpoint in {printable(output_dir)} yet: starting at step 0")
        return found
    _refuse_unfinished_checkpoint(output_dir)
    for model in filter(None, (args.init_from, args.teacher)):
        if args.overwrite and find.is_inside(Path(model), output_dir):
            raise UserError(Exit.FLAGS, f"--overwrite: would delete {printable(model)}, which the run starts from. "
                                        "Give another --output_dir.")
    if writes:
        refuse_foreign_config(args)
    refuse_folder_of_another_run(args)
    return None


def choose_cooldown(args: Namespace, out: Progress) -> FoundCheckpoint:
    """The checkpoint from which a run with --cooldown_from continues, with the cooldown in its settings.

    With --resume_from it is the newest checkpoint of the cooldown, if it has one; otherwise the cooldown
    begins at the requested checkpoint. Raises UserError: exit 4 like find_resume, exit 2 for a learning
    rate at --min_lr already.
    """
    output_dir = Path(args.output_dir)
    requested = args.cooldown_from
    shown = f"--cooldown_from {printable(requested)}"
    own = args.resume_from and find.find_resume(args.resume_from, output_dir, args.overwrite, out.warn)
    if own:
        source = own.stored.settings.get("cooldown_from")
        if source and _may_mean(requested, source):
            return own
        if args.resume_from != "auto" and not _may_mean(requested, str(own.folder)):
            out.say(f"resume      without {shown}")
            return own
    found = find.find_resume(requested, output_dir, args.overwrite, out.warn)
    if found is None:
        raise UserError(Exit.CHECKPOINT, f"{shown} holds no checkpoint with a learning rate. Give another one.")
    folder, stored = found
    if own and args.resume_from != "auto" and not is_same_folder(own.folder, folder):
        out.say(f"resume      without --resume_from {printable(args.resume_from)}: the cooldown begins at "
                f"{printable(folder)}")
    step = stored.state.step
    schedule = schedule_of(stored.settings)
    learning_rate = schedule.learning_rate_at(step)
    if learning_rate <= max(args.min_lr or 0.0, LEAST_TO_FALL * schedule.learning_rate):
        raise UserError(Exit.FLAGS, f"{shown}: the learning rate has fallen to {learning_rate:.3g} already, from "
                                    f"{schedule.learning_rate:.3g}, and --min_lr is {args.min_lr or 0.0:g}. Give an "
                                    "earlier checkpoint.")
    settings = {**stored.settings, **Cooldown(step, learning_rate, str(folder)).settings()}
    settings.pop("max_minutes", None)  # a cooldown has its own, and its own patience
    state = replace(stored.state, seconds=0.0, validations_without_gain=0)
    return FoundCheckpoint(folder, replace(stored, settings=settings, state=state))


def _may_mean(requested: str, source: str) -> bool:
    """True if a request names the checkpoint source, or a folder of checkpoints."""
    return not (Path(requested) / MANIFEST).is_file() or is_same_folder(requested, source)


def _refuse_unfinished_checkpoint(output_dir: Path) -> None:
    """Raises UserError (exit 4) for an unfinished folder with a checkpoint's name, which this run would replace."""
    unfinished = [path for path, problem in numbered_in(output_dir).values() if problem]
    if unfinished:
        raise UserError(Exit.CHECKPOINT, f"{printable(unfinished[0])} has a checkpoint's name but no manifest.json,"
                                         " and a run would replace it. Move it away, or give another --output_dir.")


def _refuse_missing_teacher(requested: str) -> None:
    """Raises UserError (exit 4) if the folder of --teacher does not exist."""
    if split_checkpoint_name(Path(requested), Path("out"))[0].exists():  # out/best names a folder too
        return
    run = Path(requested).parent
    cure = (f"Its run has deleted it. Give --teacher {shell_word(run)} for the newest." if steps_in(run) else
            "Give --teacher with the folder where it is now.")
    raise UserError(Exit.CHECKPOINT, f"--teacher {printable(requested)} does not exist. {cure}")


def choose_teacher(requested: str, config: ModelConfig, tokenizer: Path | None, out: Progress) -> str:
    """Returns the folder of --teacher's checkpoint, once it fits the student and the tokenizer of the corpus.

    Raises UserError: exit 4 for a folder without a model, 3 for a teacher with other
    ids, 2 for too few positions.
    """
    folder = find.resolve(Path(requested), out.warn)
    with load.opening(f"--teacher {printable(requested)}"):
        teacher = load.read_config(folder)
    if teacher.vocab_size != config.vocab_size:
        raise UserError(Exit.DATA, f"--teacher {printable(requested)} has {teacher.vocab_size:,} ids, the corpus "
                                   f"{config.vocab_size:,}. Give one of the same tokenizer.")
    if teacher.seq_length < config.seq_length:
        raise UserError(Exit.FLAGS, f"--seq_length {config.seq_length}: --teacher has {teacher.seq_length} positions. "
                                    "Give at most that many.")
    _check_tokenizer("--teacher", folder, tokenizer, out)
    out.say(f"teacher     {printable(folder)}: half of each target is its prediction")
    return str(folder)


def _weights_sha256(folder: Path) -> str | None:
    """The sha256 of a checkpoint's weights, as its manifest has it; None for a folder without a manifest."""
    with contextlib.suppress(InvalidCheckpoint, OSError, LookupError, TypeError):
        return manifest_entries(folder)[WEIGHTS]["sha256"]
    return None


def _check_teacher(inputs: Inputs, resumed: FoundCheckpoint) -> None:
    """Raises UserError for a checkpoint of the resumed run itself (exit 2), or other weights than before (4).

    The recorded path may hold other weights by now, which --allow_new_data permits. The command line may name
    another teacher.
    """
    args, settings = inputs.args, resumed.stored.settings
    if not args.teacher:
        return
    own = [path.resolve() for path in steps_in(resumed.folder.resolve().parent).values()]
    if Path(args.teacher).resolve() in own:
        raise UserError(Exit.FLAGS, f"--teacher {printable(args.teacher)} is a checkpoint of the run that goes "
                                    "on, and no model is its own teacher. Drop --teacher, or give one of "
                                    "another folder.")
    is_new = not settings.get("teacher") or any(change.startswith("teacher ") for change in args.origin.changed)
    is_same = settings.get("teacher_sha256", inputs.teacher_sha256) == inputs.teacher_sha256
    if not (is_new or is_same or args.allow_new_data):
        raise UserError(Exit.CHECKPOINT, f"{printable(args.teacher)} has other weights than the teacher that this "
                                         "run had: it was trained again, or is another one. Give --teacher with a "
                                         "copy of the earlier one, or --allow_new_data to go on with this one.")


def _check_tokenizer(flag: str, folder: Path, ours: Path | None, out: Progress, grows: bool = False) -> None:
    """Compares the tokenizers of the corpus and of the flag's model. Raises UserError (exit 3) if they differ.

    The corpus may have more tokens than the model of --init_from, after its own. A model that
    grows needs both tokenizers.
    """
    theirs = folder / TOKENIZER
    if ours and theirs.is_file():
        their_ids, our_ids = load_tokenizer(theirs).get_vocab(), load_tokenizer(ours).get_vocab()
        fits = their_ids == our_ids or (flag == "--init_from" and their_ids.items() <= our_ids.items())
    else:
        fits = not grows
        out.warn(f"{flag}: a tokenizer is missing, so nothing shows that these tokens were made for these weights. "
                 "With another tokenizer they mean other text.")
    if not fits:
        raise UserError(Exit.DATA, f"the corpus was made with another tokenizer than the weights of {flag}, so its ids "
                                   "mean other text. Make them again, and give --data_dir tokens:\n"
                                   "python pretokenize.py TEXT --output_dir tokens --tokenizer_file "
                                   f"{shell_word(folder)}")


# ---------------------------------------------------------------- the tokens


def find_corpus(args: Namespace) -> Corpus:
    """Opens the token files that the flags name; several folders become a mixture.

    With --bin_file the metadata and tokenizer in --data_dir are not used. Raises UserError (exit 3); exit
    4 if their vocabulary would come from an --init_from that names no model.
    """
    problems, corpora = Problems(), []
    folders = folders_of(args.data_dir)
    for folder in folders:
        with problems.catch():
            corpora.append(_find_one(args, folder.path))
    problems.stop()
    return corpora[0] if len(folders) == 1 else mix(folders, corpora)


def _find_one(args: Namespace, data_dir: str) -> Corpus:
    """Opens the corpus of one folder. Raises UserError (exit 3)."""
    folder, shown = Path(data_dir), printable(data_dir)
    if args.bin_file is None and (folder / PRETOKENIZE_LOCK).exists() and not (folder / METADATA).exists():
        raise UserError(Exit.DATA, f"--data_dir {shown} holds no tokens yet: pretokenize.py still runs there, or was "
                                   "stopped. Type its command again.")
    is_text = folder.is_file() or (folder.is_dir() and not any(each.suffix in SUFFIXES for each in folder.iterdir()))
    if args.bin_file is None and is_text:
        raise UserError(Exit.DATA, f"--data_dir {shown} holds no tokens. If it is text, type: python train.py "
                                   f"{shell_word(data_dir)}")
    if args.bin_file is None and not folder.is_dir():
        raise UserError(Exit.DATA, f"--data_dir {shown} does not exist. "
                                   "If it was moved, give --data_dir with its new place; else run: python "
                                   f"pretokenize.py TEXT --output_dir {shell_word(data_dir)}")

    def file_of(given: str | None, name: str) -> Path | None:
        if given is None and args.bin_file is None:
            return beside_tokens(folder, name)
        return Path(given) if given else None

    metadata = file_of(args.metadata_file, METADATA)
    tokenizer = file_of(args.tokenizer_file, TOKENIZER)
    vocab_size = args.vocab_size
    notes = ()
    if args.init_from and not (metadata or tokenizer or vocab_size):
        weights, config = load.starting_config(args.init_from)
        tokenizer = weights / TOKENIZER if (weights / TOKENIZER).is_file() else None
        vocab_size = None if tokenizer else config.vocab_size
        notes = ("the tokens come without their vocabulary: it is taken from --init_from",)
    if args.bin_file is None and metadata is None and not (args.tokenizer_file or args.vocab_size or notes):
        there = f" {shell_word(tokenizer)}" if tokenizer else ""
        raise UserError(Exit.DATA, f"--data_dir {shown} has no metadata.json. For tokens of another program give "
                                   f"--tokenizer_file{there} or --vocab_size; else make them again: python "
                                   f"pretokenize.py TEXT --output_dir {shell_word(data_dir)} --overwrite")
    corpus = open_corpus(Path(args.bin_file or folder), Path(args.val_bin_file) if args.val_bin_file else None,
                         metadata, tokenizer, vocab_size)
    return replace(corpus, notes=(*corpus.notes, *notes))
