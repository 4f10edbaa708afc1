"""Qwen3 itself: the block diagram, its weights, its tokenizer."""
