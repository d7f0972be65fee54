"""The labels by which Kubernetes' controllers mark the pods of a job."""

from __future__ import annotations

JOB_LABELS = (
    "jobset.sigs.k8s.io/jobset-name",
    "training.kubeflow.org/job-name",
    "volcano.sh/job-name",
    "batch.kubernetes.io/job-name",
    "job-name",
    "leaderworkerset.sigs.k8s.io/name",
    "ray.io/cluster",
)
"""The outermost first: the pods of a JobSet, or of a TrainJob that made one, bear the names of their Jobs as well."""
