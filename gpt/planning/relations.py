"""How the flags of train.py relate to each other and to other programs' flags: a table, read before torch."""

from collections.abc import Iterable

from gpt.common.config import Relations
from gpt.optimizers.table import OPTIMIZERS

# Flags whose decided values follow from a run's length, its model, its batch, its text.
BY_LENGTH = "min_lr warmup_steps weight_decay dropout eval_interval sample_interval log_interval"
BY_MODEL = f"epochs init_std optimizer learning_rate embedding_learning_rate {BY_LENGTH}"
BY_BATCH = "learning_rate embedding_learning_rate min_lr beta2"
BY_TEXT = f"batch_size gradient_accumulation_steps beta2 teacher input_noise {BY_MODEL}"
WITHOUT_CUDA_GRAPHS = (
    "no-use_gpu", "deterministic", "activation_checkpointing", "batch_size auto", "dropout", "teacher")

RELATIONS = {
    # ---- data
    "config": Relations("call"),
    "texts": Relations("call"),
    "data_dir": Relations(
        aliases="data dataset data_path dataset_path train_data", renews=BY_TEXT,
        overrides="texts bin_file val_bin_file tokenizer_file metadata_file vocab_size"),
    "bin_file": Relations(aliases="train_bin", renews=BY_TEXT),
    "val_bin_file": Relations(aliases="val_bin"),
    "tokenizer_file": Relations(aliases="tokenizer tokenizer_name tokenizer_path"),
    "metadata_file": Relations(aliases="meta"),
    "preload": Relations("machine", conflicts="gpu: no-use_gpu"),
    "allow_new_data": Relations("call", requires="resume_from, cooldown_from"),

    # ---- model
    "arch": Relations(conflicts="init_from"),
    "model_size": Relations(
        aliases="size model model_name", overrides="n_layer n_head n_embd n_kv_head n_inner", invalidates=BY_MODEL,
        conflicts="init_from"),
    "init_from": Relations(aliases="model_name_or_path initial_checkpoint_dir"),
    "teacher": Relations(aliases="teacher_model distill_from", invalidates=BY_MODEL),
    "n_layer": Relations(
        aliases="depth n_layers num_layers num_hidden_layers", invalidates=BY_MODEL, conflicts="init_from"),
    "n_head": Relations(
        aliases="num_heads num_attention_heads", invalidates=f"n_kv_head n_inner {BY_MODEL}", conflicts="init_from"),
    "n_embd": Relations(
        aliases="d_model dim n_embed hidden_size", invalidates=f"n_inner {BY_MODEL}", conflicts="init_from"),
    "seq_length": Relations(
        aliases="block_size max_seq_len max_seq_length seq_len context_length n_ctx", invalidates=BY_TEXT),
    "input_noise": Relations(aliases="token_noise"),
    "dropout": Relations(aliases="drop dropout_rate resid_pdrop attn_pdrop"),
    "bias": Relations(conflicts="arch qwen3|llama, init_from"),
    "n_kv_head": Relations(requires="arch qwen3|llama", conflicts="init_from", invalidates="n_inner"),
    "n_inner": Relations(requires="arch qwen3|llama", conflicts="init_from"),
    "rope_theta": Relations(requires="arch qwen3|llama", conflicts="init_from"),
    "tie_weights": Relations(aliases="weight_tying tie_embeddings tie_word_embeddings", conflicts="init_from"),

    # ---- length
    "batch_size": Relations(
        aliases="per_device_train_batch_size auto_find_batch_size device_batch_size micro_batch_size",
        invalidates=f"gradient_accumulation_steps {BY_BATCH}", conflicts="auto: model_parallel fsdp|hsdp"),
    "gradient_accumulation_steps": Relations(
        aliases="grad_accum_steps accumulate_grad_batches", invalidates=BY_BATCH),
    "epochs": Relations(
        aliases="num_train_epochs max_epochs", overrides="max_steps max_minutes cooldown_from", invalidates=BY_LENGTH,
        conflicts="cooldown_from"),
    "max_steps": Relations(
        aliases="max_iters num_iterations lr_decay_iters", overrides="epochs max_minutes cooldown_from",
        invalidates=BY_LENGTH,
        conflicts="cooldown_from"),
    "max_minutes": Relations(
        overrides="epochs max_steps", invalidates=f"learning_rate embedding_learning_rate {BY_LENGTH}"),
    "cooldown_from": Relations(
        "resume", overrides="epochs max_steps max_minutes cooldown", invalidates="min_lr", conflicts="init_from"),
    "cooldown": Relations(requires="lr_schedule wsd, cooldown_from"),
    "patience": Relations(aliases="early_stopping_patience"),

    # ---- optimizer
    "optimizer": Relations(
        aliases="optim opt", invalidates="learning_rate min_lr embedding_learning_rate init_std",
        conflicts=", ".join(f"{name}: {row.conflicts}" for name, row in OPTIMIZERS.items() if row.conflicts)),
    "learning_rate": Relations(
        aliases="lr max_lr peak_lr matrix_lr optimizer_lr", invalidates="min_lr embedding_learning_rate init_std"),
    "init_std": Relations(conflicts="init_from"),
    "lr_schedule": Relations(
        aliases="decay_lr lr_scheduler_type schedule lr_decay_style", overrides="cooldown",
        invalidates="min_lr warmup_steps"),
    "min_lr": Relations(aliases="min_learning_rate end_lr final_lr lr_min"),
    "warmup_steps": Relations(aliases="warmup_ratio warmup_iters lr_warmup_steps num_warmup_steps"),
    "use_lr_scheduler": Relations("call"),
    "weight_decay": Relations(aliases="wd"),
    "beta1": Relations(aliases="adam_beta1"),
    "beta2": Relations(aliases="adam_beta2"),
    "grad_clip": Relations(aliases="max_norm max_grad_norm clip gradient_clip_val"),
    "label_smoothing": Relations(aliases="label_smoothing_factor"),
    "seed": Relations(aliases="random_seed"),

    # ---- machine
    "use_gpu": Relations("machine", aliases="device accelerator cuda gpu gpus cpu no_cuda use_cpu"),
    "use_amp": Relations("machine", aliases="amp mixed_precision precision fp16 bf16"),
    "amp_dtype": Relations(
        "machine", aliases="dtype torch_dtype", conflicts="bf16: no-use_amp, fp16: no-use_amp"),
    "compile": Relations("machine", aliases="torch_compile use_compile"),
    "compile_mode": Relations(
        "machine", conflicts=", ".join([
            "no-compile", "max-autotune-no-cudagraphs: deterministic",
            *(f"reduce-overhead: {condition}" for condition in WITHOUT_CUDA_GRAPHS)])),
    "deterministic": Relations("machine", aliases="full_determinism"),
    "activation_checkpointing": Relations("machine", aliases="gradient_checkpointing"),

    # ---- output
    "output_dir": Relations("call", aliases="out_dir out save_dir checkpoint_dir log_dir run_dir"),
    "checkpoint_interval": Relations(aliases="save_strategy"),
    "checkpoint_every_steps": Relations(aliases="save_interval save_steps"),
    "keep_checkpoints": Relations(aliases="save_total_limit keep_last always_save_checkpoint"),
    "mirror_to": Relations("resume"),  # on every machine, once the mirror is known to be this run's
    "resume_from": Relations("call", aliases="resume resume_from_checkpoint ckpt"),
    "overwrite": Relations("call", aliases="overwrite_output_dir force", conflicts="resume_from auto"),
    "eval_interval": Relations(
        aliases="eval_strategy evaluation_strategy eval_every eval_steps val_interval validation_interval"),
    "eval_batches": Relations("call", aliases="eval_iters", overrides="eval_tokens", conflicts="eval_tokens"),
    "sample_interval": Relations(aliases="sample_every"),
    "sample_prompt": Relations(conflicts="sample_interval 0"),
    "log_interval": Relations(aliases="logging_steps log_every"),
    "tracker": Relations("machine", aliases="trackers report_to log_with logger wandb wandb_log tensorboard"),

    # ---- plan
    "check": Relations("call"),
    "verbose": Relations("call"),
    "dry_run": Relations("call"),
    "overfit": Relations(
        "call", aliases="overfit_batches",
        conflicts="check, dry_run, resume_from, cooldown_from, max_minutes, patience"),
    "gpu_cost_per_hour": Relations("call", requires="dry_run, check"),
    "debug": Relations("call"),
}


# Flags that a run of the default recipe may have: for its tokens, its length and its files. Every other flag of
# a run makes another recipe, on which the losses depend.
OF_ANY_RECIPE = frozenset((
    "data_dir", "bin_file", "val_bin_file", "tokenizer_file", "metadata_file", "vocab_size", "epochs", "max_steps",
    "max_minutes", "cooldown", "patience", "seed", "model_parallel", "checkpoint_interval", "checkpoint_every_steps",
    "checkpoint_every_minutes", "keep_checkpoints", "mirror_to", "eval_interval", "eval_tokens", "sample_interval",
    "sample_prompt", "log_interval"))


def of_another_recipe(given: Iterable[str]) -> frozenset[str]:
    """The flags among these that make another recipe than the default."""
    return frozenset(given) - OF_ANY_RECIPE - flags_of_scope("call") - flags_of_scope("machine")


def flags_of_scope(scope: str) -> frozenset[str]:
    """The names of the flags of one scope, as Relations lists them."""
    return frozenset(name for name, relations in RELATIONS.items() if relations.scope == scope)
