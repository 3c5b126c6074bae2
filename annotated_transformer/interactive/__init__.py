"""Interactive figures that need no kernel: each is a Python file that computes and an ES module that draws.

A figure is a function that returns an `Interactive`, the last expression of a notebook cell. Figures import
the package; nothing in the package imports them.
"""

from __future__ import annotations
