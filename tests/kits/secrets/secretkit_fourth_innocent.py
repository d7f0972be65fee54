# ruff: noqa: E501 - a table whose rows are read as they are written
"""What must survive redaction: 200 and more strings that a diagnosis or the person who reads the logs needs."""

from __future__ import annotations

from kits.secrets.secretkit_fourth_kinds import ALNUM, HEX, LOWER, Dice

FIXED = """
[rank3]:[E1115 00:00:01.204118 ProcessGroupNCCL.cpp:685] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=4194304, NumelOut=4194304, Timeout(ms)=600000) ran for 600013 milliseconds before timing out.
[rank3]:[E1115 00:00:01.204118 ProcessGroupNCCL.cpp:1893] [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception
[rank0]:[W1115 00:00:01.204118 ProcessGroupNCCL.cpp:1476] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources.
[PG ID 2 PG GUID 4(EXPERT_MODEL_PARALLEL) Rank 6] Timeout at NCCL work: 45265, last enqueued NCCL work: 45265, last completed NCCL work: 45264.
gpu-worker-6:1190:1233 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.6<0>
gpu-worker-6:1190:1233 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.6<0>
gpu-worker-6:1190:1233 [0] NCCL INFO comm 0x55d0c8a3b2e0 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 9d000 commId 0x3f1e2d4c5b6a7988 - Init COMPLETE
gpu-worker-6:1190:1233 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
gpu-worker-6:1190:1233 [0] NCCL INFO Channel 01/0 : 3[3] -> 4[0] [send] via NET/IB/3/GDRDMA
gpu-worker-6:1190:1233 [0] NCCL INFO AllReduce: opCount 29 sendbuff 0x7f3b1c000000 recvbuff 0x7f3b1c000000 count 4194304 datatype 7 op 0 root 0 comm 0x55d0c8a3b2e0 [nranks=4] stream 0x55d0c8a1f0c0
gpu-worker-6:1190:1240 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.7<47632> with status=12 opcode=0 len=0 vendor err 129 (Recv) localGid fe80::a288:c2ff:fe3d:1b2a remoteGids fe80::a288:c2ff:fe3d:1c4e hca mlx5_2
ncclUniqueId: 0x9f1c2b7a66d0e4c3
torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:317, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 139.81 GiB of which 1.12 GiB is free.
RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:47632
torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined.
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
  exitcode  : -9 (pid: 1192)
  traceback : Signal 9 (SIGKILL) received by PID 1192
  host      : gpu-worker-6
  rank      : 1 (local_rank: 1)
MASTER_ADDR=10.0.0.6
MASTER_PORT=29500
WORLD_SIZE=16
LOCAL_RANK=3
NCCL_SOCKET_IFNAME=eth0
NCCL_IB_HCA=mlx5_0,mlx5_1,mlx5_2
NCCL_DEBUG_SUBSYS=INIT,NET,COLL
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7
CUDA_VISIBLE_DEVICES=GPU-3e1f0c9a-5d2b-4f8e-9a7c-1b2d3e4f5a6b
TORCH_NCCL_TRACE_BUFFER_SIZE=2000
SLURM_JOB_ID=48121
SLURM_JOB_NODELIST=gpu-worker-[6-9]
SLURM_STEP_NODELIST=gpu-worker-6
OMP_NUM_THREADS=8
TOKENIZERS_PARALLELISM=false
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
LD_LIBRARY_PATH=/usr/local/cuda/lib64:/usr/local/nvidia/lib
  File "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py", line 3068, in all_reduce
  File "/opt/conda/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1773, in _wrapped_call_impl
  File "/workspace/train.py", line 74, in train
Thread 0x00007f0fd6b67140 (most recent call first):
Current thread 0x00007f0f0e7f46c0 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x80 (0x7f3b5c2e1eb0 in /usr/local/lib/python3.12/dist-packages/torch/lib/libc10.so)
frame #12: clone + 0x44 (0x7f3b6d929bf4 in /usr/lib/x86_64-linux-gnu/libc.so.6)
#3  0x00007f3b5c2e1eb0 in ncclGroupEndInternal () from /usr/lib/x86_64-linux-gnu/libnccl.so.2
NVRM: Xid (PCI:0000:9d:00): 79, pid=81233, name=python, GPU has fallen off the bus.
NVRM: Xid (PCI:0000:1b:00): 31, pid=4412, name=pt_main_thread, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f3b_1c000000.
mlx5_core 0000:5e:00.0: mlx5_cmd_out_err:826:(pid 1190): ACCESS_REG(0x805) op_mod(0x1) failed
mlx5_2 port 1 state DOWN phys_state Polling rate 400 Gb/sec (4X NDR)
node_guid: a088:c203:003d:1b2a
link_layer: InfiniBand
Port GUID: 0xa088c203003d1b2a
base lid: 0x17
step 412 | loss 2.3412 | grad_norm 0.8123 | lr 3.0e-04 | tokens/s 184312 | tokens 1.2B
{"step": 412, "loss": 2.3412, "tokens_per_second": 184312.5, "mfu": 0.4123}
tokenizer: vocab_size=128256 bos_token_id=128000 eos_token_id=128001 pad_token='<|end_of_text|>'
Loading tokenizer from meta-llama/Llama-3.1-8B
special_tokens_map.json tokenizer.json tokenizer_config.json
max_tokens=4096 num_tokens=1048576 token_count: 2048
key_padding_mask=None, attn_mask=None, need_weights=False
query key value shapes: torch.Size([8, 32, 4096, 128]) torch.bfloat16
state_dict keys: model.layers.0.self_attn.k_proj.weight model.layers.0.self_attn.v_proj.weight
missing_keys=['lm_head.weight'], unexpected_keys=[]
KeyError: 'model.embed_tokens.weight'
dict keys: ['input_ids', 'attention_mask', 'labels']
optimizer.param_groups[0].lr = 0.0003
shard key: dp_replicate=2 dp_shard=8 tp=4 pp=1
DeviceMesh((dp_replicate=2, dp_shard=4), device: 'cuda', stride: (4, 1))
FSDP: wrapping TransformerBlock with ShardingStrategy.HYBRID_SHARD
DTensor(local_tensor=..., device_mesh=DeviceMesh('cuda', [0, 1, 2, 3]), placements=(Shard(dim=0),))
tensor([[ 0.0123, -1.2345], [ 3.1415,  2.7182]], device='cuda:0', dtype=torch.float32)
ranks [0, 1, 2, 3, 8, 9, 10, 11] joined; missing ranks: 4-7, 12-15
group EXPERT_MODEL_PARALLEL_GROUP (8 ranks): ranks 8-15
nccl:_all_gather_base nccl:_reduce_scatter_base nccl:all_to_all nccl:coalesced nccl:send 3->4
OpType=_ALLGATHER_BASE, SeqNum=45265, NumelIn=65536, NumelOut=524288
sequence number 45265 on default_pg:0:45265
Barrier timed out: ranks that did not report: 3, 7
heartbeat monitor: tid 139706003517760 pid 1190
[c10d] The client socket has timed out after 600000ms while trying to connect to (10.0.0.6, 29500).
[c10d - debug] The client socket will attempt to connect to an IPv6 address of (gpu-worker-6, 29500).
TCPStore: key default_pg/0//cuda//timeline_3_start not found
store key: /default_pg/0//nccl//uid-0 wait timeout after 600000ms
barrier key: barrier:0:12 count 15/16
waiting for keys: default_pg/0//cpu//0/1
rendezvous key: torchelastic/role_info/trainer/3
rdzv_id=48121 rdzv_backend=c10d rdzv_endpoint=10.0.0.6:29400
run_id: torchelastic_4_06u95o
ncclSystemError: Call to connect returned Connection timed out
ibv_reg_mr_iova2 failed with error Cannot allocate memory
Call to ibv_modify_qp failed with error Connection timed out
torch 2.11.0+cu130 git_version 70d99e998b4955e0049d13a98d77ae1b14db1f45
commit 8a2f6c1e9b7d4035a6c8e2f1d0b9a7c6e5f4d3c2 (HEAD -> main)
index 3f1e2d4..9a7c1b2 100644
HEAD is now at 9a7c1b2d Fix data loader
sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
nvcr.io/nvidia/pytorch@sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae
md5sum: d41d8cd98f00b204e9800998ecf8427e  shard-0001.tar
Blob c3499c2729730a7f807efb8676a92dcb6f8a3f8f verified
Container ID: containerd://4b1c8f0c2a5b4fb5a4a3e8b0b4fbd0cf24b6cbd9e1b7e9f6f6e5f7e3f1d0a9c8
Image ID: docker-pullable://nvcr.io/nvidia/pytorch@sha256:5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9
wandb: Run data is saved locally in wandb/run-20261115_000001-a8x2k9qz
wandb: Tracking run with wandb version 0.18.5
wandb: View run at https://wandb.ai/ml-team/llama/runs/a8x2k9qz
mlflow run_id=6f1ed002ab5595859014ebf0951522d9 experiment_id=12
trace_id=4bf92f3577b34da6a3ce929d0e0e4736 span_id=00f067aa0ba902b7
traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
request_id=7e0c1c2a-9f65-4c1d-8a5b-2f0f6e3f9b11 status=200 latency_ms=12.4
x-amz-request-id: 4442587FB7D0A2F9
boot_id 1f0c9a3e-5d2b-4f8e-9a7c-1b2d3e4f5a6b
GPU 0: NVIDIA H200 (UUID: GPU-9c0e1f2a-3b4c-5d6e-7f80-91a2b3c4d5e6)
pci bus id 0000:9d:00.0 numa node 1 cpu affinity 48-95,144-191
MIG-3f1e2d4c-5b6a-7988-90a1-b2c3d4e5f607
NVSwitch fabric state: Completed, cluster uuid 00000000-0000-0000-0000-000000000000
|   0  NVIDIA H200                    On  |   00000000:9D:00.0 Off |                    0 |
| N/A   34C    P0             117W /  700W |   81234MiB / 143771MiB |    100%      Default |
Linux gpu-worker-6 6.8.0-45-generic #45-Ubuntu SMP x86_64 GNU/Linux
oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=docker-4b1c.scope,mems_allowed=0-1,task=python,pid=1192,uid=0
Out of memory: Killed process 1192 (python) total-vm:98123456kB, anon-rss:71234567kB, file-rss:0kB
INFO: task python:81233 blocked for more than 120 seconds.
watchdog: BUG: soft lockup - CPU#12 stuck for 23s! [python:81233]
[<0>] futex_wait_queue+0x69/0xa0
[<0>] nfs4_proc_getattr+0x6a/0x120 [nfsv4]
nfs: server 10.0.9.4 not responding, still trying
LustreError: 11-0: fs-OST0003-osc-ffff8881f3a2b000: operation ost_read to node 10.0.9.7@o2ib failed: rc = -107
slurmstepd: error: *** STEP 48121.0 ON gpu-worker-6 CANCELLED AT 2026-11-15T00:10:00 DUE TO TIME LIMIT ***
srun: error: gpu-worker-7: task 3: Killed
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint gpu-worker-6:29400 train.py --config llama3_8b.yaml
python -m torch.distributed.run --nproc_per_node=8 --master_addr=10.0.0.6 --master_port=29500 train.py
deepspeed --hostfile hostfile --num_gpus 8 train.py --deepspeed ds_config.json
+ NCCL_DEBUG=INFO
+ torchrun --nproc-per-node 8 train.py
Dynamo: graph break in user code at /workspace/train.py:74
torch._inductor.exc.InductorError: fx graph cache key fsdlkjw3c4n5b6v7c4x3z5a2s2d3f4g5h6j7k2l3qrtyuiopaslm
triton kernel cache: /root/.triton/cache/QJ3FZK5BHT2YV7XW4N6MDCLPASQJ3FZK5BHT2YV7XW4N6MDCLPAA/kernel.cubin
compiled kernel triton_poi_fused_add_mul_0 in 0.31 s
saving checkpoint to /checkpoints/run-48121/step_000412/__3_0.distcp
loaded shard /data/c4/en/c4-train.00412-of-01024.json.gz
dataloader worker (pid 81301) is killed by signal: Segmentation fault.
DataLoader worker (pid(s) 81301, 81302) exited unexpectedly
queue.Empty
BrokenPipeError: [Errno 32] Broken pipe
ConnectionResetError: [Errno 104] Connection reset by peer
OSError: [Errno 116] Stale file handle: '/mnt/data/shards/00412.tar'
FileNotFoundError: [Errno 2] No such file or directory: '/data/shards/00413.tar'
AssertionError: expected 4194304 elements, got 2097152
ValueError: mismatched dtypes torch.float32 and torch.bfloat16 on rank 3
UserWarning: barrier(): using the device under current context. You can specify `device_id` in `init_process_group`
2026-11-15T00:00:01.123456789Z stderr F step 412
Nov 15 00:00:01 gpu-worker-6 kernel: [12345.678901] nvidia-nvlink: Nvlink Core is being initialized
[2026-11-15 00:00:01,123][torch.distributed.run][WARNING] - Setting OMP_NUM_THREADS
author of the op: aten::_foreach_add_
password prompt disabled: BatchMode=yes
no password required
token ring topology not supported
Tokens per second per GPU: 23041
private pool 0x7f3b1c0a2d30 of 2 segments
secret sauce: flash attention 3
key=4, value=16, heads=32
sort key: (rank, seq)
foreign key constraint on runs
primary_key=id
keyboard interrupt received
monkey patched torch.load
authenticated encryption not used; NCCL_SOCKET traffic is plain
session started at 2026-11-15 00:00:01
cookiecutter template v2
credentials: none found, anonymous access
api_version: v1
auth: none
login node: gpu-login-1
pass 3 of 5 over the data
passed 412 of 412 tests
bypass=True passthrough=False
hash of config: 8f14e45fceea167a5a36dedd4bea2543
PG GUID 17(mesh_dp_shard) Rank 3
pg_desc=mesh_tp pg_name=51 global_ranks=[0, 8, 16, 24]
default_pg mesh_dp_replicate TENSOR_MODEL_PARALLEL_GROUP DATA_PARALLEL_GROUP_WITH_CP
collective_seq_id=41 p2p_seq_id=7 op_id=48 pg_id=2 record_id=1999
time_created_ns=1794715065107219711 time_discovered_started_ns=1794715086560491214
thread_id=139706003517760 thread_name=pt_nccl_watchdg
input_sizes=[[4194304]] output_sizes=[[4194304]] input_dtypes=['Float'] state='started'
NCCL_IB_GID_INDEX=3 NCCL_NET_GDR_LEVEL=SYS NCCL_CROSS_NIC=1
peer 10.0.0.7:47632 closed; local 10.0.0.6:51230
[fe80::a288:c2ff:fe3d:1b2a%eth0]:29500
link eth0 mac b8:59:9f:1b:2a:3c mtu 9000
symbol_error 0 link_error_recovery 3 port_rcv_errors 12 port_xmit_wait 8123456789
rx_out_of_buffer: 0 out_of_sequence: 1204 local_ack_timeout_err: 31
nvidia_peermem loaded; GPUDirect RDMA enabled
driver 580.159.04 CUDA 13.0 NCCL 2.28.9+cuda13.0
libnccl.so.2.28.9 libcudart.so.13 libtorch_cuda.so
_ZN4c10d16ProcessGroupNCCL8WorkNCCL15checkTimeoutENSt8optionalINSt6chrono8durationIlSt5ratioILl1ELl1000EEEEEE
_ZN5torch8autograd6Engine11thread_mainERKSt10shared_ptrINS0_9GraphTaskEE
void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<c10::BFloat16>>
ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)
sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas
flash_fwd_kernel_hdim128_bf16_causal_sm90
ExponentialMovingAverageCheckpointCallback(decay=0.999)
PipelineParallelScheduleInterleaved1F1B(n_microbatches=16)
DistributedDataParallelCommunicationHookWithCompression
meta-llama/Meta-Llama-3.1-405B-Instruct-FP8
models--mistralai--Mixtral-8x7B-Instruct-v0.1/snapshots/41bd4c9e7e4fb318ca40e721131d4933966c2cc1
Qwen2.5-Coder-32B-Instruct-GPTQ-Int4
google/gemma-2-27b-it
https://pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group
https://github.com/pytorch/pytorch/issues/124950
https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
See https://huggingface.co/docs/transformers/main_classes/trainer for details
pip install torch==2.11.0+cu130 --index-url https://download.pytorch.org/whl/cu130
requirement transformers==4.46.3 satisfied
loss=nan at step 412, skipping update
grad scaler: scale 65536.0 growth_tracker 12
lr_scheduler: cosine, warmup_steps=2000, total_steps=500000
eta 3 days, 4:05:06
mem: allocated 71.23 GiB reserved 81.02 GiB max 92.11 GiB
0x7ffd5e8f2c30 0xdeadbeefcafebabe 0x0000000000000000
0000:17:00.0 3D controller: NVIDIA Corporation GH100 [H200 141GB] (rev a1)
uid=0 gid=0 euid=0
job 48121 attempt 0 of run none
seed=1337 deterministic=True
""".strip("\n").split("\n")


def innocents(d: Dice) -> list[str]:
    """The fixed lines and a few of each kind with random digits in them."""
    made = [line for line in FIXED if line.strip()]
    for _ in range(3):
        r = d.random
        made += [
            f"commit {d.text(HEX, 40)}",
            f"image digest sha256:{d.text(HEX, 64)}",
            f"comm 0x{d.text(HEX, 12)} rank {r.randrange(64)} nranks 64 cudaDev 3 busId {d.text(HEX, 5)} commId 0x{d.text(HEX, 16)}",
            f"run id {d.uuid()}",
            f"GPU-{d.uuid()}",
            f"pod train-{d.text(LOWER, 10)}-{d.text(LOWER, 5)} started",
            f"wandb/run-20261115_000001-{d.text(LOWER, 8)}",
            f'etag: "{d.text(HEX, 32)}-12"',
            f"snapshots/{d.text(HEX, 40)}/model-00001-of-00004.safetensors",
            f"thread 0x{d.text(HEX, 16)}",
            f"ranks {sorted(r.sample(range(512), 40))}",
            f"losses {[round(r.random() * 5, 4) for _ in range(12)]}",
            f"tensor_{d.text('0123456789', 18)}",
            f"offset {r.randrange(10**17)} size {r.randrange(10**12)}",
            f"fe80::{d.text(HEX, 4)}:{d.text(HEX, 4)}:{d.text(HEX, 4)}:{d.text(HEX, 4)}",
            f"inductor cache /tmp/inductor/{d.text(LOWER, 2)}/c{d.text('abcdefghijklmnopqrstuvwxyz234567', 51)}.py",
            f"data shard {d.text(ALNUM, 6)} epoch 3",
        ]
    return made
