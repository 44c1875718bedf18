from __future__ import annotations

from corefw.builtins.communicators.gloo import GlooCommunicator
from corefw.testing.communicator_suite import CommunicatorSuite


class TestGloo(CommunicatorSuite):
    plugin = GlooCommunicator
