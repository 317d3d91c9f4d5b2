# The program with the CUDA build of PyTorch, which brings CUDA's libraries along; the machine needs NVIDIA's driver and
# its container toolkit, nothing else. docs/platforms.md has the commands.
ARG BASE=python:3.13-slim
FROM ${BASE}

# What torch.compile needs: Triton compiles a launcher in C, and inductor C++ for the processor.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /app
COPY requirements.txt constraints.txt ./
RUN pip install --no-cache-dir -r requirements.txt -c constraints.txt

# What flags and files may ask for besides: Parquet, archives by Zstandard, TensorBoard.
ARG EXTRAS="pyarrow zstandard tensorboard"
RUN if [ -n "$EXTRAS" ]; then pip install --no-cache-dir $EXTRAS -c constraints.txt; fi

COPY . .

# /work is where the corpus, the tokens and the runs are, /cache what is worth keeping between runs: compiled kernels,
# measured sizes, downloads of the hub. Any user may write there, so that docker run --user works.
RUN useradd --uid 1000 --create-home trainer \
    && mkdir -p /work /cache \
    && chmod 1777 /work /cache
ENV XDG_CACHE_HOME=/cache HF_HOME=/cache/huggingface \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
VOLUME ["/cache"]
USER 1000
WORKDIR /work

# docker run IMAGE train.py --check: exec lets docker stop's signal reach the run, which then saves.
ENTRYPOINT ["/bin/sh", "-c", "exec python \"/app/$0\" \"$@\""]
CMD ["train.py", "--check"]
