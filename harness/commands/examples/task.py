"""task: what it measures and where it comes from, in one line."""

from collections.abc import Iterator, Sequence

from ropewalk.tasks import Loglikelihood, LoglikelihoodResponse, Sample, Score, TaskContext

VERSION = 1  # raise it when the same answer would get another number
METRIC = "accuracy"


def ask(
    context: TaskContext, lengths: Sequence[int], *, seed: int = 0, trials: int = 4
) -> Iterator[Loglikelihood]:
    """Yield the requests of every length: inputs in tokens, the targets from ``start`` on.

    Here the next token of a document after more and more context: the same targets at every length.
    Keyword-only parameters are the options; ``seed`` is that of the sweep. Raise ValueError, in a
    sentence, where no request is possible.
    """
    opening, longest = context.opening, max(lengths)
    fitting = [text for text in context.documents() if len(text.tokens) >= longest + trials]
    if trials < 1:
        raise ValueError(f"trials must be 1 or more, got {trials}")
    if not fitting:
        raise ValueError(f"no document has {longest + trials} tokens")
    for length in lengths:
        for text in fitting:
            for trial in range(trials):
                end = longest + trial
                tokens = (*opening, *text.tokens[end - length + len(opening) : end])
                name = f"{text.name} {trial}"
                yield Loglikelihood(tokens, length - 1, doc_id=name)


def grade(request: Loglikelihood, response: LoglikelihoodResponse, context: TaskContext) -> Sample:
    """Return a value over a weight of one: here 1 where greedy decoding gives the target."""
    hit = response.argmax[0] == request.tokens[request.start]
    return Sample(request.doc_id, float(hit), 1, {"nats": response.nll[0]})


def score(samples: Sequence[Sample]) -> Score:
    """Return the number of a cell, with a 95 % interval (None where there is none) and n."""
    hits = sum(sample.value for sample in samples)
    return Score(hits / len(samples), None, None, len(samples))
