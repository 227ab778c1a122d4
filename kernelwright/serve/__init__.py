"""``kernelwright serve``: the judge as a service over HTTP (``docs/serve.md``)."""
