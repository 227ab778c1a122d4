def table(p): pass
