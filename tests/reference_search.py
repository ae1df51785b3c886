"""Random models worth searching, and the plain search: every hypothesis decoded from its beginning at every step."""

import math

import torch
from plain_search import beam_search

from nmt.batch import pad_ids
from nmt.model.transformer import Memory, Transformer
from nmt.recipe import Model
from nmt.text.symbols import BOS, EOS, PAD, UNK


def random_model(source, target, favourite=EOS, liking=6.0, seed=3, **changes):
    """A small random Transformer over vocabularies of these sizes; outputs differ, vary in length, depend on the input.

    Its logits of one symbol are raised by `liking`. It computes in fp64: what is compared would else hold except
    where two hypotheses are equally good but for rounding.
    """
    torch.manual_seed(seed)
    settings = {"layers": 2, "d_model": 16, "d_ff": 32, "heads": 2, "tie_embeddings": "none"} | changes
    starts = tuple([index % 3 == 1 for index in range(size)] for size in (source, target))
    model = Transformer(Model(**settings), source, target, starts).double().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embedding" not in name:
                weight.mul_(3.0)
        model.output_embedding.weight.mul_(2.0)
        direction = torch.nn.functional.normalize(torch.randn(model.config.d_model).double(), dim=0)
        model.output_embedding.weight.sub_(torch.outer(model.output_embedding.weight @ direction, direction))
        model.output_embedding.weight[favourite] += 2.0 * direction
        post = model.config.norm == "post"
        last = model.decoder[-1].feed_forward_residual.norm if post else model.decoder_norm
        last.bias.add_(direction * liking / 2.0)
    return model


class UncachedStep:
    """The step function of one model, or of several by the mean of their probabilities."""

    def __init__(self, models, sources):
        source = pad_ids(sources, after=EOS)
        self.members = [(model, model.encode(source)) for model in models]

    def __call__(self, ids, sentences):
        n, beam, length = ids.shape
        of = sentences.repeat_interleave(beam)
        found = []
        for model, memory in self.members:
            mask = None if memory.mask is None else memory.mask[of]
            logits = model.decode(ids.view(n * beam, length), Memory(memory.states[of], mask))[:, -1]
            found.append(logits.float().softmax(-1))
        log_probs = torch.stack(found).mean(0).log()
        log_probs[:, [PAD, UNK, BOS]] = -math.inf
        return log_probs.view(n, beam, -1)


@torch.inference_mode()
def reference_search(models, sources, caps, **options):
    """Hypotheses of each of `sources`, ids without `</s>`, all in one batch."""
    return beam_search(UncachedStep(models, sources), caps, bos=BOS, eos=EOS, **options)
