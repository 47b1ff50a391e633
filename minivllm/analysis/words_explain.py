"""Owns the sentences of explanations in both languages. The topics graph and roofline are told in English only."""

from __future__ import annotations

from minivllm.analysis import words_explain_en, words_explain_zh

EXPLAIN_WORDS = {"en": words_explain_en.TEMPLATES, "zh": words_explain_zh.TEMPLATES}
