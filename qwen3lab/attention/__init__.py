"""Attention backends over one paged cache."""
