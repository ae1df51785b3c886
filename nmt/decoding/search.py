"""Our own engine: prepares models for a device and precision, then searches and samples with them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial

from nmt.compute.choice import for_search, search_precision
from nmt.compute.native import kernels
from nmt.decoding.beam import Found, Search, SearchModels, batch_tokens
from nmt.decoding.constraints import MakeConstraint, MinLength
from nmt.decoding.engine import Hypothesis, Source, SourceQueue
from nmt.decoding.forced import annotate
from nmt.decoding.placement import Placer
from nmt.decoding.sampling import Sampling
from nmt.model.transformer import Transformer
from nmt.recipe import Decoding
from nmt.system.device import available_memory, check_room


class SearchEngine(SearchModels):
    """`Engine` for one model or an ensemble, whose probabilities are averaged."""

    def __init__(
        self,
        models: Sequence[Transformer],
        decoding: Decoding,
        constraints: Sequence[MakeConstraint] = (),
        say: Callable[[str], None] = lambda line: None,
        annotated: bool = False,
        placer: Callable[[Sequence[Transformer]], Placer] | None = None,
    ) -> None:
        """Prepare the models; the default constraint is `decoding.min_length` alone.

        `placer` makes the object that puts phrases into results. `say` reports a change of precision or batch size, and
        missing C kernels. If `annotated`, hypotheses have alignments and log-probabilities. Raise UserError if the
        machine does not support `decoding.precision` or lacks memory for even one sentence.
        """
        self.decoding, self.say = decoding, say
        self._annotate = partial(annotate, models) if annotated else None
        self._placer = placer(models) if placer else None
        self.constraints = constraints or [partial(MinLength, decoding.min_length)]
        self.device = models[0].output_embedding.weight.device
        self.vocabulary = len(models[0].output_embedding.weight)
        check_room(  # a bundle may ask for more than any machine has
            4 * decoding.beam * sum(self.vocabulary + model.config.d_model for model in models),
            available_memory(self.device),
            f"decoding.beam: the logits of {decoding.beam} hypotheses over {self.vocabulary:,} symbols",
            "--set decoding.beam=4",
        )
        self.precision = search_precision(decoding.precision, self.device)
        if decoding.precision not in ("auto", self.precision):
            say(f"precision {decoding.precision}: not faster on this machine, so {self.precision} is used")
        if self.device.type == "cpu" and kernels() is None:
            say("C kernels are missing, which makes this slower: install a C compiler, then nmt again")
        self.models, self.logits, beams = zip(*(for_search(model, self.precision) for model in models), strict=True)
        self.beam_operations = beams[0]
        self.batch_tokens = batch_tokens(decoding, models)

    def wants_others(self, source: Source, hypotheses: Sequence[Hypothesis]) -> bool:
        return self._placer is not None and not any(self._placer.copies(source, each) for each in hypotheses)

    def completes(self, source: Source, hypotheses: Sequence[Hypothesis]) -> bool:
        if self._annotate is not None or source.phrases or source.whole or source.aligned:
            return True
        return self.wants_others(source, hypotheses)

    def complete(self, found: list[Found], n_best: int | None) -> tuple[list[Found], list[Source]]:
        again: list[Source] = []
        if self._placer and n_best is not None:
            found, again = self._placer.place(found, n_best)
        return self._annotate(found) if self._annotate else found, again

    def search(self, queue: SourceQueue, n_best: int) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        return Search(self, self.decoding.beam, n_best).run(queue)

    def sample(self, queue: SourceQueue, count: int) -> Generator[tuple[int, list[Hypothesis]], None, None]:
        return Sampling(self, count).run(queue)
