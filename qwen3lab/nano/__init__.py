"""The small real model: a Qwen3 of seven million weights that can continue, edit and quote Python.

Reading order: tasks.py (what it is asked) → tokenizer.py → pieces.py (the corpus as arrays) → samples.py (a fresh
batch) → network.py, muon.py → train.py (the recipe) → evaluate.py (held-out files) → card.py; shapes.py and scale.py
carry its function to any Qwen3 shape.
"""
