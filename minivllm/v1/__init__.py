"""Owns nothing: the places from which scripts that were written for vLLM import, if `vllm` becomes `minivllm` in them.

The code stands in minivllm/engine and minivllm/metrics_reader.py.
"""
