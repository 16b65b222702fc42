# SPDX-License-Identifier: Apache-2.0
# The image of every NPU SOC. What differs between them, and every version, is an argument that `make image` takes from
# afd/pins.toml; docs/images.md says how. Only syntax that BuildKit and Buildah both have.
#
#   base          CANN's image, what the operating system needs besides, the environment
#   tools         compilers; nothing of this stage is in the image
#   wheels        the lock as wheels; vLLM, vLLM-Ascend and AFD built from source
#   operators     a2e and e2a from their source, CAM from a person's files; empty where there are none
#   installed     base and the wheels, compiled to bytecode
#   verify        looks at all of it, and writes /etc/afd/image.json
#   runtime       installed, with its labels, user and entry point
#
# Named contexts: vllm, vllm-ascend, operators, cam (directories; scripts/image_sources.py). A site's certificates and
# pip settings come as secrets, which are in no layer.
ARG BASE

FROM ${BASE} AS base
ARG OS
ARG SOC_VERSION
ARG OPP_PATHS
ARG LIBRARY_PATHS
SHELL ["/bin/bash", "-eo", "pipefail", "-c"]
RUN --mount=type=bind,source=docker/steps,target=/steps \
    --mount=type=secret,id=certificates \
    bash /steps/with-site.sh bash /steps/packages.sh "${OS}" runtime
ENV PATH=/opt/afd/bin:${PATH} \
    LD_LIBRARY_PATH=${LIBRARY_PATHS}${LD_LIBRARY_PATH:+:${LD_LIBRARY_PATH}} \
    ASCEND_CUSTOM_OPP_PATH=${OPP_PATHS}${ASCEND_CUSTOM_OPP_PATH:+:${ASCEND_CUSTOM_OPP_PATH}} \
    SOC_VERSION=${SOC_VERSION} \
    TASK_QUEUE_ENABLE=1 \
    OMP_NUM_THREADS=1 \
    VLLM_WORKER_MULTIPROC_METHOD=spawn

FROM base AS tools
ARG OS
RUN --mount=type=bind,source=docker/steps,target=/steps \
    --mount=type=secret,id=certificates \
    bash /steps/with-site.sh bash /steps/packages.sh "${OS}" build

FROM tools AS wheels
ARG ARCH
ARG SOURCE_DATE_EPOCH
ARG TORCH
ARG TORCH_INDEX
ARG TORCH_SHA256
ARG TRITON_ASCEND
ARG TRITON_ASCEND_INDEX
ARG TRITON_ASCEND_SHA256
ARG VLLM_VERSION
ARG VLLM_ASCEND_VERSION
COPY requirements/npu.txt /src/npu.txt
RUN --mount=type=bind,source=docker/steps,target=/steps \
    --mount=type=secret,id=certificates --mount=type=secret,id=pip \
    bash /steps/with-site.sh bash /steps/locked-wheels.sh /src/npu.txt /wheels /build
COPY --from=vllm . /src/vllm
RUN VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE="${VLLM_VERSION}" \
    /build/bin/pip wheel --no-deps --no-index --no-build-isolation --wheel-dir /wheels /src/vllm
COPY --from=vllm-ascend . /src/vllm-ascend
RUN --mount=type=bind,source=docker/steps,target=/steps \
    COMPILE_CUSTOM_KERNELS=1 VLLM_BATCH_INVARIANT=0 SETUPTOOLS_SCM_PRETEND_VERSION="${VLLM_ASCEND_VERSION}" \
    bash /steps/with-cann.sh \
    /build/bin/pip wheel --no-deps --no-index --no-build-isolation --wheel-dir /wheels /src/vllm-ascend
COPY pyproject.toml VERSION README.md LICENSE /src/afd/
COPY afd /src/afd/afd
RUN /build/bin/pip wheel --no-deps --no-index --no-build-isolation --wheel-dir /wheels /src/afd

FROM wheels AS operators
ARG A2E
ARG CAM
COPY --from=operators-source . /src/operators
COPY --from=cam . /src/cam
RUN --mount=type=bind,source=docker/steps,target=/steps \
    AFD_BUILD_ASCEND_OPS=1 bash /steps/with-cann.sh bash /steps/operators.sh "${A2E}" "${CAM}" /out

FROM base AS installed
ARG SOURCE_DATE_EPOCH
RUN --mount=type=bind,from=wheels,source=/wheels,target=/wheels \
    --mount=type=bind,from=operators,source=/out,target=/out \
    --mount=type=bind,source=docker/steps,target=/steps \
    bash /steps/install.sh python3 /opt/afd /wheels /out/wheels \
    && cp -a /out/root/. /

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
ARG A2E
ARG CAM
COPY requirements/npu.txt /src/
RUN --mount=type=bind,source=docker/steps,target=/steps \
    bash /steps/with-cann.sh --without-driver \
    python -m afd.images.verify \
    --soc "${SOC}" --os "${OS}" --arch "${ARCH}" --version "${VERSION}" --revision "${REVISION}" --dirty "${DIRTY}" \
    --created "${CREATED}" --base-name "${BASE_NAME}" --base-digest "${BASE_DIGEST}" --a2e "${A2E}" --cam "${CAM}" \
    --lock /src/npu.txt

FROM installed AS runtime
ARG USER_ID
ARG SOC
ARG SOC_VERSION
ARG OS
ARG ARCH
ARG CANN
ARG TORCH
ARG TORCH_NPU
ARG TRITON_ASCEND
ARG VLLM_VERSION
ARG VLLM_COMMIT
ARG VLLM_ASCEND_COMMIT
ARG OPERATORS_COMMIT
ARG A2E
ARG CAM
ARG DRIVER_MIN
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
COPY --from=verify /etc/afd /etc/afd
LABEL org.opencontainers.image.title="${TITLE}" \
    org.opencontainers.image.description="Attention and FFN roles of one MoE model on vLLM and vLLM-Ascend" \
    org.opencontainers.image.vendor="${VENDOR}" \
    org.opencontainers.image.licenses="${LICENSES}" \
    org.opencontainers.image.source="${SOURCE_URL}" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.created="${CREATED}" \
    org.opencontainers.image.base.name="${BASE_NAME}" \
    org.opencontainers.image.base.digest="${BASE_DIGEST}" \
    io.afd.soc="${SOC}" \
    io.afd.soc-version="${SOC_VERSION}" \
    io.afd.os="${OS}" \
    io.afd.arch="${ARCH}" \
    io.afd.cann="${CANN}" \
    io.afd.torch="${TORCH}" \
    io.afd.torch-npu="${TORCH_NPU}" \
    io.afd.triton-ascend="${TRITON_ASCEND}" \
    io.afd.vllm.version="${VLLM_VERSION}" \
    io.afd.vllm.revision="${VLLM_COMMIT}" \
    io.afd.vllm-ascend.revision="${VLLM_ASCEND_COMMIT}" \
    io.afd.operators.revision="${OPERATORS_COMMIT}" \
    io.afd.operators.a2e="${A2E}" \
    io.afd.operators.cam="${CAM}" \
    io.afd.driver-min="${DRIVER_MIN}"
ENV HOME=/var/lib/afd
WORKDIR /var/lib/afd
USER ${USER_ID}
EXPOSE 8000 9300
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 CMD ["/opt/afd/bin/afd-healthcheck"]
ENTRYPOINT ["/usr/local/bin/afd-entrypoint.sh"]
