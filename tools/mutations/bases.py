"""The correct kernels that faults are put into: hand-written ones in ``written/``, and what kernelwright emits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import kernelwright
from kernelwright.roofline.devices import GENERIC_CPU

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = Path(__file__).resolve().parent / "written"


@dataclass(frozen=True, slots=True)
class Base:
    """A correct candidate for the problem ``problems/<problem>.py`` with ``sizes`` as the values of its constants.

    ``emitted``: its text is what kernelwright emits for that problem on a CPU (C++), else the file of its name.
    """

    name: str
    problem: str
    sizes: dict[str, int] = field(default_factory=dict)
    emitted: bool = False

    def problem_text(self) -> str:
        """The problem's file with ``sizes`` as its small sizes."""
        text = (ROOT / "problems" / f"{self.problem}.py").read_text(encoding="utf-8")
        return text + f"\n\nTINY = {self.sizes!r}\n" if self.sizes else text

    def text(self, folder: Path) -> str:
        """The correct candidate's text. What is emitted is kept in ``folder``: planning takes seconds."""
        if not self.emitted:
            return (WRITTEN / f"{self.name}.py").read_text(encoding="utf-8")
        kept = folder / f"{self.name}.py"
        if not kept.exists():
            folder.mkdir(parents=True, exist_ok=True)
            problem = folder / f"problem_{self.name}.py"
            problem.write_text(self.problem_text(), encoding="utf-8")
            kept.write_text(kernelwright.explain(problem, target="cpp", device=GENERIC_CPU, tiny=True).source,
                            encoding="utf-8")
        return kept.read_text(encoding="utf-8")


def _written(name: str, problem: str, **sizes: int) -> Base:
    return Base(name, problem, sizes)


def _emitted(problem: str, **sizes: int) -> Base:
    return Base(f"cpp_{Path(problem).name}", problem, sizes, emitted=True)


#: Sizes are no multiples of the tiles, so that every loop has a tail.
BASES: tuple[Base, ...] = (
    _written("layer_norm", "normalisation/layer_norm_residual", batch=3, tokens=7, features=48),
    _written("rms_norm", "normalisation/root_mean_square", batch=3, tokens=7, features=40),
    _written("group_norm", "normalisation/group_norm_silu", batch=3, channels=12, size=7, groups=4),
    _written("instance_norm", "normalisation/instance_norm_leaky", batch=3, channels=5, depth=6, size=7),
    _written("batch_norm_inference", "normalisation/batch_norm_inference", batch=3, channels=6, size=9),
    _written("batch_norm_training", "training/batch_norm_statistics", batch=4, channels=6, size=9),
    _written("channels_first_norm", "normalisation/channels_first_layer_norm", batch=3, channels=10, size=7),
    _written("response_norm", "normalisation/global_response_norm", batch=3, size=7, channels=10),
    _written("masked_softmax", "softmax/masked_scores", batch=3, heads=2, tokens=13),
    _written("policy_entropy", "softmax/entropy_of_policy", states=11, actions=29),
    _written("vocabulary_log_softmax", "softmax/vocabulary_log_softmax", tokens=7, vocabulary=150),
    _written("segmentation_map", "softmax/segmentation_map", batch=3, classes=6, height=7, width=9),
    _written("average_pool", "pooling/ceiling_average", batch=3, channels=4, size=10),
    _written("average_and_maximum", "pooling/average_and_maximum", batch=4, channels=6, size=9),
    _written("dilated_max_pool", "pooling/audio_max", batch=3, channels=4, samples=60),
    _written("heatmap_peak", "reductions/heatmap_peak", batch=4, joints=5, height=6, width=5),
    _written("extrema_pair", "reductions/extrema_pair", devices=5, sensors=4, time=45),
    _written("channel_statistics", "reductions/channel_statistics", batch=4, channels=5, height=7, width=9),
    _written("row_norms", "reductions/row_norms", count=18, features=36),
    _written("weighted_heads", "reductions/middle_axis_sum", batch=5, heads=7, features=18),
    _written("token_mean", "reductions/token_mean", batch=5, tokens=9, features=12),
    _written("smoothed_cross_entropy", "losses/smoothed_cross_entropy", rows=14, classes=21),
    _written("focal_loss", "losses/focal", anchors=30, classes=9),
    _written("smooth_regression", "losses/smooth_regression", batch=3, anchors=40),
    _written("discounted_returns", "scans/discounted_returns", episodes=5, steps=24),
    _written("running_mean", "scans/running_mean", series=5, steps=56),
    _written("highest_so_far", "scans/highest_so_far", series=5, days=40),
    _written("silu_gate", "pointwise/silu_gate", batch=3, tokens=6, hidden=20),
    _written("gelu_by_hand", "pointwise/gelu_by_hand", tokens=9, features=42),
    _written("logit_cap", "pointwise/logit_cap", tokens=7, vocabulary=90),
    _written("token_shift", "pointwise/token_shift", batch=4, tokens=9, channels=12),
    _written("sampler_step", "pointwise/sampler_step", batch=4, channels=4, size=7),
    _written("linear_gelu", "matmul/linear_gelu", tokens=9, inside=40, outside=24),
    _written("nearest_centre", "matmul/pairwise_distances", points=20, centres=7, features=12),
    _written("gram_matrix", "matmul/gram_of_features", batch=3, channels=6, size=9),
    _written("vector_projection", "matmul/vector_projection", inside=30, outside=26),
    _written("patch_embedding", "convolution/patch_embedding", batch=3, size=12, patch=4, features=14),
    _written("audio_frames", "convolution/audio_frames", batch=3, samples=200, channels=6),
    _written("pointwise_projection", "convolution/pointwise_projection", batch=3, inside=6, outside=8, size=8),
    _written("transposed_convolution", "transposed_convolution/odd_output", batch=3, inside=4, size=6),
    _written("grouped_convolution", "convolution/cardinality", batch=4, channels=8, size=9, groups=4),
    _written("embedded_tokens", "embedding/tokens_and_positions", batch=4, tokens=9, vocabulary=40, features=20),
    _written("chosen_rows", "views/chosen_rows", batch=4, tokens=9, chosen=5, features=12),
    _written("skip_concatenation", "views/skip_concatenation", batch=3, encoder=5, decoder=6, size=7),
    _written("recurrent_cell", "recurrent/cell_loop", batch=5, steps=6, inside=8, hidden=12),
    _written("causal_attention", "attention/causal_by_hand", batch=3, tokens=11, features=16, heads=2),
    _written("squeeze_excitation", "blocks/squeeze_excitation", batch=4, channels=16, size=7),
    _written("dropout_network", "training/dropout_mlp", rows=9, inside=12, hidden=20),
    _written("actor_and_critic", "structure/actor_and_critic", batch=9, observation=10, hidden=16, actions=7),
    _written("call_counter", "structure/call_counter", rows=7, features=20),
    _written("channel_shuffle", "views/channel_shuffle", batch=4, channels=6, size=7, groups=3),
    _written("reflected_border", "views/reflected_border", batch=3, size=9),
    _emitted("normalisation/layer_norm_residual", batch=3, tokens=7, features=45),
    _emitted("normalisation/batch_norm_inference", batch=3, channels=6, size=9),
    _emitted("training/batch_norm_statistics", batch=4, channels=6, size=9),
    _emitted("softmax/entropy_of_policy", states=11, actions=29),
    _emitted("pooling/audio_max", batch=3, channels=4, samples=60),
    _emitted("reductions/channel_statistics", batch=4, channels=5, height=7, width=9),
    _emitted("pointwise/gelu_by_hand", tokens=9, features=42),
    _emitted("pointwise/sampler_step", batch=4, channels=4, size=7),
    _emitted("losses/focal", anchors=30, classes=9),
    _emitted("scans/discounted_returns", episodes=5, steps=24),
    _emitted("matmul/linear_gelu", tokens=9, inside=40, outside=24),
    _emitted("views/skip_concatenation", batch=3, encoder=5, decoder=6, size=7),
)
