"""Messages of CUDA, NCCL, gloo, torch and the kernel as runs have shown them, with the class that each stands for."""

from trainer.contract.run import EndClass

E = EndClass
WATCHDOG = "[PG ID 0 PG GUID 0(default_pg) Rank 3] "
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"

# Texts of RuntimeErrors and of its classes: torch.AcceleratorError, DistBackendError, DistNetworkError, DistStoreError.
MESSAGES: list[tuple[EndClass, str]] = [
    # memory of the device and of the host
    (E.OUT_OF_MEMORY, "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"),
    (E.OUT_OF_MEMORY, "HIP out of memory. Tried to allocate 512.00 MiB. GPU 3 has a total capacity of 63.98 GiB"),
    (E.OUT_OF_MEMORY, "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    (E.OUT_OF_MEMORY, "CUDA driver error: out of memory"),
    (E.OUT_OF_MEMORY, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    (E.OUT_OF_MEMORY, "cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    (
        E.OUT_OF_MEMORY,
        "NCCL error in: ProcessGroupNCCL.cpp:3690, unhandled cuda error (run with NCCL_DEBUG=INFO for details)\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
    ),
    (E.OUT_OF_MEMORY, "[enforce fail at alloc_cpu.cpp:116] . DefaultCPUAllocator: can't allocate memory: you tried"),
    (E.OUT_OF_MEMORY, "[enforce fail at alloc_cpu.cpp:75] . DefaultCPUAllocator: not enough memory: you tried to"),
    (E.OUT_OF_MEMORY, "unable to mmap 268435456 bytes from file </dev/shm/x>: Cannot allocate memory (12)"),
    (E.OUT_OF_MEMORY, "std::bad_alloc"),
    # faults of a GPU, its links or its driver
    (E.GPU_FAULT, "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously"),
    (E.GPU_FAULT, "CUDA error: uncorrectable NVLink error detected during the execution"),
    (E.GPU_FAULT, "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error"),
    (E.GPU_FAULT, "CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
    (E.GPU_FAULT, "CUDA error: no CUDA-capable device is detected"),
    (E.GPU_FAULT, "CUDA error: initialization error"),
    (E.GPU_FAULT, "CUDA error: system not yet initialized"),
    (E.GPU_FAULT, "CUDA error: system has unsupported display driver / cuda driver combination"),
    (E.GPU_FAULT, "CUDA error: CUDA driver version is insufficient for CUDA runtime version"),
    (E.GPU_FAULT, "Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on non "
                  "supported HW"),
    (E.GPU_FAULT, "No CUDA GPUs are available"),
    (E.GPU_FAULT, "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"),
    (E.GPU_FAULT, "The NVIDIA driver on your system is too old (found version 11040)."),
    (E.GPU_FAULT, "Failed to initialize NVML: Driver/library version mismatch"),
    (E.GPU_FAULT, "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost. Reboot the system"),
    (E.GPU_FAULT, "NVRM: GPU at PCI:0000:3b:00: GPU has fallen off the bus."),
    (
        E.GPU_FAULT,
        f"{WATCHDOG}Process group watchdog thread terminated with exception: CUDA error: uncorrectable ECC error "
        "encountered",
    ),
    (
        E.GPU_FAULT,
        "NCCL error in: ProcessGroupNCCL.cpp:2020, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL "
        "version 2.27.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
        "Cuda failure 214 'uncorrectable ECC error encountered'",
    ),
    # exceptions of kernels
    (E.DEVICE_EXCEPTION, "CUDA error: an illegal memory access was encountered"),
    (E.DEVICE_EXCEPTION, "CUDA error: device-side assert triggered"),
    (E.DEVICE_EXCEPTION, "CUDA error: unspecified launch failure"),
    (E.DEVICE_EXCEPTION, "CUDA error: an illegal instruction was encountered"),
    (E.DEVICE_EXCEPTION, "CUDA error: misaligned address"),
    (E.DEVICE_EXCEPTION, "CUDA error: invalid program counter"),
    (E.DEVICE_EXCEPTION, "CUDA error: the launch timed out and was terminated"),
    (E.DEVICE_EXCEPTION, "CUDA error: unknown error"),
    (E.DEVICE_EXCEPTION, "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle, opa, opb)`"),
    (E.DEVICE_EXCEPTION, "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER"),
    (E.DEVICE_EXCEPTION, "Triton Error [CUDA]: an illegal memory access was encountered"),
    (E.DEVICE_EXCEPTION, "NCCL error in: x.cpp:1, unhandled cuda error (run with NCCL_DEBUG=INFO for details)"),
    (E.DEVICE_EXCEPTION, "HIP error: an illegal memory access was encountered"),
    (
        E.DEVICE_EXCEPTION,
        f"{WATCHDOG}Process group watchdog thread terminated with exception: CUDA error: an illegal memory access was "
        "encountered",
    ),
    # a silent or lost peer
    (
        E.COLLECTIVE_TIMEOUT,
        f"{WATCHDOG}Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1712, OpType=ALLREDUCE, NumelIn=1, "
        "NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.",
    ),
    (
        E.COLLECTIVE_TIMEOUT,
        "NCCL error in: NCCLUtils.cpp:77, remote process exited or there was a network error, NCCL version 2.27.5\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "Last error:\nsocketProgress: Connection closed by remote peer node7<48920>",
    ),
    (E.COLLECTIVE_TIMEOUT, "NCCL communicator was aborted on rank 1."),
    (E.COLLECTIVE_TIMEOUT, f"{GLOO}pair.cc:547] Connection closed by peer [10.0.0.2]:37122"),
    (E.COLLECTIVE_TIMEOUT, f"{GLOO}pair.cc:534] Read error [10.0.0.2]:29500: Connection reset by peer"),
    (E.COLLECTIVE_TIMEOUT, f"{GLOO}unbound_buffer.cc:78] Timed out waiting 600000ms for recv operation to complete"),
    (E.COLLECTIVE_TIMEOUT, f"{GLOO}unbound_buffer.cc:116] Timed out waiting 1800000ms for send operation to complete"),
    (E.COLLECTIVE_TIMEOUT, "Application timeout caused pair closure"),
    (E.COLLECTIVE_TIMEOUT, "Gloo connectFullMesh failed with SO_ERROR: Connection refused, remote=[10.0.0.3]:41233"),
    (E.COLLECTIVE_TIMEOUT, "Rank 2 timed out in monitoredBarrier after 300000 ms."),
    (E.COLLECTIVE_TIMEOUT, "wait timeout after 300000ms, keys: /generation0/default_pg/0//cpu//0/rank_1"),
    (
        E.COLLECTIVE_TIMEOUT,
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
    ),
    (E.COLLECTIVE_TIMEOUT, "recvValue failed on SocketImpl(fd=77, addr=[localhost]:51372, remote=[node1]:29500)"),
    (E.COLLECTIVE_TIMEOUT, "Broken pipe"),
    # the network
    (
        E.NETWORK_ERROR,
        "NCCL error in: x.cpp:1, remote process exited or there was a network error, NCCL version 2.21.5\n"
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
        "Last error:\nNET/IB : Got completion from peer 10.0.0.3<41234> with status=12 opcode=0 len=0 vendor err 129",
    ),
    (
        E.NETWORK_ERROR,
        "NCCL error in: x.cpp:1, unhandled system error (run with NCCL_DEBUG=INFO for details)\n"
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
        "Last error:\nCall to ibv_modify_qp failed with error Connection timed out",
    ),
    (E.NETWORK_ERROR, "NET/IB : mlx5_2:1 async fatal event on QP 0x7f2a: local work queue catastrophic error"),
    (E.NETWORK_ERROR, "The client socket has timed out after 60000ms while trying to connect to (node1, 29500)."),
    (E.NETWORK_ERROR, "The client socket has failed to connect to any network address of (node1, 29500)."),
    (E.NETWORK_ERROR, "The IPv4 network addresses of (node1, 29500) cannot be retrieved (gai error: -2 - Name or "
                      "service not known)."),
    (E.NETWORK_ERROR, "The IPv6 network addresses of (node1, 29500) cannot be retrieved (gai error: -3 - Temporary "
                      "failure in name resolution)."),
    (E.NETWORK_ERROR, "Timed out after 301 seconds waiting for clients. 1/2 clients joined."),
    (E.NETWORK_ERROR, "Bootstrap : no socket interface found"),
    (E.NETWORK_ERROR, "connect() to 10.0.0.3 failed: No route to host"),
    # file systems of the node
    (E.NODE_STORAGE_ERROR, "basic_ios::clear: No space left on device"),
    (
        E.NODE_STORAGE_ERROR,
        "NCCL error in: x.cpp:1, unhandled system error (run with NCCL_DEBUG=INFO for details)\nLast error:\n"
        "Error: failed to extend /dev/shm/nccl-4XhtyN to 33030532 bytes, error: No space left on device (28)",
    ),
    (E.NODE_STORAGE_ERROR, "unable to open file </scratch/x> in read-only mode: Read-only file system (30)"),
    (E.NODE_STORAGE_ERROR, "unable to write to file </scratch/x>: Stale file handle (116)"),
    (E.NODE_STORAGE_ERROR, "[enforce fail at inline_container.cc:858] . PytorchStreamWriter: Input/output error"),
    (E.NODE_STORAGE_ERROR, "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient "
                           "shared memory (shm)."),
    (E.NODE_STORAGE_ERROR, "unable to open shared memory object </torch_1>: Too many open files (24)"),
    # data
    (E.DATA_ERROR, "Parquet magic bytes not found in footer. Either the file is corrupted or this is not a parquet"),
    # what stays an internal error, although words of other classes occur in it
    (E.INTERNAL_ERROR, "NCCL error in: x.cpp:1, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version"),
    (E.INTERNAL_ERROR, "NCCL error in: x.cpp:1, invalid argument (run with NCCL_DEBUG=WARN for details)"),
    (E.INTERNAL_ERROR, "Backend nccl does not implement getError."),
    (E.INTERNAL_ERROR, "Tensors must be CUDA and dense"),
    (E.INTERNAL_ERROR, "CUDA error: invalid device ordinal"),
    (E.INTERNAL_ERROR, "CUDA error: invalid argument"),
    (E.INTERNAL_ERROR, "Expected all tensors to be on the same device, but found at least two devices, cuda:0"),
    (E.INTERNAL_ERROR, "mat1 and mat2 shapes cannot be multiplied (4x8 and 16x4)"),
    (E.INTERNAL_ERROR, "the estimate is out of memory bounds"),
    (E.INTERNAL_ERROR, "one of the variables needed for gradient computation has been modified by an inplace"),
]  # fmt: skip
