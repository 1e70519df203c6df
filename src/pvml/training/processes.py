"""Several processes that train one model: who I am, what is mine, and what is added up.

`torchrun` starts them and PyTorch does the rest: DDP, where each holds the whole model and they
average gradients, or FSDP2, where each holds a share of it. Alone, every call here is a no-op.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch as t
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from pvml.device import pick_device
from pvml.errors import PvmlError
from pvml.modules.transformer import Transformer
from pvml.runs.weights import build_model
from pvml.training.args import Parallel
from pvml.training.losses import NextTokenLoss

SECONDS_TO_LET_GO = 0.1
"""How long Python stands still before it may end: a thread of gloo's that still holds a finished
exchange's tensors needs Python to free them, and aborts the process where it ends meanwhile
(https://github.com/pytorch/pytorch/issues/190489). A model under FSDP keeps such threads alive."""


class Processes:
    """This process among all that train the model."""

    def __init__(self, rank: int, count: int, device: t.device):
        self.rank = rank
        """This one's number, from 0."""
        self.count = count
        """How many there are."""
        self.device = device
        """Where this one computes."""

    @property
    def first(self) -> bool:
        """Whether this is the one that prints and writes."""
        return self.rank == 0

    def share(self, rows: Sequence[int], pieces: int = 1) -> list[list[int]]:
        """This process's part of a step's rows, cut into pieces of nearly equal size.

        Raises: PvmlError if a piece would be empty: every process must take part in every one.
        """
        n = self.count * pieces
        if len(rows) < n:
            raise PvmlError(
                f"batch_size {len(rows)} cannot be shared by {self.count} processes in "
                f"{pieces} pieces each: give a batch_size of at least {n}"
            )
        bounds = [len(rows) * i // n for i in range(n + 1)]
        mine = range(self.rank * pieces, (self.rank + 1) * pieces)
        return [list(rows[bounds[i] : bounds[i + 1]]) for i in mine]

    def sum(self, x: Tensor) -> Tensor:
        """The sum of all processes' tensors, which each of them gets."""
        if self.count > 1:
            x = x.clone()
            dist.all_reduce(x)
        return x

    def any(self, mine: bool) -> bool:
        """Whether it is so for any process: all must ask, and all get the same answer."""
        if self.count == 1:
            return mine
        return bool(self.sum(t.tensor(float(mine), device=self.device)) > 0)

    def wait(self) -> None:
        """Return when every process has come here."""
        if self.count > 1:
            dist.barrier()

    @contextmanager
    def first_goes_ahead(self) -> Iterator[None]:
        """The first process runs the block alone, the others after it, when its files are there.

        Raises: PvmlError in all of them, with what the first one's says, if that one fails.
        """
        if self.count > 1 and not self.first:
            failure = self._hear()
            if failure:
                raise PvmlError(failure)
        failure = "the first process failed, and says how"
        try:
            yield
            failure = ""
        except PvmlError as error:
            failure = str(error)
            raise
        finally:
            if self.count > 1 and self.first:
                self._tell(failure)

    def _tell(self, message: str) -> None:
        dist.broadcast_object_list([message], src=0, device=self.device)

    def _hear(self) -> str:
        heard = [""]
        dist.broadcast_object_list(heard, src=0, device=self.device)
        return heard[0]

    def spread(self, loss: NextTokenLoss, parallel: Parallel) -> nn.Module:
        """The loss, called as before, such that gradients come out as means over the processes.

        Under "fsdp" the model's parameters become shares from here on; `whole` puts it together.
        """
        if self.count == 1:
            return loss
        if parallel == "fsdp":
            for p in loss.parameters():
                p.data = p.data.contiguous()  # it shards no other layout
            mesh = init_device_mesh(self.device.type, (self.count,))
            for block in loss.model.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(loss, mesh=mesh)
            return loss
        ids = None if self.device.type == "cpu" else [self.device]
        return DistributedDataParallel(loss, device_ids=ids)

    def whole(self, model: Transformer) -> Transformer:
        """The model itself, or, if its parameters are shares, a copy with all of each.

        Every process must call it, and holds the copy: the model must fit into one device for it.
        """
        state = model.state_dict()
        if not any(isinstance(x, DTensor) for x in state.values()):
            return model
        full = {k: x.full_tensor() if isinstance(x, DTensor) else x for k, x in state.items()}
        return build_model(model.cfg, full, "the shared model", self.device)


def not_yet_added(loss: nn.Module) -> AbstractContextManager[object]:
    """Within it, backward passes keep their gradients to this process: another piece follows."""
    return loss.no_sync() if isinstance(loss, DistributedDataParallel) else nullcontext()


@contextmanager
def joined(device: str | None = None) -> Iterator[Processes]:
    """The processes that torchrun started, connected while the block runs; otherwise this one.

    device: what is computed on, as in `pick_device`; an accelerator's number is the process's own.

    Raises: PvmlError for a device that this machine has not, or has too few of; or instead of the
    backend's error when another process has ended.
    """
    if not dist.is_torchelastic_launched():
        yield Processes(0, 1, pick_device(device))
        return
    local, count = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    picked = pick_device(device)
    if picked.type != "cpu":
        picked = pick_device(f"{picked.type}:{local}")
        t.accelerator.set_device_index(local)
    dist.init_process_group(dist.get_default_backend_for_device(picked))
    try:
        yield Processes(dist.get_rank(), count, picked)
    except RuntimeError as error:
        if not _is_lost_connection(error):
            raise
        raise PvmlError(
            "another process of this training has ended, so this one cannot go on: the other one "
            "says why"
        ) from error
    finally:
        dist.destroy_process_group()
        time.sleep(SECONDS_TO_LET_GO)


def _is_lost_connection(error: RuntimeError) -> bool:
    """Whether a process could not reach another one: NCCL has a class for it, gloo its name."""
    return isinstance(error, dist.DistBackendError) or "gloo" in str(error)
