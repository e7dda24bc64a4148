"""Kokoro-82M in plain PyTorch: phonemes and a style → durations, pitch, energy and a waveform, for a batch at once.

The architecture is StyleTTS2's (arXiv:2306.07691) with iSTFTNet's decoder (arXiv:2203.02395), as hexgrad's package
`kokoro` 0.9.4 (Apache-2.0) builds it. Weights have this package's names; weight norm is folded into them. Padding is
masked in every normalisation and before every convolution, so an utterance sounds the same in any batch.

Shapes: [batch, symbols] before durations are applied, [batch, frames] after. A frame is 25 ms: two values of pitch and
of energy, 600 samples of the waveform.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, interpolate, layer_norm, leaky_relu, pad, scaled_dot_product_attention
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

SAMPLE_RATE = 24_000
FRAME_SAMPLES = 600
CURVE_SAMPLES = FRAME_SAMPLES // 2
NUM_SYMBOLS = 178
WIDTH, HALF_STYLE = 512, 128
"""A style is 128 numbers of timbre, which the decoder uses, and 128 of manner, which the predictor uses."""
VOICED_HZ = 10.0
HARMONICS = 9
_BERT_WIDTH, _BERT_HEADS, _BERT_LAYERS, _BERT_INNER = 768, 12, 12, 2048
_N_FFT, _HOP = 20, 5


@dataclass(frozen=True, eq=False)
class Extent:
    """Lengths in a padded batch. inside: [batch, 1, time] float32, 0 in padding, else 1; count: [batch, 1, 1]."""

    inside: Tensor
    count: Tensor

    @classmethod
    def of(cls, lengths: Tensor, time: int) -> Extent:
        inside = (torch.arange(time, device=lengths.device) < lengths[:, None])[:, None].float()
        return cls(inside, lengths[:, None, None].float())


def _both_ways(inputs: int, hidden: int) -> nn.LSTM:
    return nn.LSTM(inputs, hidden, batch_first=True, bidirectional=True)


def _run(lstm: nn.LSTM, x: Tensor, lengths: Tensor) -> Tensor:
    """Run an LSTM. x: [batch, time, inputs]; lengths: on the CPU  →  [batch, time, 2 · hidden], zeros in padding."""
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=x.shape[1])[0]


class Bert(nn.Module):
    """ALBERT (arXiv:1909.11942): one layer, run twelve times."""

    def __init__(self) -> None:
        super().__init__()
        tables = {"word_embeddings": NUM_SYMBOLS, "position_embeddings": 512, "token_type_embeddings": 2}
        self.embeddings = nn.ModuleDict({name: nn.Embedding(size, 128) for name, size in tables.items()})
        self.embeddings["LayerNorm"] = nn.LayerNorm(128, 1e-12)
        attention = nn.ModuleDict({n: nn.Linear(_BERT_WIDTH, _BERT_WIDTH) for n in ("query", "key", "value", "dense")})
        attention["LayerNorm"] = nn.LayerNorm(_BERT_WIDTH, 1e-12)
        layer = nn.ModuleDict(
            {
                "attention": attention,
                "ffn": nn.Linear(_BERT_WIDTH, _BERT_INNER),
                "ffn_output": nn.Linear(_BERT_INNER, _BERT_WIDTH),
                "full_layer_layer_norm": nn.LayerNorm(_BERT_WIDTH, 1e-12),
            }
        )
        groups = nn.ModuleList([nn.ModuleDict({"albert_layers": nn.ModuleList([layer])})])
        enter = nn.Linear(128, _BERT_WIDTH)
        self.encoder = nn.ModuleDict({"embedding_hidden_mapping_in": enter, "albert_layer_groups": groups})

    def forward(self, ids: Tensor, extent: Extent) -> Tensor:
        """ids: [batch, symbols] int64  →  [batch, symbols, 768]."""
        tables = self.embeddings
        x = tables["word_embeddings"](ids) + tables["position_embeddings"].get_parameter("weight")[: ids.shape[1]]
        x = tables["LayerNorm"](x + tables["token_type_embeddings"].get_parameter("weight")[0])
        x = self.encoder["embedding_hidden_mapping_in"](x)
        layer = self.encoder.get_submodule("albert_layer_groups.0.albert_layers.0")
        attention = layer.get_submodule("attention")
        seen = extent.inside[:, None].bool()
        for _ in range(_BERT_LAYERS):
            query, key, value = (
                attention.get_submodule(name)(x).unflatten(-1, (_BERT_HEADS, -1)).transpose(1, 2)
                for name in ("query", "key", "value")
            )
            mixed = scaled_dot_product_attention(query, key, value, attn_mask=seen).transpose(1, 2).flatten(2)
            x = attention.get_submodule("LayerNorm")(x + attention.get_submodule("dense")(mixed))
            inner = gelu(layer.get_submodule("ffn")(x), approximate="tanh")
            x = layer.get_submodule("full_layer_layer_norm")(x + layer.get_submodule("ffn_output")(inner))
        return x


class ChannelNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, width, time]  →  the same shape."""
        return layer_norm(x.transpose(1, 2), (WIDTH,), self.gamma, self.beta).transpose(1, 2)


class TextEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_SYMBOLS, WIDTH)
        steps = ((nn.Conv1d(WIDTH, WIDTH, 5, padding=2), ChannelNorm(), nn.LeakyReLU(0.2)) for _ in range(3))
        self.cnn = nn.ModuleList(nn.Sequential(*step) for step in steps)
        self.lstm = _both_ways(WIDTH, WIDTH // 2)

    def forward(self, ids: Tensor, extent: Extent, lengths: Tensor) -> Tensor:
        """ids: [batch, symbols]; lengths: on the CPU  →  [batch, symbols, width]."""
        x = self.embedding(ids).transpose(1, 2) * extent.inside
        for step in self.cnn:
            x = step(x) * extent.inside
        return _run(self.lstm, x.transpose(1, 2), lengths)


class StyledNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(HALF_STYLE, 2 * WIDTH)

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        gamma, beta = self.fc(style)[:, None].chunk(2, -1)
        return (1 + gamma) * layer_norm(x, x.shape[-1:]) + beta


class DurationEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        blocks = ((_both_ways(WIDTH + HALF_STYLE, WIDTH // 2), StyledNorm()) for _ in range(3))
        self.lstms = nn.ModuleList(block for pair in blocks for block in pair)

    def forward(self, x: Tensor, style: Tensor, extent: Extent, lengths: Tensor) -> Tensor:
        """x: [batch, symbols, width]  →  [batch, symbols, width + 128], the style at its end."""
        inside, styles = extent.inside.transpose(1, 2), style[:, None].expand(-1, x.shape[1], -1)
        x = torch.cat([x, styles], -1) * inside
        for block in self.lstms:
            if isinstance(block, nn.LSTM):
                x = _run(block, x, lengths)
            else:
                x = torch.cat([block(x, style), styles], -1) * inside
        return x


class AdaIN(nn.Module):
    """Instance normalisation that ignores padding, then a scale and a shift by the style (arXiv:1703.06868)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc = nn.Linear(HALF_STYLE, 2 * channels)

    def forward(self, x: Tensor, style: Tensor, extent: Extent) -> Tensor:
        gamma, beta = self.fc(style).float()[..., None].chunk(2, 1)
        x = x.float()
        x = (x - (x * extent.inside).sum(-1, keepdim=True) / extent.count) * extent.inside
        variance = x.square().sum(-1, keepdim=True) / extent.count
        return ((1 + gamma) * torch.rsqrt(variance + 1e-5)) * x + beta * extent.inside


class StyledBlock(nn.Module):
    """A residual block of two convolutions, each after an `AdaIN`; `double`: it doubles the number of frames."""

    def __init__(self, inputs: int, outputs: int, double: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = AdaIN(inputs), AdaIN(outputs)
        self.conv1, self.conv2 = (nn.Conv1d(size, outputs, 3, padding=1) for size in (inputs, outputs))
        self.conv1x1 = nn.Conv1d(inputs, outputs, 1, bias=False) if inputs != outputs else nn.Identity()
        self.pool = nn.ConvTranspose1d(inputs, inputs, 3, 2, 1, 1, groups=inputs) if double else None

    def forward(self, x: Tensor, style: Tensor, lengths: Tensor) -> Tensor:
        """x: [batch, inputs, frames]; lengths: [batch], in input frames."""
        extent = Extent.of(lengths, x.shape[-1])
        y = leaky_relu(self.norm1(x, style, extent), 0.2)
        if self.pool is not None:
            y, x = self.pool(y), x.repeat_interleave(2, -1)
            extent = Extent.of(2 * lengths, x.shape[-1])
        y = self.conv1(y * extent.inside)
        y = self.conv2(leaky_relu(self.norm2(y, style, extent), 0.2))
        return (y + self.conv1x1(x)) * extent.inside * math.sqrt(0.5)


class Predictor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.text_encoder = DurationEncoder()
        self.lstm = _both_ways(WIDTH + HALF_STYLE, WIDTH // 2)
        self.shared = _both_ways(WIDTH + HALF_STYLE, WIDTH // 2)
        self.duration_proj = nn.ModuleDict({"linear_layer": nn.Linear(WIDTH, 50)})
        half = WIDTH // 2
        for name in ("F0", "N"):
            blocks = (StyledBlock(WIDTH, WIDTH), StyledBlock(WIDTH, half, True), StyledBlock(half, half))
            self.add_module(name, nn.ModuleList(blocks))
            self.add_module(f"{name}_proj", nn.Conv1d(half, 1, 1))

    def durations(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Compute each symbol's number of frames, not rounded: [batch, symbols]. x: output of the text encoder."""
        scores = self.duration_proj["linear_layer"](_run(self.lstm, x, lengths))
        return torch.sigmoid(scores.float()).sum(-1)

    def curve(self, name: str, shared: Tensor, style: Tensor, frames: Tensor) -> Tensor:
        """Compute the curve F0 (pitch in Hz) or N (energy): [batch, 2 · frames]."""
        x, lengths = shared, frames
        for block in self.get_submodule(name).children():
            x = block(x, style, lengths)
            if x.shape[-1] > shared.shape[-1]:
                lengths = 2 * frames
        curve: Tensor = self.get_submodule(f"{name}_proj")(x).squeeze(1).float()
        return curve * Extent.of(lengths, curve.shape[-1]).inside[:, 0]


class SnakeBlock(nn.Module):
    """Dilated convolutions with `AdaIN` norms and periodic activations (arXiv:2006.08195)."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()

        def convs(dilations: tuple[int, ...]) -> nn.ModuleList:
            half = (kernel - 1) // 2
            return nn.ModuleList(
                nn.Conv1d(channels, channels, kernel, padding=half * dilation, dilation=dilation)
                for dilation in dilations
            )

        self.convs1, self.convs2 = convs((1, 3, 5)), convs((1, 1, 1))
        self.adain1, self.adain2 = (nn.ModuleList(AdaIN(channels) for _ in range(3)) for _ in range(2))
        ones = (torch.ones(1, channels, 1) for _ in range(6))
        alphas = [nn.Parameter(one) for one in ones]
        self.alpha1, self.alpha2 = nn.ParameterList(alphas[:3]), nn.ParameterList(alphas[3:])

    def forward(self, x: Tensor, style: Tensor, extent: Extent) -> Tensor:
        for step in range(3):
            y = x
            for norms, alphas, convs in (
                (self.adain1, self.alpha1, self.convs1),
                (self.adain2, self.alpha2, self.convs2),
            ):
                y = norms[step](y, style, extent)
                y = convs[step](y + torch.sin(alphas[step] * y).square() / alphas[step])
            x = x + y
        return x


class Generator(nn.Module):
    window: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.m_source = nn.ModuleDict({"l_linear": nn.Linear(HARMONICS, 1)})
        self.ups = nn.ModuleList([nn.ConvTranspose1d(512, 256, 20, 10, 5), nn.ConvTranspose1d(256, 128, 12, 6, 3)])
        bands = _N_FFT + 2
        self.noise_convs = nn.ModuleList([nn.Conv1d(bands, 256, 12, 6, 3), nn.Conv1d(bands, 128, 1)])
        self.noise_res = nn.ModuleList([SnakeBlock(256, 7), SnakeBlock(128, 11)])
        self.resblocks = nn.ModuleList(SnakeBlock(size, kernel) for size in (256, 128) for kernel in (3, 7, 11))
        self.conv_post = nn.Conv1d(128, bands, 7, padding=3)
        self.register_buffer("window", torch.hann_window(_N_FFT), persistent=False)

    def source(self, pitch: Tensor) -> Tensor:
        """Make [batch, n · 300]: harmonics where the pitch is voiced, noise elsewhere. pitch: [batch, n] in Hz."""
        numbers = torch.arange(1, HARMONICS + 1, device=pitch.device)[:, None]
        turns = (pitch[:, None] * numbers / SAMPLE_RATE) % 1
        phase = interpolate(turns.double().cumsum(-1) * CURVE_SAMPLES, scale_factor=CURVE_SAMPLES, mode="linear") % 1
        voiced = (pitch > VOICED_HZ).float().repeat_interleave(CURVE_SAMPLES, -1)[:, None]
        waves = 0.1 * torch.sin(phase.float() * (2 * math.pi)) * voiced
        waves = waves + torch.randn_like(waves) * (0.003 * voiced + (1 - voiced) * (0.1 / 3))
        mix = self.m_source["l_linear"]
        mixed = mix.get_parameter("weight").float() @ waves + mix.get_parameter("bias").float()[:, None]
        return torch.tanh(mixed)[:, 0]

    def forward(self, x: Tensor, style: Tensor, pitch: Tensor, frames: Tensor) -> Tensor:
        """x: [batch, 512, 2 · frames]  →  [batch, frames · 600] float32."""
        with torch.autocast(x.device.type, enabled=False):
            spectrum = torch.stft(self.source(pitch.float()), _N_FFT, _HOP, _N_FFT, self.window, return_complex=True)
            harmonics = torch.cat([spectrum.abs(), spectrum.angle()], 1)
        for stage, lengths in enumerate((frames * 20, frames * 120 + 1)):
            x = self.ups[stage](leaky_relu(x, 0.1))
            if stage == 1:
                x = pad(x, (1, 0), mode="reflect")
            extent = Extent.of(lengths, x.shape[-1])
            x = x + self.noise_res[stage](self.noise_convs[stage](harmonics), style, extent)
            blocks = [self.resblocks[3 * stage + kind](x, style, extent) for kind in range(3)]
            x = torch.stack(blocks).sum(0) / 3 * extent.inside
        x = self.conv_post(leaky_relu(x)).float()
        with torch.autocast(x.device.type, enabled=False):
            half = _N_FFT // 2 + 1
            spectrum = torch.polar(x[:, :half].exp() * extent.inside, torch.sin(x[:, half:]))
            return torch.istft(spectrum, _N_FFT, _HOP, _N_FFT, self.window)


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = StyledBlock(WIDTH + 2, 1024)
        more = 1024 + 64 + 2
        self.decode = nn.ModuleList(
            StyledBlock(more, 512 if last else 1024, last) for last in (False, False, False, True)
        )
        self.F0_conv, self.N_conv = nn.Conv1d(1, 1, 3, 2, 1), nn.Conv1d(1, 1, 3, 2, 1)
        self.asr_res = nn.Sequential(nn.Conv1d(WIDTH, 64, 1))
        self.generator = Generator()

    def forward(self, text: Tensor, curves: tuple[Tensor, Tensor], style: Tensor, frames: Tensor) -> Tensor:
        """text: [batch, width, frames]; curves: pitch and energy, [batch, 2 · frames] both  →  [batch, samples]."""
        extent = Extent.of(frames, text.shape[-1])
        pitch, energy = curves
        both = torch.cat([self.F0_conv(pitch[:, None]), self.N_conv(energy[:, None])], 1) * extent.inside
        x = self.encode(torch.cat([text, both], 1), style, frames)
        beside = torch.cat([self.asr_res(text) * extent.inside, both], 1)
        for block in self.decode:
            x = block(torch.cat([x, beside], 1), style, frames)
        wave: Tensor = self.generator(x, style, pitch, frames)
        return wave


@dataclass(frozen=True, eq=False)
class Plan:
    """Timing, pitch and energy of a batch. frames: [batch]; durations: [batch, symbols] int64, in frames; symbol:
    [batch, frames] int64, the index of each frame's symbol; pitch (in Hz), energy: [batch, 2 · frames].
    """

    frames: Tensor
    durations: Tensor
    symbol: Tensor
    pitch: Tensor
    energy: Tensor


class Kokoro(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bert, self.bert_encoder = Bert(), nn.Linear(_BERT_WIDTH, WIDTH)
        self.predictor, self.text_encoder, self.decoder = Predictor(), TextEncoder(), Decoder()

    def plan(self, ids: Tensor, lengths: Tensor, style: Tensor) -> Plan:
        """Plan a batch. ids: [batch, symbols] int64, 0 at both ends and in padding; lengths: [batch] on the CPU; style:
        [batch, 256]. This is float32 even under autocast: durations and pitch need this precision, and cost little.
        """
        with torch.autocast(ids.device.type, enabled=False):
            manner = style[:, HALF_STYLE:]
            extent = Extent.of(lengths.to(ids.device), ids.shape[1])
            hidden = self.bert_encoder(self.bert(ids, extent))
            known = self.predictor.text_encoder(hidden, manner, extent, lengths)
            durations = self.predictor.durations(known, lengths).round().clamp(min=1) * extent.inside[:, 0]
            ends = durations.long().cumsum(-1)
            frames = ends[:, -1].contiguous()
            at = torch.arange(int(frames.max()), device=ids.device).expand(len(ids), -1).contiguous()
            symbol = torch.searchsorted(ends, at, right=True).clamp(max=ids.shape[1] - 1)
            spread = known.gather(1, symbol[..., None].expand(-1, -1, known.shape[-1]))
            spread = spread * Extent.of(frames, at.shape[1]).inside.transpose(1, 2)
            shared = _run(self.predictor.shared, spread, frames.cpu()).transpose(1, 2)
            pitch, energy = (self.predictor.curve(name, shared, manner, frames) for name in ("F0", "N"))
        return Plan(frames, durations.long(), symbol, pitch, energy)

    def speak(self, ids: Tensor, lengths: Tensor, style: Tensor, plan: Plan) -> Tensor:
        """Make the plan's waveform [batch, frames · 600]; ids, lengths, style: as in `plan`.

        Autocast to float16 makes no audible difference, but autocast to bfloat16 does. A style with another first half
        gives another timbre with the same timing and melody.
        """
        with torch.autocast(ids.device.type, enabled=False):
            extent = Extent.of(lengths.to(ids.device), ids.shape[1])
            text = self.text_encoder(ids, extent, lengths)
            text = text.gather(1, plan.symbol[..., None].expand(-1, -1, WIDTH)).transpose(1, 2)
            text = text * Extent.of(plan.frames, text.shape[-1]).inside
        wave: Tensor = self.decoder(text, (plan.pitch, plan.energy), style[:, :HALF_STYLE], plan.frames)
        return wave
