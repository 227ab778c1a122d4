"""Complex numbers and transforms."""

from __future__ import annotations

from reported.case import Case, held

CASES = {
    "rotations of pairs": Case(
        97562, "q, f", "torch.view_as_real(torch.view_as_complex(q.reshape(2, 3, -1, 2)) * f).flatten(2).tanh()",
        "torch.randn(2, 3, 8), torch.polar(torch.ones(3, 4), torch.rand(3, 4))"),
    "a conjugate": Case(
        171852, "x", "z = torch.complex(x, x * 2).conj()\nreturn z.real + 1, z.imag.exp(), z", "torch.randn(3, 4)"),
    "a conjugate that is returned": Case(
        171850, "z", "return z.conj(), (z * z.conj()).real.sqrt(), z.abs() + 1",
        "torch.randn(3, 4, dtype=torch.complex64)", kernels=False),
    "added in broadcast": Case(
        174891, "z", "return z + torch.ones(2, 1, dtype=torch.complex64), z * 2j, z / 3",
        "torch.full((2, 2), 1.0, dtype=torch.complex64)", kernels=False),
    "times an imaginary number": Case(
        184100, "x", "y = torch.complex(x, x.tanh())\nreturn y * (0.5 - 1j), (y * 1j).real.relu()", "torch.randn(5)"),
    "a spectrum returned": Case(
        171852, "x", "f = torch.fft.rfft(x.tanh() * 2)\nreturn f, f.abs() + 1, f.angle()", "torch.randn(3, 8)"),
    "filtered in the spectrum": Case(
        111884, "x", "torch.fft.irfft(torch.fft.rfft(x) * self.w, n=8).relu() + 1", "torch.randn(3, 8)",
        members="self.w = nn.Parameter(torch.randn(5, dtype=torch.complex64))"),
    "energy of a spectrum": Case(
        181625, "x", "f = torch.fft.fft2(x)\nreturn f.abs().square().mean((-2, -1)), f.real.sum() * 1e-3",
        "torch.randn(2, 3, 4, 4)"),
    "a complex layer": Case(
        171852, "x", "z = self.l(torch.complex(x, torch.zeros_like(x)))\nreturn torch.complex(z.real.relu(), z.imag)",
        "torch.randn(3, 4)", members="self.l = nn.Linear(4, 5, dtype=torch.complex64)", kernels=False),
    "a product of complex matrices": Case(
        171665, "a, b", "return (a @ b).abs() * 2, a.mH, torch.linalg.vector_norm(a, dim=1)",
        "torch.randn(3, 4, dtype=torch.complex64), torch.randn(4, 2, dtype=torch.complex64)", kernels=False),
    "windows of a signal": Case(
        181625, "x", "torch.stft(x, 16, 4, window=self.w, return_complex=True).abs().log1p()", "torch.randn(2, 64)",
        members="self.register_buffer('w', torch.hann_window(16))"),
}

test_reported = held("complexes", CASES)
