# SPDX-License-Identifier: Apache-2.0
# Written by scripts/render_images.py from afd/pins.toml and docker/digests.json. Do not edit.
# Run `make sources SOC=...` first; docs/images.md says how to use this file.

variable "VERSION" { default = "" }
variable "REVISION" { default = "" }
variable "DIRTY" { default = "" }
variable "CREATED" { default = "" }
variable "SOURCE_DATE_EPOCH" { default = "" }
variable "TORCH_INDEX" { default = "" }
variable "SOURCE_URL" { default = "" }
variable "REGISTRY" { default = "" }

target "cpu-debian12-amd64" {
  dockerfile = "docker/cpu.Dockerfile"
  context    = "."
  platforms  = ["linux/amd64"]
  tags       = ["${REGISTRY == "" ? "" : "${REGISTRY}/"}afd:${VERSION}-cpu-debian12-amd64"]
  args = {
    "BASE"              = "docker.io/library/debian:12-slim"
    "BASE_NAME"         = "docker.io/library/debian:12-slim"
    "BASE_DIGEST"       = ""
    "SOC"               = "cpu"
    "OS"                = "debian12"
    "ARCH"              = "amd64"
    "VERSION"           = "${VERSION}"
    "REVISION"          = "${REVISION}"
    "DIRTY"             = "${DIRTY}"
    "CREATED"           = "${CREATED}"
    "SOURCE_DATE_EPOCH" = "${SOURCE_DATE_EPOCH}"
    "VLLM_VERSION"      = "0.26.0"
    "VLLM_COMMIT"       = "568afb3a13806beb53bb2e6bd518269357b237c0"
    "TORCH_INDEX"       = "${TORCH_INDEX}"
    "USER_ID"           = "1000"
    "TITLE"             = "vLLM-AFD for CPU (the reference)"
    "VENDOR"            = "the AFD project"
    "SOURCE_URL"        = "${SOURCE_URL}"
    "LICENSES"          = "Apache-2.0"
    "PYTHON"            = "3.11"
    "TORCH"             = "2.11.0"
  }
}

target "cpu-debian12-arm64" {
  dockerfile = "docker/cpu.Dockerfile"
  context    = "."
  platforms  = ["linux/arm64"]
  tags       = ["${REGISTRY == "" ? "" : "${REGISTRY}/"}afd:${VERSION}-cpu-debian12-arm64"]
  args = {
    "BASE"              = "docker.io/library/debian:12-slim"
    "BASE_NAME"         = "docker.io/library/debian:12-slim"
    "BASE_DIGEST"       = ""
    "SOC"               = "cpu"
    "OS"                = "debian12"
    "ARCH"              = "arm64"
    "VERSION"           = "${VERSION}"
    "REVISION"          = "${REVISION}"
    "DIRTY"             = "${DIRTY}"
    "CREATED"           = "${CREATED}"
    "SOURCE_DATE_EPOCH" = "${SOURCE_DATE_EPOCH}"
    "VLLM_VERSION"      = "0.26.0"
    "VLLM_COMMIT"       = "568afb3a13806beb53bb2e6bd518269357b237c0"
    "TORCH_INDEX"       = "${TORCH_INDEX}"
    "USER_ID"           = "1000"
    "TITLE"             = "vLLM-AFD for CPU (the reference)"
    "VENDOR"            = "the AFD project"
    "SOURCE_URL"        = "${SOURCE_URL}"
    "LICENSES"          = "Apache-2.0"
    "PYTHON"            = "3.11"
    "TORCH"             = "2.11.0"
  }
}

target "a2-ubuntu22_04-arm64" {
  dockerfile = "docker/npu.Dockerfile"
  context    = "."
  platforms  = ["linux/arm64"]
  tags       = ["${REGISTRY == "" ? "" : "${REGISTRY}/"}afd:${VERSION}-a2-ubuntu22.04-arm64"]
  contexts = {
    "vllm"             = "build/sources/vllm-568afb3a13806beb53bb2e6bd518269357b237c0"
    "vllm-ascend"      = "build/sources/vllm-ascend-80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "operators-source" = "build/sources/nothing"
    "cam"              = "build/sources/nothing"
  }
  args = {
    "BASE"                 = "quay.io/ascend/cann:9.0.1-910b-ubuntu22.04-py3.12"
    "BASE_NAME"            = "quay.io/ascend/cann:9.0.1-910b-ubuntu22.04-py3.12"
    "BASE_DIGEST"          = ""
    "SOC"                  = "a2"
    "OS"                   = "ubuntu22.04"
    "ARCH"                 = "arm64"
    "VERSION"              = "${VERSION}"
    "REVISION"             = "${REVISION}"
    "DIRTY"                = "${DIRTY}"
    "CREATED"              = "${CREATED}"
    "SOURCE_DATE_EPOCH"    = "${SOURCE_DATE_EPOCH}"
    "VLLM_VERSION"         = "0.26.0"
    "VLLM_COMMIT"          = "568afb3a13806beb53bb2e6bd518269357b237c0"
    "TORCH_INDEX"          = "${TORCH_INDEX}"
    "USER_ID"              = "1000"
    "TITLE"                = "vLLM-AFD for Atlas A2 (Ascend 910B)"
    "VENDOR"               = "the AFD project"
    "SOURCE_URL"           = "${SOURCE_URL}"
    "LICENSES"             = "Apache-2.0 AND LicenseRef-CANN"
    "SOC_VERSION"          = "ascend910b1"
    "CANN"                 = "9.0.1"
    "TORCH"                = "2.10.0"
    "TORCH_NPU"            = "2.10.0.post2"
    "TRITON_ASCEND"        = "3.2.1"
    "TRITON_ASCEND_INDEX"  = "https://mirrors.huaweicloud.com/ascend/repos/pypi"
    "TRITON_ASCEND_SHA256" = ""
    "TORCH_SHA256"         = ""
    "VLLM_ASCEND_COMMIT"   = "80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "VLLM_ASCEND_VERSION"  = "0.26.0.dev0+g80d8c194f"
    "OPERATORS_COMMIT"     = "2e4378f2d478313992e9a1b850c61b1e888a1145"
    "A2E"                  = "none"
    "CAM"                  = "none"
    "DRIVER_MIN"           = "unverified"
    "OPP_PATHS"            = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer"
    "LIBRARY_PATHS"        = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer/op_api/lib:/usr/local/lib"
  }
}

target "a2-ubuntu22_04-amd64" {
  dockerfile = "docker/npu.Dockerfile"
  context    = "."
  platforms  = ["linux/amd64"]
  tags       = ["${REGISTRY == "" ? "" : "${REGISTRY}/"}afd:${VERSION}-a2-ubuntu22.04-amd64"]
  contexts = {
    "vllm"             = "build/sources/vllm-568afb3a13806beb53bb2e6bd518269357b237c0"
    "vllm-ascend"      = "build/sources/vllm-ascend-80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "operators-source" = "build/sources/nothing"
    "cam"              = "build/sources/nothing"
  }
  args = {
    "BASE"                 = "quay.io/ascend/cann:9.0.1-910b-ubuntu22.04-py3.12"
    "BASE_NAME"            = "quay.io/ascend/cann:9.0.1-910b-ubuntu22.04-py3.12"
    "BASE_DIGEST"          = ""
    "SOC"                  = "a2"
    "OS"                   = "ubuntu22.04"
    "ARCH"                 = "amd64"
    "VERSION"              = "${VERSION}"
    "REVISION"             = "${REVISION}"
    "DIRTY"                = "${DIRTY}"
    "CREATED"              = "${CREATED}"
    "SOURCE_DATE_EPOCH"    = "${SOURCE_DATE_EPOCH}"
    "VLLM_VERSION"         = "0.26.0"
    "VLLM_COMMIT"          = "568afb3a13806beb53bb2e6bd518269357b237c0"
    "TORCH_INDEX"          = "${TORCH_INDEX}"
    "USER_ID"              = "1000"
    "TITLE"                = "vLLM-AFD for Atlas A2 (Ascend 910B)"
    "VENDOR"               = "the AFD project"
    "SOURCE_URL"           = "${SOURCE_URL}"
    "LICENSES"             = "Apache-2.0 AND LicenseRef-CANN"
    "SOC_VERSION"          = "ascend910b1"
    "CANN"                 = "9.0.1"
    "TORCH"                = "2.10.0"
    "TORCH_NPU"            = "2.10.0.post2"
    "TRITON_ASCEND"        = "3.2.1"
    "TRITON_ASCEND_INDEX"  = "https://mirrors.huaweicloud.com/ascend/repos/pypi"
    "TRITON_ASCEND_SHA256" = ""
    "TORCH_SHA256"         = ""
    "VLLM_ASCEND_COMMIT"   = "80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "VLLM_ASCEND_VERSION"  = "0.26.0.dev0+g80d8c194f"
    "OPERATORS_COMMIT"     = "2e4378f2d478313992e9a1b850c61b1e888a1145"
    "A2E"                  = "none"
    "CAM"                  = "none"
    "DRIVER_MIN"           = "unverified"
    "OPP_PATHS"            = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer"
    "LIBRARY_PATHS"        = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer/op_api/lib:/usr/local/lib"
  }
}

target "a2-openeuler24_03-arm64" {
  dockerfile = "docker/npu.Dockerfile"
  context    = "."
  platforms  = ["linux/arm64"]
  tags       = ["${REGISTRY == "" ? "" : "${REGISTRY}/"}afd:${VERSION}-a2-openeuler24.03-arm64"]
  contexts = {
    "vllm"             = "build/sources/vllm-568afb3a13806beb53bb2e6bd518269357b237c0"
    "vllm-ascend"      = "build/sources/vllm-ascend-80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "operators-source" = "build/sources/nothing"
    "cam"              = "build/sources/nothing"
  }
  args = {
    "BASE"                 = "quay.io/ascend/cann:9.0.1-910b-openeuler24.03-py3.12"
    "BASE_NAME"            = "quay.io/ascend/cann:9.0.1-910b-openeuler24.03-py3.12"
    "BASE_DIGEST"          = ""
    "SOC"                  = "a2"
    "OS"                   = "openeuler24.03"
    "ARCH"                 = "arm64"
    "VERSION"              = "${VERSION}"
    "REVISION"             = "${REVISION}"
    "DIRTY"                = "${DIRTY}"
    "CREATED"              = "${CREATED}"
    "SOURCE_DATE_EPOCH"    = "${SOURCE_DATE_EPOCH}"
    "VLLM_VERSION"         = "0.26.0"
    "VLLM_COMMIT"          = "568afb3a13806beb53bb2e6bd518269357b237c0"
    "TORCH_INDEX"          = "${TORCH_INDEX}"
    "USER_ID"              = "1000"
    "TITLE"                = "vLLM-AFD for Atlas A2 (Ascend 910B)"
    "VENDOR"               = "the AFD project"
    "SOURCE_URL"           = "${SOURCE_URL}"
    "LICENSES"             = "Apache-2.0 AND LicenseRef-CANN"
    "SOC_VERSION"          = "ascend910b1"
    "CANN"                 = "9.0.1"
    "TORCH"                = "2.10.0"
    "TORCH_NPU"            = "2.10.0.post2"
    "TRITON_ASCEND"        = "3.2.1"
    "TRITON_ASCEND_INDEX"  = "https://mirrors.huaweicloud.com/ascend/repos/pypi"
    "TRITON_ASCEND_SHA256" = ""
    "TORCH_SHA256"         = ""
    "VLLM_ASCEND_COMMIT"   = "80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "VLLM_ASCEND_VERSION"  = "0.26.0.dev0+g80d8c194f"
    "OPERATORS_COMMIT"     = "2e4378f2d478313992e9a1b850c61b1e888a1145"
    "A2E"                  = "none"
    "CAM"                  = "none"
    "DRIVER_MIN"           = "unverified"
    "OPP_PATHS"            = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer"
    "LIBRARY_PATHS"        = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer/op_api/lib:/usr/local/lib"
  }
}

target "a2-openeuler24_03-amd64" {
  dockerfile = "docker/npu.Dockerfile"
  context    = "."
  platforms  = ["linux/amd64"]
  tags       = ["${REGISTRY == "" ? "" : "${REGISTRY}/"}afd:${VERSION}-a2-openeuler24.03-amd64"]
  contexts = {
    "vllm"             = "build/sources/vllm-568afb3a13806beb53bb2e6bd518269357b237c0"
    "vllm-ascend"      = "build/sources/vllm-ascend-80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "operators-source" = "build/sources/nothing"
    "cam"              = "build/sources/nothing"
  }
  args = {
    "BASE"                 = "quay.io/ascend/cann:9.0.1-910b-openeuler24.03-py3.12"
    "BASE_NAME"            = "quay.io/ascend/cann:9.0.1-910b-openeuler24.03-py3.12"
    "BASE_DIGEST"          = ""
    "SOC"                  = "a2"
    "OS"                   = "openeuler24.03"
    "ARCH"                 = "amd64"
    "VERSION"              = "${VERSION}"
    "REVISION"             = "${REVISION}"
    "DIRTY"                = "${DIRTY}"
    "CREATED"              = "${CREATED}"
    "SOURCE_DATE_EPOCH"    = "${SOURCE_DATE_EPOCH}"
    "VLLM_VERSION"         = "0.26.0"
    "VLLM_COMMIT"          = "568afb3a13806beb53bb2e6bd518269357b237c0"
    "TORCH_INDEX"          = "${TORCH_INDEX}"
    "USER_ID"              = "1000"
    "TITLE"                = "vLLM-AFD for Atlas A2 (Ascend 910B)"
    "VENDOR"               = "the AFD project"
    "SOURCE_URL"           = "${SOURCE_URL}"
    "LICENSES"             = "Apache-2.0 AND LicenseRef-CANN"
    "SOC_VERSION"          = "ascend910b1"
    "CANN"                 = "9.0.1"
    "TORCH"                = "2.10.0"
    "TORCH_NPU"            = "2.10.0.post2"
    "TRITON_ASCEND"        = "3.2.1"
    "TRITON_ASCEND_INDEX"  = "https://mirrors.huaweicloud.com/ascend/repos/pypi"
    "TRITON_ASCEND_SHA256" = ""
    "TORCH_SHA256"         = ""
    "VLLM_ASCEND_COMMIT"   = "80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "VLLM_ASCEND_VERSION"  = "0.26.0.dev0+g80d8c194f"
    "OPERATORS_COMMIT"     = "2e4378f2d478313992e9a1b850c61b1e888a1145"
    "A2E"                  = "none"
    "CAM"                  = "none"
    "DRIVER_MIN"           = "unverified"
    "OPP_PATHS"            = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer"
    "LIBRARY_PATHS"        = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer/op_api/lib:/usr/local/lib"
  }
}

target "a3-ubuntu22_04-arm64" {
  dockerfile = "docker/npu.Dockerfile"
  context    = "."
  platforms  = ["linux/arm64"]
  tags       = ["${REGISTRY == "" ? "" : "${REGISTRY}/"}afd:${VERSION}-a3-ubuntu22.04-arm64"]
  contexts = {
    "vllm"             = "build/sources/vllm-568afb3a13806beb53bb2e6bd518269357b237c0"
    "vllm-ascend"      = "build/sources/vllm-ascend-80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "operators-source" = "build/sources/operators-2e4378f2d478313992e9a1b850c61b1e888a1145"
    "cam"              = "build/sources/nothing"
  }
  args = {
    "BASE"                 = "quay.io/ascend/cann:9.0.1-a3-ubuntu22.04-py3.12"
    "BASE_NAME"            = "quay.io/ascend/cann:9.0.1-a3-ubuntu22.04-py3.12"
    "BASE_DIGEST"          = ""
    "SOC"                  = "a3"
    "OS"                   = "ubuntu22.04"
    "ARCH"                 = "arm64"
    "VERSION"              = "${VERSION}"
    "REVISION"             = "${REVISION}"
    "DIRTY"                = "${DIRTY}"
    "CREATED"              = "${CREATED}"
    "SOURCE_DATE_EPOCH"    = "${SOURCE_DATE_EPOCH}"
    "VLLM_VERSION"         = "0.26.0"
    "VLLM_COMMIT"          = "568afb3a13806beb53bb2e6bd518269357b237c0"
    "TORCH_INDEX"          = "${TORCH_INDEX}"
    "USER_ID"              = "1000"
    "TITLE"                = "vLLM-AFD for Atlas A3 (Ascend 910C)"
    "VENDOR"               = "the AFD project"
    "SOURCE_URL"           = "${SOURCE_URL}"
    "LICENSES"             = "Apache-2.0 AND LicenseRef-CANN"
    "SOC_VERSION"          = "ascend910_9391"
    "CANN"                 = "9.0.1"
    "TORCH"                = "2.10.0"
    "TORCH_NPU"            = "2.10.0.post2"
    "TRITON_ASCEND"        = "3.2.1"
    "TRITON_ASCEND_INDEX"  = "https://mirrors.huaweicloud.com/ascend/repos/pypi"
    "TRITON_ASCEND_SHA256" = ""
    "TORCH_SHA256"         = ""
    "VLLM_ASCEND_COMMIT"   = "80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "VLLM_ASCEND_VERSION"  = "0.26.0.dev0+g80d8c194f"
    "OPERATORS_COMMIT"     = "2e4378f2d478313992e9a1b850c61b1e888a1145"
    "A2E"                  = "built"
    "CAM"                  = "none"
    "DRIVER_MIN"           = "unverified"
    "OPP_PATHS"            = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer:/opt/afd/operators/vendors/afd-plugin"
    "LIBRARY_PATHS"        = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer/op_api/lib:/opt/afd/operators/vendors/afd-plugin/op_api/lib:/usr/local/lib"
  }
}

target "a3-ubuntu22_04-amd64" {
  dockerfile = "docker/npu.Dockerfile"
  context    = "."
  platforms  = ["linux/amd64"]
  tags       = ["${REGISTRY == "" ? "" : "${REGISTRY}/"}afd:${VERSION}-a3-ubuntu22.04-amd64"]
  contexts = {
    "vllm"             = "build/sources/vllm-568afb3a13806beb53bb2e6bd518269357b237c0"
    "vllm-ascend"      = "build/sources/vllm-ascend-80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "operators-source" = "build/sources/operators-2e4378f2d478313992e9a1b850c61b1e888a1145"
    "cam"              = "build/sources/nothing"
  }
  args = {
    "BASE"                 = "quay.io/ascend/cann:9.0.1-a3-ubuntu22.04-py3.12"
    "BASE_NAME"            = "quay.io/ascend/cann:9.0.1-a3-ubuntu22.04-py3.12"
    "BASE_DIGEST"          = ""
    "SOC"                  = "a3"
    "OS"                   = "ubuntu22.04"
    "ARCH"                 = "amd64"
    "VERSION"              = "${VERSION}"
    "REVISION"             = "${REVISION}"
    "DIRTY"                = "${DIRTY}"
    "CREATED"              = "${CREATED}"
    "SOURCE_DATE_EPOCH"    = "${SOURCE_DATE_EPOCH}"
    "VLLM_VERSION"         = "0.26.0"
    "VLLM_COMMIT"          = "568afb3a13806beb53bb2e6bd518269357b237c0"
    "TORCH_INDEX"          = "${TORCH_INDEX}"
    "USER_ID"              = "1000"
    "TITLE"                = "vLLM-AFD for Atlas A3 (Ascend 910C)"
    "VENDOR"               = "the AFD project"
    "SOURCE_URL"           = "${SOURCE_URL}"
    "LICENSES"             = "Apache-2.0 AND LicenseRef-CANN"
    "SOC_VERSION"          = "ascend910_9391"
    "CANN"                 = "9.0.1"
    "TORCH"                = "2.10.0"
    "TORCH_NPU"            = "2.10.0.post2"
    "TRITON_ASCEND"        = "3.2.1"
    "TRITON_ASCEND_INDEX"  = "https://mirrors.huaweicloud.com/ascend/repos/pypi"
    "TRITON_ASCEND_SHA256" = ""
    "TORCH_SHA256"         = ""
    "VLLM_ASCEND_COMMIT"   = "80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "VLLM_ASCEND_VERSION"  = "0.26.0.dev0+g80d8c194f"
    "OPERATORS_COMMIT"     = "2e4378f2d478313992e9a1b850c61b1e888a1145"
    "A2E"                  = "built"
    "CAM"                  = "none"
    "DRIVER_MIN"           = "unverified"
    "OPP_PATHS"            = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer:/opt/afd/operators/vendors/afd-plugin"
    "LIBRARY_PATHS"        = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer/op_api/lib:/opt/afd/operators/vendors/afd-plugin/op_api/lib:/usr/local/lib"
  }
}

target "a3-openeuler24_03-arm64" {
  dockerfile = "docker/npu.Dockerfile"
  context    = "."
  platforms  = ["linux/arm64"]
  tags       = ["${REGISTRY == "" ? "" : "${REGISTRY}/"}afd:${VERSION}-a3-openeuler24.03-arm64"]
  contexts = {
    "vllm"             = "build/sources/vllm-568afb3a13806beb53bb2e6bd518269357b237c0"
    "vllm-ascend"      = "build/sources/vllm-ascend-80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "operators-source" = "build/sources/operators-2e4378f2d478313992e9a1b850c61b1e888a1145"
    "cam"              = "build/sources/nothing"
  }
  args = {
    "BASE"                 = "quay.io/ascend/cann:9.0.1-a3-openeuler24.03-py3.12"
    "BASE_NAME"            = "quay.io/ascend/cann:9.0.1-a3-openeuler24.03-py3.12"
    "BASE_DIGEST"          = ""
    "SOC"                  = "a3"
    "OS"                   = "openeuler24.03"
    "ARCH"                 = "arm64"
    "VERSION"              = "${VERSION}"
    "REVISION"             = "${REVISION}"
    "DIRTY"                = "${DIRTY}"
    "CREATED"              = "${CREATED}"
    "SOURCE_DATE_EPOCH"    = "${SOURCE_DATE_EPOCH}"
    "VLLM_VERSION"         = "0.26.0"
    "VLLM_COMMIT"          = "568afb3a13806beb53bb2e6bd518269357b237c0"
    "TORCH_INDEX"          = "${TORCH_INDEX}"
    "USER_ID"              = "1000"
    "TITLE"                = "vLLM-AFD for Atlas A3 (Ascend 910C)"
    "VENDOR"               = "the AFD project"
    "SOURCE_URL"           = "${SOURCE_URL}"
    "LICENSES"             = "Apache-2.0 AND LicenseRef-CANN"
    "SOC_VERSION"          = "ascend910_9391"
    "CANN"                 = "9.0.1"
    "TORCH"                = "2.10.0"
    "TORCH_NPU"            = "2.10.0.post2"
    "TRITON_ASCEND"        = "3.2.1"
    "TRITON_ASCEND_INDEX"  = "https://mirrors.huaweicloud.com/ascend/repos/pypi"
    "TRITON_ASCEND_SHA256" = ""
    "TORCH_SHA256"         = ""
    "VLLM_ASCEND_COMMIT"   = "80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "VLLM_ASCEND_VERSION"  = "0.26.0.dev0+g80d8c194f"
    "OPERATORS_COMMIT"     = "2e4378f2d478313992e9a1b850c61b1e888a1145"
    "A2E"                  = "built"
    "CAM"                  = "none"
    "DRIVER_MIN"           = "unverified"
    "OPP_PATHS"            = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer:/opt/afd/operators/vendors/afd-plugin"
    "LIBRARY_PATHS"        = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer/op_api/lib:/opt/afd/operators/vendors/afd-plugin/op_api/lib:/usr/local/lib"
  }
}

target "a3-openeuler24_03-amd64" {
  dockerfile = "docker/npu.Dockerfile"
  context    = "."
  platforms  = ["linux/amd64"]
  tags       = ["${REGISTRY == "" ? "" : "${REGISTRY}/"}afd:${VERSION}-a3-openeuler24.03-amd64"]
  contexts = {
    "vllm"             = "build/sources/vllm-568afb3a13806beb53bb2e6bd518269357b237c0"
    "vllm-ascend"      = "build/sources/vllm-ascend-80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "operators-source" = "build/sources/operators-2e4378f2d478313992e9a1b850c61b1e888a1145"
    "cam"              = "build/sources/nothing"
  }
  args = {
    "BASE"                 = "quay.io/ascend/cann:9.0.1-a3-openeuler24.03-py3.12"
    "BASE_NAME"            = "quay.io/ascend/cann:9.0.1-a3-openeuler24.03-py3.12"
    "BASE_DIGEST"          = ""
    "SOC"                  = "a3"
    "OS"                   = "openeuler24.03"
    "ARCH"                 = "amd64"
    "VERSION"              = "${VERSION}"
    "REVISION"             = "${REVISION}"
    "DIRTY"                = "${DIRTY}"
    "CREATED"              = "${CREATED}"
    "SOURCE_DATE_EPOCH"    = "${SOURCE_DATE_EPOCH}"
    "VLLM_VERSION"         = "0.26.0"
    "VLLM_COMMIT"          = "568afb3a13806beb53bb2e6bd518269357b237c0"
    "TORCH_INDEX"          = "${TORCH_INDEX}"
    "USER_ID"              = "1000"
    "TITLE"                = "vLLM-AFD for Atlas A3 (Ascend 910C)"
    "VENDOR"               = "the AFD project"
    "SOURCE_URL"           = "${SOURCE_URL}"
    "LICENSES"             = "Apache-2.0 AND LicenseRef-CANN"
    "SOC_VERSION"          = "ascend910_9391"
    "CANN"                 = "9.0.1"
    "TORCH"                = "2.10.0"
    "TORCH_NPU"            = "2.10.0.post2"
    "TRITON_ASCEND"        = "3.2.1"
    "TRITON_ASCEND_INDEX"  = "https://mirrors.huaweicloud.com/ascend/repos/pypi"
    "TRITON_ASCEND_SHA256" = ""
    "TORCH_SHA256"         = ""
    "VLLM_ASCEND_COMMIT"   = "80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "VLLM_ASCEND_VERSION"  = "0.26.0.dev0+g80d8c194f"
    "OPERATORS_COMMIT"     = "2e4378f2d478313992e9a1b850c61b1e888a1145"
    "A2E"                  = "built"
    "CAM"                  = "none"
    "DRIVER_MIN"           = "unverified"
    "OPP_PATHS"            = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer:/opt/afd/operators/vendors/afd-plugin"
    "LIBRARY_PATHS"        = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer/op_api/lib:/opt/afd/operators/vendors/afd-plugin/op_api/lib:/usr/local/lib"
  }
}

target "a5-ubuntu22_04-arm64" {
  dockerfile = "docker/npu.Dockerfile"
  context    = "."
  platforms  = ["linux/arm64"]
  tags       = ["${REGISTRY == "" ? "" : "${REGISTRY}/"}afd:${VERSION}-a5-ubuntu22.04-arm64"]
  contexts = {
    "vllm"             = "build/sources/vllm-568afb3a13806beb53bb2e6bd518269357b237c0"
    "vllm-ascend"      = "build/sources/vllm-ascend-80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "operators-source" = "build/sources/nothing"
    "cam"              = "build/sources/nothing"
  }
  args = {
    "BASE"                 = "quay.io/ascend/cann:9.0.1-950-ubuntu22.04-py3.12"
    "BASE_NAME"            = "quay.io/ascend/cann:9.0.1-950-ubuntu22.04-py3.12"
    "BASE_DIGEST"          = ""
    "SOC"                  = "a5"
    "OS"                   = "ubuntu22.04"
    "ARCH"                 = "arm64"
    "VERSION"              = "${VERSION}"
    "REVISION"             = "${REVISION}"
    "DIRTY"                = "${DIRTY}"
    "CREATED"              = "${CREATED}"
    "SOURCE_DATE_EPOCH"    = "${SOURCE_DATE_EPOCH}"
    "VLLM_VERSION"         = "0.26.0"
    "VLLM_COMMIT"          = "568afb3a13806beb53bb2e6bd518269357b237c0"
    "TORCH_INDEX"          = "${TORCH_INDEX}"
    "USER_ID"              = "1000"
    "TITLE"                = "vLLM-AFD for Atlas A5 (Ascend 950)"
    "VENDOR"               = "the AFD project"
    "SOURCE_URL"           = "${SOURCE_URL}"
    "LICENSES"             = "Apache-2.0 AND LicenseRef-CANN"
    "SOC_VERSION"          = "ascend950dt_9582"
    "CANN"                 = "9.0.1"
    "TORCH"                = "2.10.0"
    "TORCH_NPU"            = "2.10.0.post2"
    "TRITON_ASCEND"        = "3.2.1"
    "TRITON_ASCEND_INDEX"  = "https://mirrors.huaweicloud.com/ascend/repos/pypi"
    "TRITON_ASCEND_SHA256" = ""
    "TORCH_SHA256"         = ""
    "VLLM_ASCEND_COMMIT"   = "80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "VLLM_ASCEND_VERSION"  = "0.26.0.dev0+g80d8c194f"
    "OPERATORS_COMMIT"     = "2e4378f2d478313992e9a1b850c61b1e888a1145"
    "A2E"                  = "none"
    "CAM"                  = "none"
    "DRIVER_MIN"           = "unverified"
    "OPP_PATHS"            = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer"
    "LIBRARY_PATHS"        = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer/op_api/lib:/usr/local/lib"
  }
}

target "a5-ubuntu22_04-amd64" {
  dockerfile = "docker/npu.Dockerfile"
  context    = "."
  platforms  = ["linux/amd64"]
  tags       = ["${REGISTRY == "" ? "" : "${REGISTRY}/"}afd:${VERSION}-a5-ubuntu22.04-amd64"]
  contexts = {
    "vllm"             = "build/sources/vllm-568afb3a13806beb53bb2e6bd518269357b237c0"
    "vllm-ascend"      = "build/sources/vllm-ascend-80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "operators-source" = "build/sources/nothing"
    "cam"              = "build/sources/nothing"
  }
  args = {
    "BASE"                 = "quay.io/ascend/cann:9.0.1-950-ubuntu22.04-py3.12"
    "BASE_NAME"            = "quay.io/ascend/cann:9.0.1-950-ubuntu22.04-py3.12"
    "BASE_DIGEST"          = ""
    "SOC"                  = "a5"
    "OS"                   = "ubuntu22.04"
    "ARCH"                 = "amd64"
    "VERSION"              = "${VERSION}"
    "REVISION"             = "${REVISION}"
    "DIRTY"                = "${DIRTY}"
    "CREATED"              = "${CREATED}"
    "SOURCE_DATE_EPOCH"    = "${SOURCE_DATE_EPOCH}"
    "VLLM_VERSION"         = "0.26.0"
    "VLLM_COMMIT"          = "568afb3a13806beb53bb2e6bd518269357b237c0"
    "TORCH_INDEX"          = "${TORCH_INDEX}"
    "USER_ID"              = "1000"
    "TITLE"                = "vLLM-AFD for Atlas A5 (Ascend 950)"
    "VENDOR"               = "the AFD project"
    "SOURCE_URL"           = "${SOURCE_URL}"
    "LICENSES"             = "Apache-2.0 AND LicenseRef-CANN"
    "SOC_VERSION"          = "ascend950dt_9582"
    "CANN"                 = "9.0.1"
    "TORCH"                = "2.10.0"
    "TORCH_NPU"            = "2.10.0.post2"
    "TRITON_ASCEND"        = "3.2.1"
    "TRITON_ASCEND_INDEX"  = "https://mirrors.huaweicloud.com/ascend/repos/pypi"
    "TRITON_ASCEND_SHA256" = ""
    "TORCH_SHA256"         = ""
    "VLLM_ASCEND_COMMIT"   = "80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "VLLM_ASCEND_VERSION"  = "0.26.0.dev0+g80d8c194f"
    "OPERATORS_COMMIT"     = "2e4378f2d478313992e9a1b850c61b1e888a1145"
    "A2E"                  = "none"
    "CAM"                  = "none"
    "DRIVER_MIN"           = "unverified"
    "OPP_PATHS"            = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer"
    "LIBRARY_PATHS"        = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer/op_api/lib:/usr/local/lib"
  }
}

target "a5-openeuler24_03-arm64" {
  dockerfile = "docker/npu.Dockerfile"
  context    = "."
  platforms  = ["linux/arm64"]
  tags       = ["${REGISTRY == "" ? "" : "${REGISTRY}/"}afd:${VERSION}-a5-openeuler24.03-arm64"]
  contexts = {
    "vllm"             = "build/sources/vllm-568afb3a13806beb53bb2e6bd518269357b237c0"
    "vllm-ascend"      = "build/sources/vllm-ascend-80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "operators-source" = "build/sources/nothing"
    "cam"              = "build/sources/nothing"
  }
  args = {
    "BASE"                 = "quay.io/ascend/cann:9.0.1-950-openeuler24.03-py3.12"
    "BASE_NAME"            = "quay.io/ascend/cann:9.0.1-950-openeuler24.03-py3.12"
    "BASE_DIGEST"          = ""
    "SOC"                  = "a5"
    "OS"                   = "openeuler24.03"
    "ARCH"                 = "arm64"
    "VERSION"              = "${VERSION}"
    "REVISION"             = "${REVISION}"
    "DIRTY"                = "${DIRTY}"
    "CREATED"              = "${CREATED}"
    "SOURCE_DATE_EPOCH"    = "${SOURCE_DATE_EPOCH}"
    "VLLM_VERSION"         = "0.26.0"
    "VLLM_COMMIT"          = "568afb3a13806beb53bb2e6bd518269357b237c0"
    "TORCH_INDEX"          = "${TORCH_INDEX}"
    "USER_ID"              = "1000"
    "TITLE"                = "vLLM-AFD for Atlas A5 (Ascend 950)"
    "VENDOR"               = "the AFD project"
    "SOURCE_URL"           = "${SOURCE_URL}"
    "LICENSES"             = "Apache-2.0 AND LicenseRef-CANN"
    "SOC_VERSION"          = "ascend950dt_9582"
    "CANN"                 = "9.0.1"
    "TORCH"                = "2.10.0"
    "TORCH_NPU"            = "2.10.0.post2"
    "TRITON_ASCEND"        = "3.2.1"
    "TRITON_ASCEND_INDEX"  = "https://mirrors.huaweicloud.com/ascend/repos/pypi"
    "TRITON_ASCEND_SHA256" = ""
    "TORCH_SHA256"         = ""
    "VLLM_ASCEND_COMMIT"   = "80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "VLLM_ASCEND_VERSION"  = "0.26.0.dev0+g80d8c194f"
    "OPERATORS_COMMIT"     = "2e4378f2d478313992e9a1b850c61b1e888a1145"
    "A2E"                  = "none"
    "CAM"                  = "none"
    "DRIVER_MIN"           = "unverified"
    "OPP_PATHS"            = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer"
    "LIBRARY_PATHS"        = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer/op_api/lib:/usr/local/lib"
  }
}

target "a5-openeuler24_03-amd64" {
  dockerfile = "docker/npu.Dockerfile"
  context    = "."
  platforms  = ["linux/amd64"]
  tags       = ["${REGISTRY == "" ? "" : "${REGISTRY}/"}afd:${VERSION}-a5-openeuler24.03-amd64"]
  contexts = {
    "vllm"             = "build/sources/vllm-568afb3a13806beb53bb2e6bd518269357b237c0"
    "vllm-ascend"      = "build/sources/vllm-ascend-80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "operators-source" = "build/sources/nothing"
    "cam"              = "build/sources/nothing"
  }
  args = {
    "BASE"                 = "quay.io/ascend/cann:9.0.1-950-openeuler24.03-py3.12"
    "BASE_NAME"            = "quay.io/ascend/cann:9.0.1-950-openeuler24.03-py3.12"
    "BASE_DIGEST"          = ""
    "SOC"                  = "a5"
    "OS"                   = "openeuler24.03"
    "ARCH"                 = "amd64"
    "VERSION"              = "${VERSION}"
    "REVISION"             = "${REVISION}"
    "DIRTY"                = "${DIRTY}"
    "CREATED"              = "${CREATED}"
    "SOURCE_DATE_EPOCH"    = "${SOURCE_DATE_EPOCH}"
    "VLLM_VERSION"         = "0.26.0"
    "VLLM_COMMIT"          = "568afb3a13806beb53bb2e6bd518269357b237c0"
    "TORCH_INDEX"          = "${TORCH_INDEX}"
    "USER_ID"              = "1000"
    "TITLE"                = "vLLM-AFD for Atlas A5 (Ascend 950)"
    "VENDOR"               = "the AFD project"
    "SOURCE_URL"           = "${SOURCE_URL}"
    "LICENSES"             = "Apache-2.0 AND LicenseRef-CANN"
    "SOC_VERSION"          = "ascend950dt_9582"
    "CANN"                 = "9.0.1"
    "TORCH"                = "2.10.0"
    "TORCH_NPU"            = "2.10.0.post2"
    "TRITON_ASCEND"        = "3.2.1"
    "TRITON_ASCEND_INDEX"  = "https://mirrors.huaweicloud.com/ascend/repos/pypi"
    "TRITON_ASCEND_SHA256" = ""
    "TORCH_SHA256"         = ""
    "VLLM_ASCEND_COMMIT"   = "80d8c194f7584b17fe08065ea99a130916f6b0e7"
    "VLLM_ASCEND_VERSION"  = "0.26.0.dev0+g80d8c194f"
    "OPERATORS_COMMIT"     = "2e4378f2d478313992e9a1b850c61b1e888a1145"
    "A2E"                  = "none"
    "CAM"                  = "none"
    "DRIVER_MIN"           = "unverified"
    "OPP_PATHS"            = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer"
    "LIBRARY_PATHS"        = "/opt/afd/lib/python3.12/site-packages/vllm_ascend/_cann_ops_custom/vendors/custom_transformer/op_api/lib:/usr/local/lib"
  }
}

group "all" {
  targets = ["cpu-debian12-amd64", "cpu-debian12-arm64", "a2-ubuntu22_04-arm64", "a2-ubuntu22_04-amd64", "a2-openeuler24_03-arm64", "a2-openeuler24_03-amd64", "a3-ubuntu22_04-arm64", "a3-ubuntu22_04-amd64", "a3-openeuler24_03-arm64", "a3-openeuler24_03-amd64", "a5-ubuntu22_04-arm64", "a5-ubuntu22_04-amd64", "a5-openeuler24_03-arm64", "a5-openeuler24_03-amd64"]
}

group "cpu" {
  targets = ["cpu-debian12-amd64", "cpu-debian12-arm64"]
}

group "a2" {
  targets = ["a2-ubuntu22_04-arm64", "a2-ubuntu22_04-amd64", "a2-openeuler24_03-arm64", "a2-openeuler24_03-amd64"]
}

group "a3" {
  targets = ["a3-ubuntu22_04-arm64", "a3-ubuntu22_04-amd64", "a3-openeuler24_03-arm64", "a3-openeuler24_03-amd64"]
}

group "a5" {
  targets = ["a5-ubuntu22_04-arm64", "a5-ubuntu22_04-amd64", "a5-openeuler24_03-arm64", "a5-openeuler24_03-amd64"]
}
