"""Dead letters are sent again, by operators: ``ackstream redrive``, the live page, and programs."""

from ackstream.redriving.runs import RedriveReport as RedriveReport
from ackstream.redriving.runs import redrive as redrive
