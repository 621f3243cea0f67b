"""The tasks: every public module but ``types`` is one, and the file is its registration.

A task defines ``ask(context, lengths, *, seed, options) -> Iterator[Request]``, ``grade(request,
response, context) -> Sample``, ``score(samples) -> Score``, ``VERSION`` and ``METRIC``. Its options
are the keyword-only parameters of ``ask``. The types are exported here.
"""

from tasks.types import Divergence as Divergence
from tasks.types import DivergenceResponse as DivergenceResponse
from tasks.types import Document as Document
from tasks.types import Generate as Generate
from tasks.types import Generated as Generated
from tasks.types import Group as Group
from tasks.types import GroupResponse as GroupResponse
from tasks.types import Loglikelihood as Loglikelihood
from tasks.types import LoglikelihoodResponse as LoglikelihoodResponse
from tasks.types import Request as Request
from tasks.types import Response as Response
from tasks.types import Sample as Sample
from tasks.types import Score as Score
from tasks.types import TaskContext as TaskContext
