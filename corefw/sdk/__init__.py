"""What packs build on beside the interfaces: a facade over the core's rooms, with a frozen list of public names.

Import from the module that has what is needed, never from the rooms behind it: those may change with every version.

======================  ==================================================================  =====
module                  for                                                                 torch
======================  ==================================================================  =====
``corefw.sdk.config``   reading configurations: the engine's, the model's, the plan         no
``corefw.sdk.core_launchers``  starting engine cores: as a child, and what they do seen from elsewhere   no
``corefw.sdk.devices``  numbers of devices, shares of CPUs, environments of children        no
``corefw.sdk.engine``   generating text on the running engine                               no
``corefw.sdk.executors``  what executors and their workers tell each other                          no
``corefw.sdk.models``   model classes: the decoder base, tap points                         yes
``corefw.sdk.plugins``  what every plugin may want: hooks, selection, names, the log        no
``corefw.sdk.rendering``  from texts and chats to token ids, and back                       no
``corefw.sdk.scheduling``  the core's scheduler, to derive from                                   no
``corefw.sdk.server``   endpoints: the server's state, bodies, errors, answers              no
``corefw.sdk.shapes``   sizes and layer kinds that model configurations state               no
``corefw.sdk.weights``  quantisation methods: weights in blocks                             yes
``corefw.sdk.worker``   executors: what they run in their workers                           yes
======================  ==================================================================  =====
"""

from __future__ import annotations

__all__: list[str] = []
