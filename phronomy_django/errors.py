"""Every exception that phronomy_django raises, for users to import (the tree is in ``domain.errors``)."""

from phronomy_django.domain.errors import *  # noqa: F403
from phronomy_django.domain.errors import __all__ as __all__
