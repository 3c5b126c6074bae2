"""Interactive figures that need no kernel: each is one Python file that computes and one ES module that draws.

Each figure is a function that returns an `Interactive`, the last expression of a notebook cell. Figures import
the package; nothing in the package imports them.
"""
