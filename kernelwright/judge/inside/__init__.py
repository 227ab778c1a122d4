"""The candidate's side of the judge: what runs in the worker's process. It needs Python and torch alone.

The folder is copied beside the candidate and imported there under the name ``inside``.
"""
