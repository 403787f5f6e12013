"""Recognition of optimizers' states by their keys."""

import re

# Names of torch's and FBGEMM's optimizers for their states, keys of checkpoints that hold these,
# and numbers of parameters, as in `state_dict()` of an optimizer.
_STATE = re.compile(
    r"(.*\.)?((\w+_)?optim(izer)?s?(_\w+)?|(max_)?exp_avg(_sq)?|square_avg|grad_avg|acc_delta"
    r"|momentum_buffer|momentum_?[12]|exp_inf|state\.\d+\.(?!weight|bias)\w+)(\..*)?",
    re.DOTALL,
)


def is_optimizer_state(key: str) -> bool:
    """True for keys such as `optim.state.0.exp_avg` and `emb.weight.momentum1`."""
    return _STATE.fullmatch(key) is not None
