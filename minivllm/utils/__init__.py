"""Owns small tools, at the places from which scripts for vLLM import them. Upstream: vllm/utils/."""

from minivllm.utils.argparse_utils import FlexibleArgumentParser

__all__ = ["FlexibleArgumentParser"]
