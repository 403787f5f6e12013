"""The protocol's RPCs about shared memory, of the system and of CUDA devices."""

from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from serving.refusals import NotOfferedError
from serving.shared_memory import Region, SharedMemory
from serving.status import status_of


class SharedMemoryRpcs:
    """Registers and forgets regions. Tables and towers run on CPUs: there is no CUDA memory."""

    def __init__(self, memory: SharedMemory | None) -> None:
        """Keeps the server's regions.

        Args:
            memory: None: shared memory is not offered.
        """
        self._memory = memory

    def SystemSharedMemoryRegister(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Makes a region known by a name."""
        try:
            self._offered().register(
                request.name, request.key, offset=request.offset, byte_size=request.byte_size
            )
        except Exception as error:
            context.abort(*status_of(error))
        return service_pb2.SystemSharedMemoryRegisterResponse()

    def SystemSharedMemoryUnregister(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Forgets a region, or all; clients begin with that, so nothing to forget is no error."""
        if self._memory is not None:
            try:
                self._memory.unregister(request.name)
            except Exception as error:
                context.abort(*status_of(error))
        return service_pb2.SystemSharedMemoryUnregisterResponse()

    def SystemSharedMemoryStatus(self, request: Any, context: grpc.ServicerContext) -> Any:
        """What is registered: one region, or all."""
        regions: list[Region] = []
        try:
            if request.name:
                regions = [self._offered().find(request.name)]
            elif self._memory is not None:
                regions = list(self._memory.regions().values())
        except Exception as error:
            context.abort(*status_of(error))
        status = service_pb2.SystemSharedMemoryStatusResponse.RegionStatus
        return service_pb2.SystemSharedMemoryStatusResponse(
            regions={
                region.name: status(
                    name=region.name,
                    key=region.key,
                    offset=region.offset,
                    byte_size=region.byte_size,
                )
                for region in regions
            }
        )

    def CudaSharedMemoryRegister(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Refuses: there is no device."""
        words = "CUDA shared memory is not offered: this server runs on CPUs"
        context.abort(*status_of(NotOfferedError(words)))

    def CudaSharedMemoryUnregister(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Does nothing: clients begin with that."""
        return service_pb2.CudaSharedMemoryUnregisterResponse()

    def CudaSharedMemoryStatus(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Nothing is registered."""
        if request.name:
            words = f"no CUDA shared memory region {request.name!r} is registered"
            context.abort(grpc.StatusCode.NOT_FOUND, words)
        return service_pb2.CudaSharedMemoryStatusResponse()

    def _offered(self) -> SharedMemory:
        if self._memory is None:
            raise NotOfferedError("shared memory is not offered here (--shared-memory)")
        return self._memory
