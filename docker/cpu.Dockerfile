# SPDX-License-Identifier: Apache-2.0
# The CPU image: the reference, and what a person without an NPU runs. Every version is an argument that `make image`
# takes from afd/pins.toml; docs/images.md says how. Only syntax that BuildKit and Buildah both have.
#
#   base          the operating system's packages, the environment
#   wheels        the lock as wheels; AFD and the package that makes vLLM's second runner start on a CPU
#   installed     base and the wheels, compiled to bytecode
#   reference     with a compiler: the ring of the shared-memory transport, the built-in models, and what native vLLM
#                 answers; only these go on
#   verify        looks at all of it, and writes /etc/afd/image.json
#   runtime       installed, with its labels, user and entry point
#
# A site's certificates and pip settings come as secrets, which are in no layer.
ARG BASE

FROM ${BASE} AS base
ARG OS
ARG PYTHON
SHELL ["/bin/bash", "-eo", "pipefail", "-c"]
RUN --mount=type=bind,source=docker/steps,target=/steps \
    --mount=type=secret,id=certificates \
    bash /steps/with-site.sh bash /steps/packages.sh "${OS}" runtime \
    && bash /steps/check-python.sh "${PYTHON}"
# Compiling at run time would need a compiler, and helps nothing: both roles run without it.
ENV PATH=/opt/afd/bin:${PATH} \
    AFD_CACHE_DIR=/var/cache/afd \
    TORCHDYNAMO_DISABLE=1

FROM base AS wheels
ARG SOURCE_DATE_EPOCH
ARG TORCH
ARG TORCH_INDEX
COPY requirements/cpu-image.txt /src/cpu-image.txt
RUN --mount=type=bind,source=docker/steps,target=/steps \
    --mount=type=secret,id=certificates --mount=type=secret,id=pip \
    bash /steps/with-site.sh bash /steps/cpu-wheels.sh /src/cpu-image.txt /wheels /build
COPY pyproject.toml VERSION README.md LICENSE /src/afd/
COPY afd /src/afd/afd
COPY packages /src/afd/packages
RUN /build/bin/pip wheel --no-deps --no-index --no-build-isolation --wheel-dir /wheels \
    /src/afd /src/afd/packages/triton-cpu

FROM base AS installed
ARG SOURCE_DATE_EPOCH
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    --mount=type=bind,source=docker/steps,target=/steps \
    bash /steps/install.sh python3 /opt/afd /wheels

FROM installed AS reference
ARG OS
RUN --mount=type=bind,source=docker/steps,target=/steps \
    --mount=type=secret,id=certificates \
    bash /steps/with-site.sh bash /steps/packages.sh "${OS}" build
RUN --mount=type=bind,source=docker/steps,target=/steps \
    bash /steps/reference.sh /out

FROM installed AS verify
ARG OS
ARG SOC
ARG ARCH
ARG VERSION
ARG REVISION
ARG DIRTY
ARG CREATED
ARG BASE_NAME
ARG BASE_DIGEST
COPY requirements/cpu-image.txt /src/cpu-image.txt
RUN python -m afd.images.verify \
    --soc "${SOC}" --os "${OS}" --arch "${ARCH}" --version "${VERSION}" --revision "${REVISION}" --dirty "${DIRTY}" \
    --created "${CREATED}" --base-name "${BASE_NAME}" --base-digest "${BASE_DIGEST}" --lock /src/cpu-image.txt

FROM installed AS runtime
ARG USER_ID
ARG SOC
ARG OS
ARG ARCH
ARG TORCH
ARG VLLM_VERSION
ARG VLLM_COMMIT
ARG TITLE
ARG VENDOR
ARG LICENSES
ARG SOURCE_URL
ARG BASE_NAME
ARG BASE_DIGEST
ARG VERSION
ARG REVISION
ARG CREATED
COPY docker/afd-entrypoint.sh /usr/local/bin/afd-entrypoint.sh
RUN --mount=type=bind,source=docker/steps,target=/steps bash /steps/user.sh "${USER_ID}"
COPY --from=reference /out/cache /var/cache/afd
COPY --from=reference /out/golden.json /etc/afd/golden.json
COPY --from=verify /etc/afd/image.json /etc/afd/image.json
LABEL org.opencontainers.image.title="${TITLE}" \
    org.opencontainers.image.description="Attention and FFN roles of one MoE model on vLLM, on a CPU" \
    org.opencontainers.image.vendor="${VENDOR}" \
    org.opencontainers.image.licenses="${LICENSES}" \
    org.opencontainers.image.source="${SOURCE_URL}" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.created="${CREATED}" \
    org.opencontainers.image.base.name="${BASE_NAME}" \
    org.opencontainers.image.base.digest="${BASE_DIGEST}" \
    io.afd.soc="${SOC}" \
    io.afd.os="${OS}" \
    io.afd.arch="${ARCH}" \
    io.afd.torch="${TORCH}" \
    io.afd.vllm.version="${VLLM_VERSION}" \
    io.afd.vllm.revision="${VLLM_COMMIT}"
ENV HOME=/var/lib/afd
WORKDIR /var/lib/afd
USER ${USER_ID}
EXPOSE 8000 9300
HEALTHCHECK --interval=10s --timeout=5s --start-period=5m --retries=3 CMD ["/opt/afd/bin/afd-healthcheck"]
ENTRYPOINT ["/usr/local/bin/afd-entrypoint.sh"]
