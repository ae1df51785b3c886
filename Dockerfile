# The command nmt with its C kernels, for a CPU; docs/deploy.md shows how to run it.
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
COPY pyproject.toml setup.py MANIFEST.in README.md LICENSE /src/
COPY nmt /src/nmt
COPY recipes /src/recipes
RUN pip install --no-cache-dir ziglang
RUN pip wheel --no-deps --wheel-dir /wheels /src

FROM python:3.13-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
  "nmtkit[ctranslate2] @ file://$(echo /wheels/*.whl)" && rm -r /wheels
ENV NMT_MODEL=/model
USER nobody
ENTRYPOINT ["nmt"]
