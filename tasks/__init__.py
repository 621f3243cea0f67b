"""The tasks: every public module but ``types`` is one, and the file is its registration.

A task defines ``ask(context, lengths, *, seed, options) -> Iterator[Request]``, ``grade(request,
response, context) -> Sample``, ``score(samples) -> Score``, ``VERSION`` and ``METRIC``. Its options
are the keyword-only parameters of ``ask``. The types are exported here.
"""

from ropewalk.tasks.types import Divergence as Divergence
from ropewalk.tasks.types import DivergenceResponse as DivergenceResponse
from ropewalk.tasks.types import Document as Document
from ropewalk.tasks.types import Generate as Generate
from ropewalk.tasks.types import Generated as Generated
from ropewalk.tasks.types import Group as Group
from ropewalk.tasks.types import GroupResponse as GroupResponse
from ropewalk.tasks.types import Loglikelihood as Loglikelihood
from ropewalk.tasks.types import LoglikelihoodResponse as LoglikelihoodResponse
from ropewalk.tasks.types import Request as Request
from ropewalk.tasks.types import Response as Response
from ropewalk.tasks.types import Sample as Sample
from ropewalk.tasks.types import Score as Score
from ropewalk.tasks.types import TaskContext as TaskContext
