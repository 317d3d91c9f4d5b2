"""The flags, values and words that other programs use, and what they are called here.

The names are those of nanoGPT, litgpt (--train.max_steps is looked up as max_steps), nanochat, Hugging Face's Trainer
and llama.cpp, in lower case with _ for -. A new flag's names elsewhere are entered in CALLED or ANSWERS.
"""

from __future__ import annotations

# For each command: a flag, and the names that it has elsewhere.
CALLED = {
    "train": {
        "--data_dir": "data dataset data_path dataset_name dataset_path data_root input_dir train_data datasets "
                      "mixture data_mix data_mixture data_paths data_prefix train_data_paths blend data_blend",
        "--bin_file": "train_bin train_file train_data_path input_bin train_files input_file",
        "--val_bin_file": "val_bin validation_file val_file eval_file val_data input_val_bin",
        "--tokenizer_file": "tokenizer tokenizer_name tokenizer_path tokenizer_dir vocab_file",
        "--metadata_file": "metadata meta meta_file",
        "--model_size": "size model model_name model_type config_name preset model_tag model_config",
        "--n_layer": "depth n_layers num_layers layers num_hidden_layers nlayer num_layer",
        "--n_head": "n_heads num_heads heads num_attention_heads nhead num_head",
        "--n_embd": "d_model dim n_embed embed_dim hidden_size model_dim width emb_dim n_embds n_dim hidden_dim",
        "--seq_length": "block_size max_seq_len max_seq_length seq_len sequence_length context_length n_ctx ctx_len "
                        "context_size n_positions max_length ctx context max_position_embeddings sequence_len",
        "--dropout": "drop dropout_rate p_dropout resid_pdrop attn_pdrop",
        "--tie_weights": "weight_tying tie_embeddings tie_word_embeddings tied_embeddings tie_embedding",
        "--batch_size": "per_device_train_batch_size device_batch_size micro_batch_size bs train_batch_size",
        "--gradient_accumulation_steps": "gradient_accumulation grad_accum grad_accum_steps accumulate_grad_batches "
                                         "accumulation_steps grad_accumulation_steps accum",
        "--epochs": "num_train_epochs num_epochs n_epochs epoch max_epochs",
        "--max_steps": "max_iters num_iterations iters steps num_steps iterations n_steps total_steps max_iterations "
                       "num_iters train_steps train_iters max_step",
        "--overfit": "overfit_batches overfit_one_batch overfit_single_batch overfit_batch",
        "--patience": "early_stopping early_stop early_stopping_patience",
        "--learning_rate": "lr max_lr peak_lr matrix_lr base_lr",
        "--min_lr": "min_learning_rate end_lr final_lr lr_min",
        "--warmup_steps": "warmup_iters lr_warmup_steps num_warmup_steps warmup_iterations warm_up_steps",
        "--lr_schedule": "lr_scheduler_type schedule lr_decay_style scheduler_type lr_scheduler_name lr_schedule_type",
        "--decay_share": "warmdown_ratio cooldown_ratio cooldown_frac decay_frac warmdown_frac decay_ratio",
        "--cooldown_steps": "warmdown_iters cooldown_iters num_decay_steps warmdown_steps",
        "--use_lr_scheduler": "decay_lr lr_decay lr_scheduler use_scheduler scheduler",
        "--optimizer": "optim opt",
        "--weight_decay": "wd decay",
        "--beta1": "adam_beta1",
        "--beta2": "adam_beta2",
        "--grad_clip": "max_norm max_grad_norm clip clip_grad grad_norm_clip gradient_clip_val clip_grad_norm "
                       "gradient_clipping",
        "--label_smoothing": "smoothing label_smoothing_factor",
        "--seed": "random_seed manual_seed",
        "--deterministic": "full_determinism deterministic_training",
        "--use_amp": "amp mixed_precision",
        "--compile": "torch_compile use_compile",
        "--compile_mode": "torch_compile_mode",
        "--fp8_head": "fp8",
        "--activation_checkpointing": "gradient_checkpointing grad_checkpointing checkpoint_activations",
        "--output_dir": "out_dir out outdir save_dir checkpoint_dir ckpt_dir log_dir run_dir save_path output",
        "--checkpoint_every_steps": "save_interval save_steps save_every checkpoint_every ckpt_interval save_freq",
        "--keep_checkpoints": "save_total_limit max_checkpoints keep_last",
        "--resume_from": "resume resume_from_checkpoint load_checkpoint resume_from_step ckpt checkpoint",
        "--init_from": "model_name_or_path initial_checkpoint_dir pretrained finetune_from from_pretrained "
                       "pretrained_model init_ckpt",
        "--reset_optimizer": "reset_optim",
        "--overwrite": "overwrite_output_dir force",
        "--eval_interval": "eval_every eval_steps val_interval val_check_interval validation_interval val_loss_every "
                           "evaluation_interval eval_freq",
        "--eval_batches": "eval_iters val_batches eval_max_iters val_max_steps val_iters",
        "--sample_interval": "sample_every generate_every",
        "--log_interval": "logging_steps log_every print_every log_steps log_every_n_steps",
        "--tensorboard": "tensorboard_log",
        "--tracker": "trackers report_to log_with logger logger_name track tracking",
        "--gpu_cost_per_hour": "cost_per_hour",
    },
    "pretokenize": {
        "--output_dir": "out_dir out output outdir data_dir save_dir output_prefix destination_path",
        "--vocab_size": "vocab n_vocab num_tokens",
        "--tokenizer_file": "tokenizer tokenizer_name tokenizer_path tokenizer_dir tokenizer_model vocab_file "
                            "tokenizer_name_or_path checkpoint_dir",
        "--val_fraction": "val_split val_ratio validation_split val_size test_size split val_frac val_fract "
                          "validation_split_percentage valid_fraction",
        "--text_field": "text_key json_key json_keys text_column field column text_column_name column_name",
        "--document_separator": "separator delimiter doc_separator sep split_on document_delimiter",
        "--num_workers": "workers num_proc nproc n_workers num_processes threads n_jobs jobs preprocessing_num_workers",
        "--overwrite": "force overwrite_cache",
        "--train_sample_bytes": "max_chars sample_bytes max_bytes",
        "--min_frequency": "min_freq",
        "--strict_utf8": "strict",
        "--dedup": "deduplicate",
    },
    "generate": {
        "--ckpt": "checkpoint checkpoint_dir out_dir model model_path ckpt_path model_name_or_path model_dir m source "
                  "output_dir checkpoint_path init_from resume_from",
        "--tokenizer_file": "tokenizer tokenizer_path tokenizer_name",
        "--prompt": "start text input_text prefix p",
        "--prompt_file": "file prompts start_file f",
        "--num_samples": "num_return_sequences n_samples samples nsamples num_sequences",
        "--max_new_tokens": "max_tokens n_predict num_tokens n length max_length new_tokens n_tokens max_gen_len",
        "--temperature": "temp t",
        "--top_k": "topk k",
        "--top_p": "topp",
        "--repetition_penalty": "repeat_penalty rep_pen",
        "--stop": "stop_token stop_sequence stop_words reverse_prompt",
        "--interactive": "chat i cnv",
        "--quantize": "quant load_in_8bit",
        "--batch_size": "bs",
    },
    "evaluate": {
        "--ckpt": "checkpoint checkpoint_dir out_dir model model_path ckpt_path model_name_or_path model_dir "
                  "pretrained output_dir init_from",
        "--tokenizer_file": "tokenizer tokenizer_path tokenizer_name",
        "--text": "file data text_file val_file input dataset data_dir val_bin_file bin_file f",
        "--batch_size": "per_device_eval_batch_size device_batch_size bs",
        "--json": "output output_path out results output_file",
        "--stride": "window_stride",
        "--document_separator": "separator delimiter",
        "--text_field": "text_key text_column json_key",
    },
    "export": {
        "--ckpt": "checkpoint checkpoint_dir out_dir model model_path model_name_or_path checkpoint_path init_from",
        "--output": "out outfile output_dir output_file output_path o",
        "--format": "outformat output_format to type",
        "--dtype": "outtype precision torch_dtype",
        "--overwrite": "force",
        "--tokenizer_file": "tokenizer tokenizer_path",
        "--push": "push_to_hub repo_id hub_model_id repo upload hub",
    },
    "plot": {
        "--output": "out output_file png save o picture",
        "--text": "ascii terminal",
    },
    "bench": {
        "--seq_length": "block_size max_seq_len seq_len",
        "--model_size": "model size",
        "--steps": "iters max_steps num_steps",
        "--warmup": "warmup_steps warmup_iters",
        "--data_dir": "data dataset",
        "--precision": "dtype amp_dtype",
        "--json": "output output_file",
    },
}

_ON_A_DEVICE = "Give --use_gpu for a GPU, --no-use_gpu for the CPU."
_ON_THE_CPU = "Give --no-use_gpu."
_PRECISION = "Give --use_amp with --amp_dtype bf16 or fp16, or --no-use_amp for fp32."
_BF16, _FP16 = "Give --use_amp --amp_dtype bf16.", "Give --use_amp --amp_dtype fp16."
_WARMUP_SHARE = "Give --warmup_steps, in steps."
_WANDB = "Give --tracker wandb."
_WANDB_NAMES = "Give --tracker wandb, and set WANDB_PROJECT or WANDB_NAME in the environment."
_TOKENS_A_STEP = "A step is --batch_size x --gradient_accumulation_steps sequences of --seq_length tokens."
_ON_ALL_GPUS = "One process trains on one device; CUDA_VISIBLE_DEVICES chooses it."
_OPTIMIZER = "AdamW has --beta1, --beta2 and --weight_decay; its epsilon is 1e-8."
_BOTH_ALWAYS = "Training and validation are always done: --eval_interval says how often."
_FOR_GENERATING = "Continue texts with: python generate.py --prompt TEXT"
_ALL_TOKENS = "Give --max_steps or --epochs; the plan says how many tokens that is."
_AT_THE_CORPUS = "Validation tokens are split off before: python pretokenize.py FILE --val_fraction X"
_MIXTURE = "Weights stand behind their folders: --data_dir a:0.7 b:0.3"
_THE_FILES = "Give the files without a flag: python pretokenize.py FILE"
_THE_DATASET = "Name it in the place of the files: python pretokenize.py hf://datasets/OWNER/NAME"

# For each command, or for "all": names of others for which no single flag stands, and what to do.
ANSWERS = {
    "all": {
        "device device_type accelerator cuda gpu use_cuda gpus": _ON_A_DEVICE,
        "cpu no_cuda use_cpu no_gpu": _ON_THE_CPU,
        "verbose v": "--debug shows the traceback of an error.",
        "config_file cfg conf": "Give --config FILE, flags in TOML.",
    },
    "train": {
        "dtype precision torch_dtype": _PRECISION,
        "bf16 bfloat16": _BF16,
        "fp16 float16 half": _FP16,
        "fp32 float32": "Give --no-use_amp.",
        "wandb wandb_log use_wandb": _WANDB,
        "wandb_project wandb_run_name wandb_name run": _WANDB_NAMES,
        "adam_epsilon eps": _OPTIMIZER,
        "use_mmap mmap memmap": "Give --preload mmap.",
        "in_memory dataloader_pin_memory": "Give --preload ram.",
        "val_split val_ratio validation_split val_fraction validation_split_percentage": _AT_THE_CORPUS,
        "weights data_weights dataset_weights train_data_weights mixture_weights mixing_weights sampling_weights "
        "data_ratios probabilities interleave_probs mix_ratio": _MIXTURE,
        "start prompt": _FOR_GENERATING,
        "max_new_tokens temperature top_k top_p": _FOR_GENERATING,
        "warmup_ratio warmup_fraction lr_warmup_fraction": _WARMUP_SHARE,
        "lr_decay_iters lr_decay_steps final_lr_frac": "The decay ends with the run, at --max_steps, in --min_lr.",
        "total_batch_size global_batch_size tokens_per_step batch_tokens": _TOKENS_A_STEP,
        "devices num_gpus n_gpus nproc_per_node num_nodes backend ddp fsdp deepspeed local_rank strategy": _ON_ALL_GPUS,
        "do_train do_eval eval_only eval_strategy evaluation_strategy do_predict": _BOTH_ALWAYS,
        "save_strategy always_save_checkpoint": "Give --checkpoint_interval in epochs, --checkpoint_every_steps or "
                                                "--checkpoint_every_minutes.",
        "load_best_model_at_end": "The best by validation always stays beside the last --keep_checkpoints.",
        "max_tokens train_tokens target_tokens target_param_data_ratio target_flops": _ALL_TOKENS,
        "flash flash_attention use_flash_attention attn_implementation": "The fastest attention there is, is taken.",
        "num_workers dataloader_num_workers": "No worker is needed; --preload says where the tokens live.",
        "max_time time_limit max_hours max_seconds time_budget": "Give --max_minutes.",
        "head_dim aspect_ratio": "The width of a head is --n_embd divided by --n_head.",
        "no_bias": "Give --no-bias.",
        "text text_file input corpus": "Make tokens of the text first: python pretokenize.py FILE",
        "push_to_hub hub_model_id": "After the run: python export.py --push OWNER/NAME",
    },
    "pretokenize": {
        "input input_file file text train_file data files input_dir source": _THE_FILES,
        "dataset dataset_name dataset_id hf_dataset dataset_path repo_id": _THE_DATASET,
        "append_eod eos add_eos eot append_eos": "An end-of-text id follows every document by itself.",
        "lowercase do_lower_case": "Text is never changed, so that every text can be decoded again.",
        "limit_alphabet algorithm model_type": "The tokenizer is a byte-level BPE; --tokenizer_file takes another one.",
    },
    "generate": {
        "dtype precision torch_dtype": _PRECISION,
        "bf16 bfloat16": _BF16,
        "fp16 float16 half": _FP16,
        "do_sample sample": "Text is sampled unless --temperature is 0.",
        "greedy": "Give --temperature 0.",
        "stream": "Text is shown as it is made.",
        "num_beams": "Text is sampled: --temperature, --top_k, --top_p.",
    },
    "evaluate": {
        "dtype precision torch_dtype": _PRECISION,
        "bf16 bfloat16": _BF16,
        "fp16 float16 half": _FP16,
        "tasks task benchmark": "Give --hellaswag FILE, --lambada FILE or --text FILE.",
    },
    "export": {
        "gguf": "Give --format gguf.",
        "huggingface hf safetensors": "Give --format huggingface.",
        "quantize quantization q8_0": "Give --dtype f16 or bf16; llama.cpp's own llama-quantize makes smaller ones.",
    },
    "plot": {
        "run runs log logdir log_dir output_dir out_dir metrics": "Give the folders without a flag: python plot.py OUT",
    },
    "bench": {},
}

# Values that other programs have for a flag of the same meaning.
VALUES = {
    "--lr_schedule": {
        "linear": "linear_with_warmup line polynomial linearlr d2z linear_decay",
        "cosine": "cosine_with_min_lr cosine_annealing cosineannealinglr cosine_decay cosine_with_warmup cosine_warmup",
        "wsd": "warmup_stable_decay trapezoidal trapezoid warmup_constant_decay stable wsd_linear",
        "constant": "constant_with_warmup none constant_warmup off",
    },
    "--model_size": {
        "gpt2_small": "small 124m 117m gpt2 gpt2_124m base s d12 gpt2_base gpt2small 125m",
        "gpt2_medium": "medium 350m 355m 345m gpt2_350m gpt2_355m m d24 gpt2medium",
        "gpt2_large": "large 774m 762m 760m gpt2_774m l d36 gpt2large",
        "gpt2_xl": "xl 1558m 1.5b 1542m 1.6b gpt2_1558m d48 gpt2xl 1.3b",
        "mini": "char gpt_mini gpt2_mini shakespeare baby xs d6",
        "tiny": "nano micro gpt_nano gpt2_tiny gpt_micro debug d4",
    },
    "--amp_dtype": {"bf16": "bfloat16 bf16_mixed bf16_true", "fp16": "float16 half 16 16_mixed f16"},
    "--precision": {"bf16": "bfloat16", "fp32": "float32 32"},
    "--preload": {"mmap": "memmap disk file", "ram": "cpu memory host", "gpu": "cuda vram device"},
    "--compile_mode": {"max-autotune-no-cudagraphs": "max_autotune autotune",
                       "reduce-overhead": "reduce_overhead cudagraphs cuda_graphs"},
    "--tracker": {"tensorboard": "tb tensorboardx", "wandb": "weights_and_biases w&b",
                  "none": "no off false null"},
    "--format": {"huggingface": "hf safetensors transformers folder", "gguf": "ggml llama.cpp llamacpp"},
    "--dtype": {"f32": "float32 fp32", "f16": "float16 fp16 half", "bf16": "bfloat16"},
    "--quantize": {"int8": "8bit q8_0 8 q8"},
}
FILES_OF_FLAGS = (".py", ".yaml", ".yml", ".json", ".toml", ".cfg", ".ini")
# What a word without a flag most likely is, for each command that takes none.
LONELY_WORDS = {
    "train": "A text is made into tokens first: python pretokenize.py FILE",
    "generate": "Give a text with --prompt, a checkpoint with --ckpt.",
    "evaluate": "Give texts with --text, a checkpoint with --ckpt.",
    "export": "Give a checkpoint with --ckpt, the file to write with --output.",
}


def explain_flag(command: str, name: str) -> str:
    """What a flag of another program is here, in a sentence; '' if its name is in no table."""
    plain = name.lstrip("-").lower().replace("-", "_").replace(".", "_")
    for word in (plain, plain.removeprefix("train_").removeprefix("eval_")):
        for flag, names in CALLED.get(command, {}).items():
            if word in names.split():
                return f"Here it is called {flag}."
        for table in (ANSWERS.get(command, {}), ANSWERS["all"]):
            for names, answer in table.items():
                if word in names.split():
                    return answer
    return ""


def explain_value(flag: str, value: str) -> str:
    """What a value of another program is here; '' if it is in no table."""
    plain = value.lower().replace("-", "_").rpartition("/")[2]
    for meant, names in VALUES.get(flag, {}).items():
        if plain in names.split() or plain == meant:
            return f"Did you mean {meant}?"
    return ""


def explain_word(command: str, word: str) -> str:
    """What to do about a word that belongs to no flag."""
    if word.lower() in ("true", "false"):
        return "A flag that is on or off takes no value: --NAME turns it on, --no-NAME off."
    if word.endswith(FILES_OF_FLAGS):
        return "Give flags in a file with --config FILE, in TOML."
    return LONELY_WORDS.get(command, "See --help.")
