"""FUZZ: random models through the stages, judged against float64, and shrunk where something is wrong."""
