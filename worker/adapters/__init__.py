"""Thin adapters between the client and agent frameworks, each behind an extra of its own.

``worker.adapters.langgraph`` needs ``tidegate[langgraph]``, ``worker.adapters.openai_agents`` needs
``tidegate[openai-agents]``; what they share is here and needs neither.
"""

from worker.adapters.asking import Settlement
from worker.adapters.errors import (
    AdapterError,
    AnswerHidden,
    BadQuestion,
    Busy,
    LeaseLost,
    MissingExtra,
    NothingToRun,
    QuestionChanged,
    RunInDoubt,
)
from worker.adapters.questions import Question

__all__ = [
    "AdapterError",
    "AnswerHidden",
    "BadQuestion",
    "Busy",
    "LeaseLost",
    "MissingExtra",
    "NothingToRun",
    "Question",
    "QuestionChanged",
    "RunInDoubt",
    "Settlement",
]
