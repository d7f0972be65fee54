"""NCCL's RAS: every NCCL process from 2.24 on answers on one port of its node which ranks are dead or behind."""
