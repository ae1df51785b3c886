"""The whole model: its size, the same weights in a plain re-computation, and what may depend on what."""

import math

import numpy as np
import pytest
import torch

from nmt.model.transformer import Transformer, parameter_groups
from nmt.recipe import Model

TINY = {"layers": 2, "d_model": 8, "d_ff": 12, "heads": 2, "dropout": 0.0}
LIKE_MARIAN = {"activation": "silu", "norm_epsilon": 0.1, "attention_bias": True, "output_bias": True}
VOCABULARY = 11


def tiny(source_vocab=VOCABULARY, **changes):
    """A small random fp64 model in which every parameter matters, norms and biases too."""
    torch.manual_seed(1)
    starts = SOURCE_STARTS, TARGET_STARTS
    model = Transformer(Model(**(TINY | changes)), source_vocab, VOCABULARY, starts).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


SOURCE_STARTS, TARGET_STARTS = ([i in starts for i in range(VOCABULARY)] for starts in ((4, 5, 6, 8), (5, 7, 9)))


def padded(rows):
    width = max(map(len, rows))
    return torch.tensor([row + [0] * (width - len(row)) for row in rows])


SOURCES = [[5, 7, 4, 9, 3], [6, 3], [10, 8, 8, 3]]
TARGETS = [[2, 4, 5], [2, 9, 9, 10, 6, 7], [2]]

# --- size ---------------------------------------------------------------------------------------------------


def test_parameter_groups_add_up_and_count_a_shared_matrix_once():
    model = tiny()
    groups = parameter_groups(model)
    assert sum(groups.values()) == sum(parameter.numel() for parameter in model.parameters())
    assert groups["embeddings"] == VOCABULARY * 8
    assert parameter_groups(tiny(tie_embeddings="target"))["embeddings"] == 2 * VOCABULARY * 8
    assert parameter_groups(tiny(tie_embeddings="none"))["embeddings"] == 3 * VOCABULARY * 8
    assert parameter_groups(tiny(output_bias=True))["embeddings"] == VOCABULARY * (8 + 1)


@pytest.mark.parametrize(("tie", "matrices"), [("all", 1), ("target", 2), ("none", 3)])
def test_tied_embeddings_are_one_matrix(tie, matrices):
    model = tiny(tie_embeddings=tie)
    embeddings = (model.source_embedding, model.target_embedding, model.output_embedding)
    assert len({embedding.weight.data_ptr() for embedding in embeddings}) == matrices
    assert (model.target_embedding is model.output_embedding) == (tie != "none")


def test_embeddings_shared_over_different_vocabularies_are_refused():
    with pytest.raises(ValueError, match=r"10 and 12"):
        Transformer(Model(**TINY), 10, 12)


@pytest.mark.parametrize("tie", ["all", "none"])
def test_embeddings_start_with_a_deviation_of_d_model_to_the_minus_half(tie):
    torch.manual_seed(2)
    model = Transformer(Model(layers=1, d_model=64, heads=2, d_ff=8, tie_embeddings=tie), 2000, 2000)
    for embedding in (model.source_embedding, model.target_embedding, model.output_embedding):
        weight = embedding.weight.detach()
        assert float(weight.std()) == pytest.approx(64**-0.5, rel=0.02)
        assert float(weight.mean()) == pytest.approx(0.0, abs=0.002)


@pytest.mark.parametrize("starts", [None, ([True] * VOCABULARY, [True] * (VOCABULARY - 1))])
def test_positions_of_words_need_to_know_what_begins_one(starts):
    with pytest.raises(ValueError, match="needs `starts`"):
        Transformer(Model(**TINY, positions="words"), VOCABULARY, VOCABULARY, starts)


# --- the same weights, plainly ------------------------------------------------------------------------------


class Plain:
    """One sentence through the weights of a model: loops over positions and heads, no batch, no padding."""

    def __init__(self, model):
        self.config = model.config
        self.shared = model.config.tie_embeddings == "all"
        self.w = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
        self.weights = {"encoder": [], "decoder": [], "cross": []}  # per layer (heads, t, s)

    def logits(self, source, target_in):
        if source is not None:
            memory = self.embed(source, "source")
            for i in range(self.config.layers):
                memory = self.self_attention(memory, f"encoder.{i}", causal=False)
                memory = self.feed_forward(memory, f"encoder.{i}")
            memory = self.final_norm(memory, "encoder_norm")
        x = self.embed(target_in, "target")
        for i in range(self.config.decoder_layers or self.config.layers):
            x = self.self_attention(x, f"decoder.{i}", causal=True)
            x = x if source is None else self.cross_attention(x, memory, f"decoder.{i}")
            x = self.feed_forward(x, f"decoder.{i}")
        x = self.final_norm(x, "decoder_norm")
        tie = self.config.tie_embeddings
        matrix = "source" if self.shared else "output" if tie == "none" else "target"
        logits = np.array([[row @ column for column in self.w[f"{matrix}_embedding.weight"]] for row in x])
        return logits + self.w["output_bias"] if self.config.output_bias else logits

    def embed(self, ids, side):
        d = self.config.d_model
        matrix = self.w[f"{'source' if self.shared else side}_embedding.weight"]
        rows = [matrix[index] * math.sqrt(d) + self.position(ids, p, side) for p, index in enumerate(ids)]
        return np.array(rows)

    def position(self, ids, p, side):
        d = self.config.d_model
        if self.config.positions == "learned":
            return self.w[f"{side}_positions.table"][p]
        if self.config.positions == "sinusoidal":
            return self.sinusoids(p, d, 10000)
        starts = {"source": SOURCE_STARTS, "target": TARGET_STARTS}[side]
        begun = sum(starts[index] for index in ids[: p + 1])
        word = max(begun - 1, 0) if side == "source" else begun
        return np.concatenate((self.sinusoids(p, d // 2, 10000), self.sinusoids(word, d // 2, 60)))

    def sinusoids(self, p, width, base):
        values = []
        for i in range(0, width, 2):
            values += [math.sin(p / base ** (i / width)), math.cos(p / base ** (i / width))]
        return np.array(values)

    def self_attention(self, x, layer, causal):
        h, d_k, d_v = self.widths()
        packed = self.with_bias(f"{layer}.attention.qkv")
        parts = packed[: h * d_k], packed[h * d_k : 2 * h * d_k], packed[2 * h * d_k :]
        assert len(parts[2]) == h * d_v
        kind = "decoder" if causal else "encoder"
        out = self.with_bias(f"{layer}.attention.out")

        def sublayer(y):
            return self.heads(y, y, *parts, out, causal, kind)

        return self.residual(x, sublayer, f"{layer}.attention_residual")

    def cross_attention(self, x, memory, layer):
        h, d_k, _ = self.widths()
        packed = self.with_bias(f"{layer}.cross.key_value")
        parts = self.with_bias(f"{layer}.cross.query"), packed[: h * d_k], packed[h * d_k :]
        out = self.with_bias(f"{layer}.cross.out")

        def sublayer(y):
            return self.heads(y, memory, *parts, out, False, "cross")

        return self.residual(x, sublayer, f"{layer}.cross_residual")

    def with_bias(self, name):
        """Weights with a last column that holds the biases."""
        weight = self.w[f"{name}.weight"]
        bias = self.w[f"{name}.bias"] if self.config.attention_bias else np.zeros(len(weight))
        return np.column_stack((weight, bias))

    def widths(self):
        per_head = self.config.d_model // self.config.heads
        return self.config.heads, self.config.d_k or per_head, self.config.d_v or per_head

    def heads(self, x, memory, query, key, value, out, causal, kind):
        h, d_k, d_v = self.widths()
        x, memory = (np.pad(rows, ((0, 0), (0, 1)), constant_values=1.0) for rows in (x, memory))
        outputs, all_weights = np.zeros((len(x), h * d_v)), np.zeros((h, len(x), len(memory)))
        for head in range(h):
            w_q, w_k = query[head * d_k : (head + 1) * d_k], key[head * d_k : (head + 1) * d_k]
            w_v = value[head * d_v : (head + 1) * d_v]
            for i in range(len(x)):
                seen = list(range(i + 1 if causal else len(memory)))
                scores = np.array([(w_q @ x[i]) @ (w_k @ memory[j]) / math.sqrt(d_k) for j in seen])
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                all_weights[head, i, seen] = weights
                mixed = sum(weight * (w_v @ memory[j]) for weight, j in zip(weights, seen, strict=True))
                outputs[i, head * d_v : (head + 1) * d_v] = mixed
        self.weights[kind].append(all_weights)
        return np.array([out @ [*row, 1.0] for row in outputs])

    def activation(self, x):
        if self.config.activation == "silu":
            return x / (1 + np.exp(-x))
        return np.maximum(0.0, x)

    def feed_forward(self, x, layer):
        w = {name: self.w[f"{layer}.feed_forward.{name}"] for name in ("inner.weight", "outer.weight")}
        b = {name: self.w[f"{layer}.feed_forward.{name}"] for name in ("inner.bias", "outer.bias")}

        def sublayer(y):
            inner = [self.activation(w["inner.weight"] @ row + b["inner.bias"]) for row in y]
            return np.array([w["outer.weight"] @ row + b["outer.bias"] for row in inner])

        return self.residual(x, sublayer, f"{layer}.feed_forward_residual")

    def residual(self, x, sublayer, name):
        if self.config.norm == "pre":
            return x + sublayer(self.norm(x, f"{name}.norm"))
        return self.norm(x + sublayer(x), f"{name}.norm")

    def final_norm(self, x, name):
        return self.norm(x, name) if self.config.norm == "pre" else x

    def norm(self, x, name):
        rows = []
        for row in x:
            mean = sum(row) / len(row)
            variance = sum((value - mean) ** 2 for value in row) / len(row)
            normal = (row - mean) / math.sqrt(variance + self.config.norm_epsilon)
            rows.append(normal * self.w[f"{name}.weight"] + self.w[f"{name}.bias"])
        return np.array(rows)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize(
    ("tie", "positions", "decoder_layers"),
    [("all", "sinusoidal", None), ("target", "learned", 1), ("none", "words", 3)],
)
@pytest.mark.parametrize("others", [{}, {"d_k": 3, "d_v": 5, **LIKE_MARIAN}])
def test_logits_equal_a_plain_recomputation(norm, tie, positions, others, decoder_layers):
    depth = {"decoder_layers": decoder_layers}
    model = tiny(norm=norm, tie_embeddings=tie, positions=positions, max_positions=8, **depth, **others)
    with torch.no_grad():
        logits = model(padded(SOURCES), padded(TARGETS)).numpy()
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        expected = Plain(model).logits(source, target)
        np.testing.assert_allclose(logits[row, : len(target)], expected, rtol=0, atol=1e-6)


# --- attention weights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"norm": "pre", "d_k": 3, "d_v": 5, "decoder_layers": 1}])
def test_attention_is_the_plain_formula_without_padding_or_later_positions(changes):
    model = tiny(**changes)
    with torch.no_grad():
        found = model.attention_weights(padded(SOURCES), padded(TARGETS))
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        plain = Plain(model)
        plain.logits(source, target)
        n, m = len(source), len(target)
        for layers, kind, rows, columns in [
            (found.encoder, "encoder", n, n),
            (found.decoder, "decoder", m, m),
            (found.cross, "cross", m, n),
        ]:
            assert len(layers) == len(plain.weights[kind])
            for layer, expected in zip(layers, plain.weights[kind], strict=True):
                weights = layer[row, :, :rows]  # (heads, real queries, keys)
                np.testing.assert_allclose(weights[:, :, :columns], expected, rtol=0, atol=1e-6)
                np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=0, atol=1e-12)
                assert weights[:, :, columns:].eq(0).all()  # padding
        for layer in found.decoder:
            assert layer[row].triu(1).eq(0).all()  # later positions


def test_dropout_does_not_touch_attention_weights():
    model = tiny(dropout=0.5, attention_dropout=0.5, feed_forward_dropout=0.5)
    source, target = padded(SOURCES), padded(TARGETS)
    with torch.no_grad():
        expected = model.eval().attention_weights(source, target)
        found = model.train().attention_weights(source, target)
    assert model.training
    for layers, same in zip(found, expected, strict=True):
        assert all(map(torch.equal, layers, same))


# --- what depends on what -----------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["dropout", "attention_dropout", "feed_forward_dropout"])
def test_each_dropout_acts_in_training_alone_and_follows_the_seed(key):
    model, without = tiny(**{key: 0.5}), tiny()
    inputs = padded(SOURCES), padded(TARGETS)
    with torch.no_grad():
        assert torch.equal(model(*inputs), without(*inputs))
        model.train()
        drawn = []
        for seed in (3, 3, 4):
            torch.manual_seed(seed)
            drawn.append(model(*inputs))
        assert torch.equal(drawn[0], drawn[1])
        assert not torch.allclose(drawn[0], drawn[2])
        assert torch.equal(without.train()(*inputs), without.eval()(*inputs))
