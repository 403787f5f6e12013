"""What each RPC needs: the one table. What is not in it needs the scope admin."""

from serving.access import Access

_INFERENCE = "inference.GRPCInferenceService"
_REFLECTION = "ServerReflectionInfo"

RPC_ACCESS = {
    # Probes have no tokens, and these say nothing of the models.
    "/grpc.health.v1.Health/Check": Access.OPEN,
    "/grpc.health.v1.Health/Watch": Access.OPEN,
    f"/{_INFERENCE}/ServerLive": Access.OPEN,
    f"/{_INFERENCE}/ServerReady": Access.OPEN,
    f"/{_INFERENCE}/ServerMetadata": Access.TOKEN,
    f"/{_INFERENCE}/ModelReady": Access.TOKEN,
    f"/{_INFERENCE}/ModelMetadata": Access.TOKEN,
    f"/{_INFERENCE}/ModelConfig": Access.TOKEN,
    f"/{_INFERENCE}/RepositoryIndex": Access.TOKEN,
    f"/grpc.reflection.v1alpha.ServerReflection/{_REFLECTION}": Access.TOKEN,
    f"/{_INFERENCE}/ModelInfer": Access.PREDICT,
    f"/{_INFERENCE}/ModelStreamInfer": Access.PREDICT,
    "/sharded_infer.v1.Predictor/Predict": Access.PREDICT,
    f"/{_INFERENCE}/ModelStatistics": Access.METRICS,
    # Admin, though the default: these are the ones there are.
    f"/{_INFERENCE}/RepositoryModelLoad": Access.ADMIN,
    f"/{_INFERENCE}/RepositoryModelUnload": Access.ADMIN,
    f"/{_INFERENCE}/SystemSharedMemoryStatus": Access.ADMIN,
    f"/{_INFERENCE}/SystemSharedMemoryRegister": Access.ADMIN,
    f"/{_INFERENCE}/SystemSharedMemoryUnregister": Access.ADMIN,
    f"/{_INFERENCE}/TraceSetting": Access.ADMIN,
    f"/{_INFERENCE}/LogSettings": Access.ADMIN,
}


def access_of(path: str) -> Access:
    """What a call of `/service/Method` needs."""
    return RPC_ACCESS.get(path, Access.ADMIN)
