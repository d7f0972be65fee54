# ruff: noqa: E501 - a table whose rows are read as they are written
"""What must survive redaction: strings that look random, or like a secret's name, and that a diagnosis or a person needs.

Shapes as in `kinds`, with escapes as in `notations`.
"""

from __future__ import annotations

from kits.secrets.kinds import Dice
from kits.secrets.notations import unescaped

ROWS = r"""
_ZN5torch8autograd6Engine11thread_mainERKSt10shared_ptrINS0_9GraphTaskEE
_ZNSt6thread11_State_implINS_8_InvokerISt5tupleIJPFvvEEEEEE6_M_runEv
_ZN4c10d16ProcessGroupNCCL12ncclCommAbortERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE
sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel
cutlass_80_tensorop_s16816gemm_bf16_256x128_64x3_tn_align8
nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT
ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)
ncclDevFunc_SendRecv
triton_poi_fused__to_copy_add_mul_12
flash_fwd_splitkv_combine_kernel
FSDPMixedPrecisionPolicyError
DistributedDataParallelCommHookState
ProcessGroupNCCLWatchdogHeartbeatTimeoutException
torch-2.11.0+cu130-cp312-cp312-linux_x86_64.whl
libcudnn_engines_precompiled.so.9.10.2
_C.cpython-312-x86_64-linux-gnu.so
CUDA_VISIBLE_DEVICES=0,1,2,3
NVIDIA-SMI 580.65.06
model.embed_tokens.weight
token_embedding.weight
transformer.wte.token_type_embeddings
cls_token
pos_embed
key_padding_mask
attn.key.bias
module.query_key_value.weight
lm_head.weight
key_states
secretary
passwordless
tokenizer.json
tokenizer_config.json
special_tokens_map.json
bypass
max_tokens=4096
num_tokens: 1048576
tokens_per_second=182734.5
eos_token=</s>
pad_token_id=128001
bos_token="<s>"
token=128009
tokens=[1, 2, 3]
n_tokens_per_batch: 65536
key=weight
key: value
sort_key=loss
cache_key=abcdef0123456789
token | count
forward pass: 3
pass=1
--sort-key loss
the token is here
key is weight
password is required
tokens/s 182734
tokens: 2.1e9
password is incorrect
secret is set
primary_key=id
PWD=/workspace/run
OLDPWD=/workspace
password=None
token: str
api_key: Optional[str] = None
secret=***
password: ${DB_PASSWORD}
secretName: nccl-conf
kind: ConfigMap
kind: Pod
name: NCCL_DEBUG
value: INFO
sk-learn-contrib
scikit-learn
task-scheduler-0123456789abcdef
risk-adjusted
hf_hub_download
hf_transfer
npm_config_cache
pypi-publish
glpat
xoxo
ghp
AKIA
eyJ
bearer of news
basic usage
Basic block profile
cookie cutter
authorization is required
/root/.cache/torch/x
/usr/local/lib/python3.12/dist-packages/torch/distributed/distributed_c10d.py
/tmp/nccl_trace_rank_0
https://pytorch.org/docs/stable/distributed.html
tcp://10.0.0.1:29500
s3://bucket/path/to/ckpt-1000
abfss://container@account.dfs.core.windows.net/data
ssh://git@github.com/org/repo
git@github.com:org/repo
pthread_create@GLIBC_2.34
memcpy@@GLIBC_2.14
x@y
loss@step
mlx5_0:1/IB
torch==2.11.0+cu130
gpu-a017:81233:81301 [6] NCCL INFO Channel 00/0 : 3[3] -> 12[4] [send] via NET/IB/0/GDRDMA
NCCL INFO comm 0x5581f8a0 rank 3 nranks 64 cudaDev 3 nvmlDev 3 busId 9b000 commId 0xad99822aca09d444
NCCL WARN NET/IB: Got completion from peer 10.1.2.3<41411> with status=12 opcode=0 len=0 vendor err 129
[rank0]:[E1115 00:56:34.844323936 ProcessGroupNCCL.cpp:689] [Rank 0] Watchdog caught collective operation
WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600021 milliseconds
NCCL_SOCKET_IFNAME set by environment to eth0
TORCH_NCCL_TRACE_BUFFER_SIZE=2000
TORCH_NCCL_DUMP_ON_TIMEOUT=1
Init START key 0- color 12
splitCount 3 parent 0x55 color 1 key 4
fe80::ac0:ebff:fe12:3456
UserWarning: barrier(): using the device under current context
user defined function
username
login node
nccl:all_reduce_barrier
nccl:_all_gather_base
ckpt-2026-11-15T01-25-35
run-20261115_012535-a1b2c3d4
/scratch/datasets/imagenet/train
/data/models/llama-3-70b/config.json
/workspace/src/train.py
/fsx/checkpoints/step_1000
drwxr-xr-x 2 root root 4096 Nov 15 10:00 src
mkdir -p /data/x
ssh -p 2222 host
docker run -p 8080:80 image
config set to default
login: ok
EXPERT_MODEL_PARALLEL
TENSOR_AND_CONTEXT_PARALLEL_GROUP
mesh_dp_shard_cp
default_pg
pp_stage_3_to_4
rendezvous c10d run_id 48121 endpoint gpu-a017:29400
Xid (PCI:0000:9d:00): 79, pid=81233, GPU has fallen off
mlx5_core 0000:9d:00.0: Port module event: module 0, Cable unplugged
nvidia-fabricmanager 580.65.06
SymmMem: NVSHMEM is not supported
heartbeatTimeoutInSec=480
10.1.2.3:29500
[::1]:29500
eth0
bond0
commit {-x40}
torch 2.13.0a0+git{-x7}
NCCL INFO ncclCommInitRankConfig comm 0x{-x12} rank {-d2} nranks 64 cudaDev {-d1} nvmlDev {-d1} busId {-x5} commId 0x{-x16} - Init COMPLETE
comm 0x{-x12} rank 3
commHash 0x{-x16}
commId 0x{-x16}
unique id {-x16}
NCCL version 2.27.{-d1}+cuda12.8
GPU-{-uuid}
MIG-{-uuid}
PCI:0000:{-x2}:00.0
0000:{-x2}:00.0
mlx5_{-d1}:1/RoCE
node_guid {-x4}:{-x4}:{-x4}:{-x4}
0x{-x16} "MT4129 ConnectX7 Mellanox Technologies"
GID 3 (0/{-x16})
shape=[{-d4}, 4096], dtype=torch.bfloat16
numel={-d6}
loss 3.1415 grad_norm 3.1415 tokens/s {-d6} tokens_per_gpu={-d6}
sha256 {-x64}
sha256:{-x64}
md5 {-x32}  model-00001-of-00030.safetensors
sha512-{-b86}==
/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py:{-d4}
model.layers.{-d2}.self_attn.q_proj.weight
triton_per_fused__to_copy_add_native_layer_norm_{-d2}
/tmp/cache/fxgraph/{-B2}/f{-B51}
c{-B51}.py
sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas
_ZN4c10d16ProcessGroupNCCL8WorkNCCL{-d2}startEv
void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(Params)
step_key=step_{-d6}
flattened_key is "state.layer{-d2}.weight"
pg_key = (event["process_group"][0], {-d6})
static_kwargkey=["dim", "descending", "stable"],
CUSTOM_METADATA_KEY = "DCP_SHARDING_INFO"
token_key = "RpcGroupManagementToken"
cache_key={-x32}
store key default_pg/0//cuda//timeout_dump
key: 0:1:{-d1}
forward_pass={-d2}.25ms
first_pass: done
backward pass took 12.5ms
max_tokens={-d6}
eos_token='<|end_of_text|>'
num_tokens: {-d6}
token embedding
key_padding_mask=None
past_key_values=None
num_key_value_heads: 8
slurm job {-d6} step 0
SLURM_JOB_NODELIST=gpu-a[017-020]
pod trainer-worker-{-x10}-{-l5}
run id {-l8}
WorkNCCL(SeqNum={-d6}, OpType=ALLREDUCE, NumelIn={-d6}, NumelOut={-d6}, Timeout(ms)=600000) ran for 600{-d3} milliseconds before timing out.
PG ID {-d1} PG GUID {-d2}(EXPERT_MODEL_PARALLEL) Rank {-d2}
NVRM: Xid (PCI:0000:{-x2}:00): 79, pid={-d6}, GPU has fallen off the bus.
0x00007f{-x10}
Thread 0x00007f{-x10} (most recent call first):
NET/IB: Got completion from peer 10.0.{-d3}.7<{-d4}> with status=12 opcode=0 len=0 vendor err 129
qpn {-d6} lid {-d3}
docker image nvcr.io/nvidia/pytorch:25.04-py3@sha256:{-x64}
container {-x64}
layer {-x12}: Pull complete
trace_id={-x32} span_id={-x16}
etag "{-x32}-{-d2}"
s3://bucket/ckpt/step_{-d6}/__{-d2}_0.distcp
tensor([0.2718, 0.2718], device='cuda:{-d1}')
attn_implementation=flash_attention_3
PWD=/workspace/run{-d6}
bypass=1
compass={-d6}
passed {-d6} tests
keys: ['a', 'b', 'c']
missing_keys=['model.layers.{-d2}.mlp.up_proj.weight']
monkey patch
Process group watchdog thread terminated with exception
TORCH_NCCL_ASYNC_ERROR_HANDLING=1
NCCL_IB_GID_INDEX=3
Basic usage is described
bearer of bad news
AUTH failed for peer {-d2}
PASS tests/test_a.py::test_b
LOGIN node is login{-d1}
identified by rank {-d1}
zip -r out{-d6}.zip logs
openssl version 3.0.{-d1}
7z a -t7z out{-d6}.7z logs
mysqld -p 3306
ENV PATH /usr/local/bin
set -x
set -euo pipefail
token bucket refilled
secretary problem
cluster key exchange done in {-d6} ms
srun -p batch --mem={-d2}G python train.py
docker run -p 8080:80 -v /data:/data img
python -m torch.distributed.run --rdzv-id={-d6} --rdzv-endpoint=gpu-a017:29500
HEAD is now at {-x7} Fix the loss mask (#1234)
git commit: {-x40}
commit {-x40} (HEAD -> main, origin/main)
{"git": {"commit": "{-x40}", "remote": "git@github.com:acme/train.git"}}
git_sha={-x40} dirty=False
PyTorch version: 2.11.0a0+git{-x7}
Using nvcr.io/nvidia/pytorch@sha256:{-x64}
Image ID: docker-pullable://nvcr.io/nvidia/pytorch@sha256:{-x64}
Container ID: containerd://{-x64}
Pod UID: {-uuid}
    uid: {-uuid}
resourceVersion: "{-d9}"
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-{-uuid})
MIG 1g.10gb Device 0: (UUID: MIG-{-uuid})
CUDA_VISIBLE_DEVICES=GPU-{-uuid},GPU-{-uuid}
gpu-a017:812:934 [3] NCCL INFO comm 0x7f{-x10} rank 3 nranks 16 cudaDev 3 nvmlDev 3 busId 9d000 commId 0x{-x16} - Init COMPLETE
gpu-a017:812:934 [3] NCCL INFO ncclCommInitRankConfig comm 0x7f{-x10} rank 3 nRanks 16 nNodes 2 localRanks 8 localRank 3 MNNVL 0
gpu-a017:812:934 [3] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; OOB eth0:10.0.0.7<0>
gpu-a017:812:934 [3] NCCL INFO Channel 00/0 : 3[3] -> 4[4] via P2P/CUMEM/read
gpu-a017:812:934 [3] NCCL INFO Channel 07/1 : 15[7] -> 0[0] [receive] via NET/IB/7/GDRDMA
gpu-a017:812:934 [3] NCCL INFO NCCL_IB_HCA set to =mlx5_0:1,mlx5_1:1
gpu-a017:812:934 [3] NCCL INFO Trees [0] 4/-1/-1->3->2 [1] 4/-1/-1->3->2
gpu-a017:812:934 [3] NCCL INFO opCount {-x4} sendbuff 0x7f{-x10} recvbuff 0x7f{-x10} acc 0x7f{-x10} count 4194304 datatype 9 op 0 root 0
gpu-a017:812:934 [3] NCCL INFO Using network IB guid 0x{-x16}
node_guid: {-x4}:{-x4}:{-x4}:{-x4}
CA 'mlx5_0' Node GUID: 0x{-x16} System image GUID: 0x{-x16}
port_guid 0x{-x16} lid 117 sm_lid 1
GID[3]: fe80:0000:0000:0000:{-x4}:{-x4}:{-x4}:{-x4}
mlx5_0: gid ::ffff:10.0.0.7, ah 0x7f{-x10}
fr_buffer: entries at 0x7f{-x10} size 2000
[rank3]:[E1115 02:30:11.204000 ProcessGroupNCCL.cpp:685] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=45265, OpType=ALLREDUCE, NumelIn=16777216, NumelOut=16777216, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.
[rank3]:[E1115 02:30:11.204000 ProcessGroupNCCL.cpp:1784] [PG ID 0 PG GUID 0(default_pg) Rank 3] Exception (either an error or timeout) detected by watchdog at work: 45265, last enqueued: 45267, last completed: 45264
frame #0: c10::Error::Error(c10::SourceLocation, std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >) + 0x98 (0x7f{-x10} in /usr/lib/python3.12/site-packages/torch/lib/libc10.so)
frame #3: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<std::chrono::duration<long, std::ratio<1l, 1000l> > >) + 0x1c7 (0x7f{-x10} in libtorch_cuda.so)
#4  0x7f{-x10} in ncclGroupEndInternal(ncclSimInfo_v22200*) () from /lib/libnccl.so.2
  File "/opt/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 2806, in all_reduce
  File "/workspace/src/megatron/core/tensor_parallel/mappings.py", line 23, in _reduce
    work = group.allreduce([tensor], opts)
    tokens = batch['input_ids'].to(device, non_blocking=True)
    self.key_value_cache = KeyValueCache(num_layers=32, num_heads=8)
    query, key, value = self.qkv(hidden_states).chunk(3, dim=-1)
    assert token_type_ids is not None, 'token_type_ids must be given'
    loss = cross_entropy(logits, labels, ignore_index=tokenizer.pad_token_id)
pad_token_id=128001 eos_token_id=128009 bos_token_id=128000
tokenizer.pad_token = '<|end_of_text|>'
special_tokens_map={'pad_token': '<pad>', 'unk_token': '<unk>'}
max_tokens=4096 num_tokens=16777216 tokens_per_second=123456.7
tokens/s: 412345.12 | tokens: 1.2e12 | loss 2.345
token_embedding.weight torch.Size([128256, 4096])
layers.0.attention.key.weight: torch.float32 (1024, 4096)
key_padding_mask: torch.bool [8, 2048]
missing_keys=['lm_head.weight'] unexpected_keys=[]
KeyError: 'model.layers.31.self_attn.k_proj.weight'
KeyError: 'attention_mask'
primary_key: sample_id
sort_key=lambda x: x.length
keys = ['input_ids', 'labels', 'attention_mask', 'position_ids']
public_key_algorithm: ssh-ed25519
Host key verification failed.
Permission denied (publickey,password).
Missing API key; set WANDB_API_KEY or run `wandb login`
WANDB_API_KEY is not set
HF_TOKEN not found in the environment
Set the environment variable HF_TOKEN to your access token.
secret_name: train-secrets
secretKeyRef: {name: wandb, key: api-key}
          valueFrom:\n            secretKeyRef:\n              name: wandb-credentials\n              key: api-key
imagePullSecrets:\n- name: nvcr-pull
serviceAccountName: trainer
MountVolume.SetUp succeeded for volume "kube-api-access-x7k2p"
Created pod: llama-70b-worker-0-x7k2p
pod/llama-pretrain-7d9f8b6c5d-x7k2p evicted
replicaset llama-6bdfc9c5b4 scaled up
passed 12 of 12 tests in 3.4s
forward pass 12.3 ms, backward pass 30.1 ms
pass@1: 0.4512 pass@10: 0.7812
bypass_cache=True
compass dataset v2
author: the training team
authorization mode: RBAC,Node
auth_method=kubernetes
session resumed from step 12000
session_id=3 attempt=0
TORCHELASTIC_RUN_ID={-uuid}
rdzv_id={-uuid} rdzv_backend=c10d rdzv_endpoint=gpu-a017:29500
--rdzv_id={-d6} --rdzv_endpoint=10.0.0.7:29500
SLURM_JOB_ID={-d7} SLURM_STEP_ID=0 SLURM_PROCID=3
SLURM_NODELIST=gpu-a[017-024]
wandb: View run at https://wandb.ai/acme/llama/runs/{-l8}
wandb: Run data is saved locally in /results/wandb/run-20261115_023011-{-l8}
mlflow run_id={-x32} experiment_id=3
Sentry event id: {-x32}
traceparent: 00-{-x32}-{-x16}-01
request id {-uuid}
ETag: "{-x32}"
md5sum {-x32}  shard-00012.tar
sha256:{-x64}  model-00001-of-00030.safetensors
{-x64}  /data/shards/shard-00012.tar
sha1 {-x40} ok
checksum mismatch: expected {-x8}, got {-x8}
blob sha256-{-b43}=
integrity sha512-{-b86}==
SHA256:{-b43} host key fingerprint
/root/.cache/huggingface/hub/models--meta-llama--Llama-3.1-8B/snapshots/{-x40}/config.json
/root/.cache/huggingface/hub/models--x/blobs/{-x64}
/tmp/torchelastic_{-l8}/{-d6}_{-l8}/attempt_0/3/error.json
torch-2.11.0+cu128-cp312-cp312-manylinux_2_28_x86_64.whl
flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-cp312-cp312-linux_x86_64.whl
nvidia_nccl_cu12-2.28.9-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl
meta-llama/Meta-Llama-3.1-405B-Instruct-FP8
mistralai/Mixtral-8x22B-v0.1 deepseek-ai/DeepSeek-R1-Distill-Qwen-32B
model=Qwen2.5-VL-72B-Instruct-AWQ dtype=bfloat16 tp=8 pp=4
checkpoint /scratch/ckpt/step_00012000/mp_rank_00_003/model_optim_rng.pt
void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, at::native::FillFunctor<float>)
ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)
_ZN4c10d16ProcessGroupNCCL8WorkNCCL17checkTimeoutEv
_ZNSt6thread11_State_implINS_8_InvokerISt5tupleIJMN4c10d16ProcessGroupNCCL9HeartbeatEvEEEE6_M_runEv
cutlass::gemm::device::GemmUniversalAdapter<cutlass_3x_gemm_sm90_fp8>
torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2251, remote process exited or there was a network error, NCCL version 2.28.9
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
socketProgress: Connection closed by remote peer gpu-a018<43210>
NET/IB: Got completion from peer 10.0.0.8<51234> with status=12 opcode=0 len=0 vendor err 129 (Recv) localGid fe80::{-x4}:{-x4}:{-x4}:{-x4} remoteGids fe80::1
Xid (PCI:0000:9d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
NVRM: Xid (PCI:0000:18:00): 95, pid=8123, name=python, Uncontained: FBHUB. RST: Yes, D-RST: No
mlx5_core 0000:5c:00.0: health_issue: assert_var[0] 0x{-x8}
[1234567.890123] mlx5_core 0000:5c:00.0 ens1f0np0: Link down
RIP: 0010:copy_page+0x7/0x10 RSP: 0018:ffff{-x12} EFLAGS: 00010286
BUG: unable to handle page fault for address: ffff{-x12}
inet6 fe80::{-x4}:{-x4}:{-x4}:{-x4}/64 scope link
10.0.0.7:29500 172.16.3.4:43210 [fe80::1]:29500
tensor([[ 0.1234, -1.2345e-05,  3.4028e+38], [nan, inf, 0.]])
torch.Size([8, 2048, 128256]) strides=(262668288, 128256, 1)
InputSize=[[8, 2048, 4096]] OutputSize=[[8, 2048, 4096]] dtype=BFloat16
seed=1234567890123456789 rng_state=0x9e3779b97f4a7c15
grad_norm: 0.123456789012345678 lr: 2.9999999e-04
time=1794705819.204817362 step_time=0.412s
1794705819204817362 ns
2026-11-15T02:30:11.204817362+00:00
step 12000/500000 [========>      ] - ETA: 3:12:45 - loss: 2.3451
 24%|██▍       | 12000/50000 [3:12:45<10:10:23,  1.04it/s, loss=2.35]
pad: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA
encoding table ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/
-----BEGIN CERTIFICATE REQUEST----- refused
ssh-ed25519 is not allowed
MASTER_ADDR=gpu-a017 MASTER_PORT=29500 WORLD_SIZE=16 RANK=3 LOCAL_RANK=3
NCCL_SOCKET_IFNAME=eth0 NCCL_IB_HCA=mlx5 NCCL_DEBUG=INFO NCCL_ALGO=Ring NCCL_PROTO=LL128
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:512
TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_BUFFER_SIZE=20000 TORCH_NCCL_DESYNC_DEBUG=1
LD_LIBRARY_PATH=/usr/local/cuda/lib64:/usr/local/nvidia/lib64:/opt/hpcx/ucx/lib
XDG_SESSION_ID=12 XDG_SESSION_TYPE=tty SSH_TTY=/dev/pts/3 SESSION_MANAGER=local
GPG_TTY=/dev/pts/3 SSH_AUTH_SOCK=/run/agent.sock
KUBERNETES_SERVICE_HOST=10.96.0.1 KUBERNETES_PORT=tcp://10.96.0.1:443
TOKENIZERS_PARALLELISM=false
NVIDIA_PRODUCT_NAME=PyTorch NVIDIA_BUILD_ID=123456789
use_auth_token=False trust_remote_code=True
token=None password=None api_key=None
password: null
"token": null, "secret": ""
api_key: ${oc.env:WANDB_API_KEY}
api_key: $WANDB_API_KEY
password: "****"
password: <redacted>
--token-ids 1 2 3 --passes 4 --keys a,b
secrets loaded from /run/secrets (3 files)
credential helper: ecr-login
AWS_REGION=us-east-1 AWS_DEFAULT_REGION=us-east-1 AWS_PROFILE=train
arn:aws:iam::123456789012:role/train-role
i-0{-x16} p5.48xlarge us-east-1a
vpc-{-x17} subnet-{-x17} sg-{-x17}
s3://acme-train/checkpoints/llama/step-12000/
gs://acme-train/data/tokenized/part-00012-of-01024.parquet
projects/acme-ml/locations/us-central1/customJobs/1234567890123456789
https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group
https://github.com/NVIDIA/nccl/issues/1234#issuecomment-2345678901
store key 'default_pg/0//cuda//0' was not set after 600s
key: /0/{-a8}/ready
TCPStore: waiting for keys [worker/attempt_0/rank_7]
store->get('0:1:nccl_id') timed out
ThreadPoolExecutor-0_3 pt_nccl_watchdog pt_autograd_3 NCCL Progress 7
class DistributedDataParallelCommHookStateAllReduceFp16CompressWrapper
FullyShardedDataParallel(wrapped_module=LlamaForCausalLM(...))
org.apache.spark.sql.execution.datasources.FileFormatWriter
ModuleNotFoundError: No module named 'transformer_engine_torch'
libcudart-d0da41ae.so.11.0 libgomp-a34b3233.so.1
build 7c9e4b2 on Nov 15 2026, gcc 13.3.0
Driver Version: 570.124.06 CUDA Version: 12.8 VBIOS 96.00.74.00.1A
Serial Number: {-d13} Board ID 0x{-x4} GPU Part Number 2330-885-A1
nvme0n1 wwn eui.{-x32}
UUID={-uuid} /scratch ext4 defaults 0 2
boot id {-x32} machine id {-x32}
cgroup /kubepods.slice/kubepods-pod{-x8}_{-x4}_{-x4}_{-x4}_{-x12}.slice/cri-containerd-{-x64}.scope
Sharding: {'layers': PartitionSpec('tp', None), 'embed': PartitionSpec(None, 'tp')}
checkpoint keys: 291 tensors, 13 missing
access pattern: sequential; passing 3 arguments
authenticated encryption is off for NVLink
certificate subject: CN=gpu-a017,O=acme
image digest sha256:{-x64}
comm 0x{-x12} rank {-d2} nranks 64 cudaDev 3 busId {-x5} commId 0x{-x16}
run id {-uuid}
pod train-{-l10}-{-l5} started
wandb/run-20261115_000001-{-l8}
etag: "{-x32}-12"
snapshots/{-x40}/model-00001-of-00004.safetensors
thread 0x{-x16}
tensor_{-d18}
fe80::{-x4}:{-x4}:{-x4}:{-x4}
inductor cache /tmp/inductor/{-l2}/c{-B51}.py
data shard {-a6} epoch 3
0000:9d:00.0
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
SLURM_JOB_ID=48121
SLURM_JOB_NODELIST=gpu-worker-[6-9]
SLURM_STEP_NODELIST=gpu-worker-6
OMP_NUM_THREADS=8
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
void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<c10::BFloat16>>
flash_fwd_kernel_hdim128_bf16_causal_sm90
ExponentialMovingAverageCheckpointCallback(decay=0.999)
PipelineParallelScheduleInterleaved1F1B(n_microbatches=16)
DistributedDataParallelCommunicationHookWithCompression
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
x-amz-request-id: {-U16}
/tmp/torchinductor_cache/{-w2}/c{-B50}.py
triton cache {-t52}/kernel.cubin
inductor fx graph cache hit for key f{-B51}
Code: 48 89 e5 41 57 41 56 {-x2} {-x2} {-x2} {-x2} {-x2} {-x2} {-x2} {-x2} {-x2} {-x2} {-x2} {-x2} {-x2}
link/ether {-x2}:{-x2}:{-x2}:{-x2}:{-x2}:{-x2} brd ff:ff:ff:ff:ff:ff
ranks [3, 17, 21, 38, 64, 99, 101, 128, 130, 164, 200, 201, 222, 240, 255, 260, 271, 300, 317, 333, 412, 511]
losses [2.3131, 0.2718, 4.1093, 1.0004, 3.3333, 0.0001, 2.9182, 4.8721, 1.6180, 2.2360, 0.5772, 1.4142]
offset {-d17} size {-d12}
{-x64}
{-x40}
{-x32}
{-uuid}
sha256-{-b43}=
0x{-x16}
commId 0x{-x16} comm 0x{-x12}
i-0{-x16}
/tmp/torchinductor_root/{-B2}/c{-B51}.py
/root/.triton/cache/{-t52}/k.cubin
module.layers.{-d2}.self_attn.q_proj.weight
module.layers.{-d2}.self_attn.k_proj.weight
module.layers.{-d2}.self_attn.v_proj.weight
module.layers.{-d2}.self_attn.o_proj.weight
fe80::{-x4}:ebff:fe12:{-x4}
worker-{-d3}.cluster.local
trainer-7d9f8b6c5d-{-w5}
""".strip("\n").split("\n")


def innocents(dice: Dice, times: int = 3) -> list[str]:
    """Every row, and those with random parts some times."""
    made = [dice.fill(unescaped(row)).text for row in (*ROWS, "password: ") for _ in range(times if "{-" in row else 1)]
    return list(dict.fromkeys(made))
