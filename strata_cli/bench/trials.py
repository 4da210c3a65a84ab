"""Which function makes the sides of which trial: the names of `workloads` as code."""

from collections.abc import Callable, Mapping

from .agents import agents
from .copies import park, restore
from .crowd import crowd, crowd10
from .desk import Desk
from .memory import memory
from .restarts import again, equal, restart, root
from .runner import Trial
from .serving import serving
from .written import file, shared, turns

TRIALS: Mapping[str, Callable[[Desk], Trial]] = {
    "restart": restart,
    "agents": agents,
    "root": root,
    "turns": turns,
    "shared": shared,
    "park": park,
    "restore": restore,
    "memory": memory,
    "again": again,
    "file": file,
    "equal": equal,
    "serving": serving,
    "crowd": crowd,
    "crowd10": crowd10,
}
