/* LD_PRELOAD: lets one rank's sends to one other rank stop without closing the connection, as a dead link does.
 *
 * RECORD_LINK names a shared page. Every rank writes there which ports it listens on; the launcher writes whose sends
 * to whom stop, and after how many more bytes (whole calls: a header is not cut in two). A stopped send says EAGAIN, which NCCL takes for a full socket. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

struct page {
  int32_t active, from, to, unused;
  int64_t bytes_left;
  uint64_t stopped;
  uint16_t listener[65536]; /* by port: rank + 1 */
};

static struct page *page;
static int rank = -1;
static ssize_t (*real_send)(int, const void *, size_t, int);
static int (*real_listen)(int, int);

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("RECORD_LINK"), *number = getenv("RANK");
  *(void **)&real_send = dlsym(RTLD_NEXT, "send");
  *(void **)&real_listen = dlsym(RTLD_NEXT, "listen");
  int file = path && number ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *at = mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (at == MAP_FAILED) return;
  rank = atoi(number);
  page = at;
}

static int port_of(const struct sockaddr_storage *address) {
  if (address->ss_family == AF_INET) return ntohs(((const struct sockaddr_in *)address)->sin_port);
  if (address->ss_family == AF_INET6) return ntohs(((const struct sockaddr_in6 *)address)->sin6_port);
  return -1;
}

int listen(int fd, int backlog) {
  int result = real_listen(fd, backlog);
  struct sockaddr_storage address;
  socklen_t size = sizeof address;
  if (page && result == 0 && getsockname(fd, (struct sockaddr *)&address, &size) == 0) {
    int port = port_of(&address);
    if (port > 0) __atomic_store_n(&page->listener[port], (uint16_t)(rank + 1), __ATOMIC_RELEASE);
  }
  return result;
}

ssize_t send(int fd, const void *data, size_t size, int flags) {
  if (page && __atomic_load_n(&page->active, __ATOMIC_ACQUIRE) && page->from == rank) {
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    int port = getpeername(fd, (struct sockaddr *)&address, &length) == 0 ? port_of(&address) : -1;
    if (port > 0 && page->listener[port] == page->to + 1) {
      int64_t left = __atomic_load_n(&page->bytes_left, __ATOMIC_RELAXED);
      if (left <= 0) {
        __atomic_fetch_add(&page->stopped, 1, __ATOMIC_RELAXED);
        errno = EAGAIN;
        return -1;
      }
      ssize_t sent = real_send(fd, data, size, flags);
      if (sent > 0) __atomic_fetch_sub(&page->bytes_left, sent, __ATOMIC_RELAXED);
      return sent;
    }
  }
  return real_send(fd, data, size, flags);
}
