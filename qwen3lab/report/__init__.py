"""Running notebooks strictly, and publishing what they sealed. No torch here: reports are drawn where there is none.

Reading order: places.py (where things are) → parameters.py (what a notebook takes) → runner.py (one notebook, headless,
and everything that counts as a failure) → page.py (one round's page) → site.py (reports/, from data/ alone).
"""
