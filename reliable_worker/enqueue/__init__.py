"""Floor 2: putting jobs in. Imports postgres and below.

The public function is `reliable_worker.enqueue`, and so is the name of this package. Importing any
module of it puts the package there, whatever stood there before; therefore the package itself can
be called, and does what the function does.
"""

import sys
from types import ModuleType

from reliable_worker.enqueue.enqueue import enqueue as _enqueue


class _CallablePackage(ModuleType):
    __call__ = staticmethod(_enqueue)


sys.modules[__name__].__class__ = _CallablePackage
