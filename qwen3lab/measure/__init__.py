"""Measuring: two engines by turns, in an order that cancels drift, and a verdict that says how sure it is.

Reading order: workloads.py (what is asked; recipes.py made it) → engines.py (how an engine is driven; reference.py is
the second engine and the oracle) → worker.py, arms.py and process.py (the two ends of one arm's process) → trials.py
(what one run leaves behind) → session.py and schedule.py (the order) → abba.py (a comparison; comparison.py is what it
leaves) → verdict.py and stats.py (from blocks to a verdict; simulate.py tries that on arms whose truth is known).
Beside them: metrics.py (one formula each), outputs.py (do the tokens agree, and if not, is it a near tie), health.py
(was the platform fit), machine.py and nvml.py (what it is), bench.py (one engine alone).

Importing this package imports nothing: a worker may live in an interpreter that has neither pandas nor scipy.
"""
