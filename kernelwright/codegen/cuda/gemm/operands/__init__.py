"""How operands reach a mainloop: packed by a kernel before it, beside it, or converted within it."""
