"""Running notebooks strictly, and publishing what they sealed. No torch here: reports are drawn where there is none.

Reading order: places.py (where things are) → parameters.py (what a notebook takes) → runner.py and kernel.py (one
notebook, headless, and everything that counts as a failure) → words.py (a verdict in a sentence) → article.py (an
executed notebook as prose and figures) → page.py (one round's page) → site.py (reports/, from sealed rounds alone).
"""
