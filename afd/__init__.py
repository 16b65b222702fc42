# SPDX-License-Identifier: Apache-2.0
"""AFD: Attention-FFN disaggregated LLM inference on vLLM. Importing this package imports neither torch nor vLLM."""
