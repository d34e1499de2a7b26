# An image that runs the default job:
#   docker build -t leakmeter .
#   docker run --rm -v "$PWD/runs:/app/runs" leakmeter
# and the tests:
#   docker build -t leakmeter-tests --target tests . && docker run --rm leakmeter-tests
FROM python:3.11-slim AS base
ENV PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1 FLWR_TELEMETRY_ENABLED=0
WORKDIR /app
# Name PyTorch's index of CPU builds for a small image; empty takes the default one, with CUDA.
ARG TORCH_INDEX=
RUN pip install torch torchvision ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
COPY . .
RUN pip install -e .

FROM base AS tests
RUN pip install -e ".[dev]"
CMD ["pytest"]

FROM base AS run
CMD ["python", "run_sim.py"]
