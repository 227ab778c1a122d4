"""Text of emitted files whose forward reads tensors in plain attributes, as an earlier call left them, or leaves some
there."""

ATTRIBUTES = '''\
class _KernelwrightAttributes:
    """Where the attributes are that a mode's calls read or assign.

    homes: (table, key) by name. containers: (name, table, key, structure) of those that hold containers; parts: the
    tensors in these, as they were found last. left: (table, key, whether its container is changed in place).
    Raises _KernelwrightMisfit.
    """

    def __init__(self, facts, modules):
        names = dict.fromkeys([name.partition("[")[0] for name in (*facts["carried"], *facts["left"])])
        self.homes = {name: (vars(modules[name.rpartition(".")[0]]), name.rpartition(".")[2]) for name in names}
        self.containers = [(name, *self.homes[name], part) for name, part in facts["containers"].items()]
        self.carried = list(facts["carried"])
        self.parts = [None] * len(self.carried)
        self.left = [(*self.homes[name.partition("[")[0]], "[" in name) for name in facts["left"]]
        for name in self.carried:
            table, key = self.homes[name.partition("[")[0]]
            self.must_hold(name, table.get(key))
        self.find()

    def must_hold(self, name, value):
        """Raise where an attribute does not hold anything."""
        if value is None or (type(value) in (list, dict) and not value):
            raise _KernelwrightMisfit(f"attribute {name}", "holds no tensor yet")

    def find(self):
        """Look for the tensors in containers."""
        for name, table, key, structure in self.containers:
            self.must_hold(name, table.get(key))
            try:
                found = _kernelwright_flatten(structure, table[key], {})
            except _KernelwrightMisfit:
                raise _KernelwrightMisfit(f"attribute {name}", "holds another container than it did") from None
            for place, value in found.items():
                self.parts[place] = value

    def home(self, name):
        """Where a tensor is found."""
        return (self.parts, self.carried.index(name)) if "[" in name else self.homes[name]

    def assign(self, values, binding):
        """Leave tensors in the attributes, and note that their tables are as they should be."""
        for (table, key, in_place), value in zip(self.left, values):
            if not in_place:
                table[key] = value
            elif type(value) is list:
                table[key][:] = value
            else:
                table[key].clear()
                table[key].update(value)
        if binding.versions is not None:
            for i in binding.assigned:
                binding.versions[i] = _kernelwright_version(binding.dicts[i])
'''
