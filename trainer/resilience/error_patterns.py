"""Which end class the text of an error stands for: messages of CUDA, NCCL, gloo, torch, the kernel and libraries.

Most of these errors arrive as RuntimeError, so only the text distinguishes them. The first row that matches decides:
rows that name a cause come before rows that name a consequence, because messages of NCCL contain both. A row is as
specific as its messages allow: "nccl" or "out of memory" alone say nothing.
"""

import re
from dataclasses import dataclass

from trainer.contract.run import EndClass


@dataclass(frozen=True)
class Pattern:
    """Messages of one end class. `text`: a regular expression, in any case. `because_of_peer`: they usually follow the
    end of another rank."""

    end_class: EndClass
    text: str
    because_of_peer: bool = False

    def matches(self, message: str) -> bool:
        """Return whether the message is one of these."""
        return re.search(self.text, message, re.IGNORECASE) is not None


E = EndClass
_CUDA = r"\b(cuda|hip)( driver)? (error|failure)\b[^\n]{0,12}\b"  # torch's prefix and NCCL's "Cuda failure 2 '"

PATTERNS = (
    # Memory of the device. c10/cuda/CUDACachingAllocator.cpp: "CUDA out of memory. Tried to allocate ..."; CUDA runtime
    # API, cudaErrorMemoryAllocation: "out of memory", which torch and NCCL (checks.h: "Cuda failure 2 '...'") quote.
    Pattern(E.OUT_OF_MEMORY, r"\b(cuda|hip|xpu) out of memory"),
    Pattern(E.OUT_OF_MEMORY, rf"{_CUDA}out of memory"),
    Pattern(E.OUT_OF_MEMORY, r"\b(cublas|cudnn|cusparse|cusolver|cufft)(_status)?_alloc_failed"),
    # Memory of the host. c10/core/impl/alloc_cpu.cpp; the C++ library; strerror(ENOMEM).
    Pattern(E.OUT_OF_MEMORY, r"defaultcpuallocator: (can't allocate|not enough) memory"),
    Pattern(E.OUT_OF_MEMORY, r"\bstd::bad_alloc|\bcannot allocate memory\b"),
    # Faults of a GPU, its links or its driver. CUDA runtime API, enum cudaError: ECCUncorrectable (214),
    # NvlinkUncorrectable (220), Contained (226), DevicesUnavailable (46), NoDevice (100), InsufficientDriver (35),
    # InitializationError (3), SystemNotReady (802), SystemDriverMismatch (803), CompatNotSupportedOnDevice (804).
    Pattern(E.GPU_FAULT, r"uncorrectable (double.bit )?ecc error"),
    Pattern(E.GPU_FAULT, r"uncorrectable nvlink error|invalid access of peer gpu memory over nvlink"),
    Pattern(E.GPU_FAULT, r"cuda-capable device\(s\) is/are busy or unavailable|no cuda-capable device is detected"),
    Pattern(E.GPU_FAULT, r"cuda driver version is insufficient for cuda runtime version"),
    Pattern(E.GPU_FAULT, rf"{_CUDA}(initialization error|system not yet initialized)"),
    Pattern(E.GPU_FAULT, r"unsupported display driver / cuda driver combination"),
    Pattern(E.GPU_FAULT, r"forward compatibility was attempted on non supported hw"),
    # torch/cuda/__init__.py and c10/cuda/CUDAFunctions.cpp; NVML (nvmlErrorString), also quoted by NCCL.
    Pattern(E.GPU_FAULT, r"no cuda gpus are available|found no nvidia driver on your system"),
    Pattern(E.GPU_FAULT, r"the nvidia driver on your system is too old"),
    Pattern(E.GPU_FAULT, r"driver/library version mismatch|\bgpu is lost\b|gpu requires reset"),
    Pattern(E.GPU_FAULT, r"unable to determine the device handle for gpu"),
    # Kernel modules of NVIDIA (NVRM) and AMD (amdgpu); the HIP runtime prints the last and aborts.
    Pattern(E.GPU_FAULT, r"gpu has fallen off the bus|\bdevice lost\b|hw exception by gpu node"),
    # Exceptions of a kernel: the code is suspected first, the device when it repeats (`recovery.py` of the platform).
    # enum cudaError: IllegalAddress (700), Assert (710), HardwareStackError (714), IllegalInstruction (715),
    # MisalignedAddress (716), InvalidAddressSpace (717), InvalidPc (718), LaunchFailure (719, which CUDA's manual
    # explains by invalid pointers), LaunchTimeout (702), Unknown (999).
    Pattern(E.DEVICE_EXCEPTION, r"an illegal memory access was encountered|an illegal instruction was encountered"),
    Pattern(E.DEVICE_EXCEPTION, r"device-side assert triggered|unspecified launch failure"),
    Pattern(E.DEVICE_EXCEPTION, rf"{_CUDA}(misaligned address|hardware stack error)"),
    Pattern(E.DEVICE_EXCEPTION, rf"{_CUDA}(invalid program counter|unknown error)"),
    Pattern(E.DEVICE_EXCEPTION, r"operation not supported on global/shared address space"),
    Pattern(E.DEVICE_EXCEPTION, r"the launch timed out and was terminated|memory access fault by gpu node"),
    # Libraries on top of CUDA say no more than that a kernel failed (aten/src/ATen/cuda/Exceptions.h); NCCL's
    # ncclUnhandledCudaError without the failure that it met.
    Pattern(E.DEVICE_EXCEPTION, r"cublas_status_(execution_failed|internal_error|not_initialized)"),
    Pattern(E.DEVICE_EXCEPTION, r"cudnn_status_(execution_failed|internal_error)[a-z_]*"),
    Pattern(E.DEVICE_EXCEPTION, r"unhandled cuda error"),
    # The node's file systems, as strerror() says it; also in RuntimeErrors of torch, and of NCCL for /dev/shm.
    Pattern(E.NODE_STORAGE_ERROR, r"no space left on device|read-only file system|disk quota exceeded"),
    Pattern(E.NODE_STORAGE_ERROR, r"too many open files|stale (nfs )?file handle|input/output error|remote i/o error"),
    Pattern(E.NODE_STORAGE_ERROR, r"insufficient shared memory \(shm\)"),
    # The network. NCCL, transport/net_ib: "NET/IB : Got completion from peer ... with status=12", and its wrappers of
    # verbs; resolvers (gai_strerror); torch/csrc/distributed/c10d/socket.cpp; strerror() of unreachable hosts.
    Pattern(E.NETWORK_ERROR, r"net/ib\b[^\n]*(got completion from peer|async (fatal )?event|port error)", True),
    Pattern(E.NETWORK_ERROR, r"\bibv_[a-z_]+\b[^\n]*\b(failed|error)\b", True),
    Pattern(E.NETWORK_ERROR, r"ncclsystemerror|unhandled system error", True),
    Pattern(E.NETWORK_ERROR, r"name or service not known|temporary failure in name resolution"),
    Pattern(E.NETWORK_ERROR, r"no address associated with hostname|network addresses [^\n]*cannot be retrieved"),
    Pattern(E.NETWORK_ERROR, r"no route to host|network is unreachable|network is down", True),
    Pattern(E.NETWORK_ERROR, r"the client socket has (failed to connect|timed out)", True),
    Pattern(E.NETWORK_ERROR, r"the server socket has failed to (listen|bind)|no socket interface found"),
    Pattern(E.NETWORK_ERROR, r"timed out after \d+ seconds waiting for clients", True),
    # A lost or silent peer. c10d/ProcessGroupNCCL.cpp (watchdog), ProcessGroupGloo.cpp and TCPStore of torch; NCCL's
    # ncclRemoteError and misc/socket.cc; gloo/transport/tcp.
    Pattern(E.COLLECTIVE_TIMEOUT, r"caught collective operation timeout|milliseconds before timing out", True),
    Pattern(E.COLLECTIVE_TIMEOUT, r"nccl communicator (was|encountered) [^\n]*abort|nccl timeout", True),
    Pattern(E.COLLECTIVE_TIMEOUT, r"remote process exited or there was a network error|ncclremoteerror", True),
    Pattern(E.COLLECTIVE_TIMEOUT, r"connection (was )?closed by (remote )?peer|connection was likely closed", True),
    Pattern(E.COLLECTIVE_TIMEOUT, r"connection (reset|refused)|broken pipe|socket timeout", True),
    Pattern(E.COLLECTIVE_TIMEOUT, r"timed out waiting \d+ ?ms for (send|recv)|timed out in monitoredbarrier", True),
    Pattern(E.COLLECTIVE_TIMEOUT, r"connectfullmesh failed|timeout caused pair closure|gloo/transport", True),
    Pattern(E.COLLECTIVE_TIMEOUT, r"wait timeout after \d+ ?ms|\bsocket [^\n]* timed out after \d+ ?ms", True),
    Pattern(E.COLLECTIVE_TIMEOUT, r"\b(recvvalue|sendbytes|recvbytes) failed|failed to recv, got 0 bytes", True),
    # Data. Apache Arrow (parquet/file_reader.cc), the gzip module, CPython's codecs.
    Pattern(E.DATA_ERROR, r"parquet magic bytes not found|couldn't deserialize thrift|not a gzipped file"),
    Pattern(E.DATA_ERROR, r"^(arrowinvalid|unicodedecodeerror|badgzipfile): "),
)  # fmt: skip

# The "Xid" numbers of NVIDIA's catalog (docs.nvidia.com/deploy/xid-errors) by what they say of the GPU. 43 and 45
# follow from other errors, and 154 names the repair.
FAULT_XIDS = frozenset({46, 48, 62, 63, 64, 74, 79, 92, 94, 95, 110, 119, 120, 140, 143, *range(144, 151)})
EXCEPTION_XIDS = frozenset({8, 13, 31, 69, 109})
_XID = re.compile(r"NVRM: Xid \([^)]*\): (\d+)\b")


def classify_text(message: str) -> Pattern | None:
    """Return the first row that matches the message."""
    return next((pattern for pattern in PATTERNS if pattern.matches(message)), None)


def classify_xid(line: str) -> EndClass | None:
    """Return what a line of the kernel log says of a GPU, if anything."""
    found = _XID.search(line)
    if found is None:
        return None
    number = int(found[1])
    if number in FAULT_XIDS:
        return EndClass.GPU_FAULT
    return EndClass.DEVICE_EXCEPTION if number in EXCEPTION_XIDS else None
