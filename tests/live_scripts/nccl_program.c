/* One rank of a program that uses NCCL and nothing else: `nccl_program ID_FILE RANKS RANK STEPS SICK_STEP`.
 *
 * Rank 0 writes NCCL's unique id to ID_FILE. At SICK_STEP (-1: never) the rank sleeps in load_batch(). */
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

#define CHECK(call)                                              \
    do {                                                         \
        int result_ = (int)(call);                               \
        if (result_ != 0) {                                      \
            fprintf(stderr, "%s: error %d\n", #call, result_);  \
            exit(1);                                             \
        }                                                        \
    } while (0)

static void load_batch(void) {
    struct timeval now;
    gettimeofday(&now, NULL);
    printf("fault at %ld.%03ld\n", (long)now.tv_sec, (long)now.tv_usec / 1000);
    fflush(stdout);
    sleep(1000);
}

static ncclUniqueId meet(const char* path, int rank) {
    ncclUniqueId id;
    char part[4096];
    FILE* file;
    if (rank == 0) {
        CHECK(ncclGetUniqueId(&id));
        snprintf(part, sizeof part, "%s.part", path);
        file = fopen(part, "wb");
        if (file == NULL || fwrite(&id, sizeof id, 1, file) != 1) exit(1);
        fclose(file);
        CHECK(rename(part, path));
        return id;
    }
    while ((file = fopen(path, "rb")) == NULL) usleep(50000);
    if (fread(&id, sizeof id, 1, file) != 1) exit(1);
    fclose(file);
    return id;
}

int main(int count, char** words) {
    ncclComm_t comm;
    cudaStream_t stream;
    float* data;
    if (count != 6) return 2;
    const int ranks = atoi(words[2]), rank = atoi(words[3]), steps = atoi(words[4]), sick = atoi(words[5]);
    CHECK(cudaSetDevice(0));
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaMalloc((void**)&data, 4096 * sizeof(float)));
    CHECK(ncclCommInitRank(&comm, ranks, meet(words[1], rank), rank));
    for (int step = 0; step < steps; step++) {
        if (step == sick) load_batch();
        CHECK(ncclAllReduce(data, data, 4096, ncclFloat, ncclSum, comm, stream));
        CHECK(cudaStreamSynchronize(stream));
        usleep(50000);
    }
    CHECK(ncclCommDestroy(comm));
    return 0;
}
