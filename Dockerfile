# A server of draftwise.
#   docker build -t draftwise .                                             (CPU)
#   docker build -t draftwise --build-arg BASE=nvidia/cuda:13.0.1-runtime-ubuntu24.04 \
#     --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .      (CUDA)
#   docker run -p 8000:8000 -e DRAFTWISE_API_KEY=secret -v state:/state draftwise
ARG BASE=python:3.12-slim
FROM ${BASE}
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

# hadolint ignore=DL3008
RUN if ! python3 -m venv --help >/dev/null 2>&1; then \
        apt-get update && apt-get install -y --no-install-recommends python3 python3-venv \
        && rm -rf /var/lib/apt/lists/*; \
    fi
RUN python3 -m venv /opt/draftwise
# hadolint ignore=DL3064
ENV PATH=/opt/draftwise/bin:$PATH PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
COPY packages ./packages
# torch comes from its own index, so that the CPU image has no CUDA in it
RUN grep '^torch==' constraints.txt > /tmp/torch.txt \
    && pip install --no-cache-dir --index-url ${TORCH_INDEX} -r /tmp/torch.txt \
    && grep -v '^torch==' constraints.txt > /tmp/others.txt \
    && pip install --no-cache-dir -c /tmp/others.txt '.[serve]' ./packages/zoo \
    && useradd --create-home --uid 10001 draftwise && mkdir /state && chown draftwise /state
USER 10001
EXPOSE 8000
HEALTHCHECK --start-period=120s CMD ["python", "-c", \
    "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=3)"]
ENTRYPOINT ["draftwise", "serve", "--host", "0.0.0.0", "--state", "/state/learnt.json"]
