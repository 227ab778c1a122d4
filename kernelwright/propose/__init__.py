"""PROPOSE: candidates from language models, or from texts that exist: read, judged, mended, and held against ours."""
