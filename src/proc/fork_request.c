#include "proc/fork_request.h"

#include "os/fd.h"
#include "os/pidfd.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

typedef union control {
    struct cmsghdr head;
    char room[CMSG_SPACE(sizeof(int))];
} control;

bool sh_request_send(int socket, const void *bytes, size_t size, int fd)
{
    control c = {.room = {0}};
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = &c;
        message.msg_controllen = sizeof c;
        c.head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&c.head), &fd, sizeof fd);
    }
    ssize_t n;
    do {
        n = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    return n == (ssize_t)size;
}

bool sh_request_receive(int socket, void *bytes, size_t size, int *out_fd, int64_t deadline)
{
    control c = {.room = {0}};
    struct iovec part = {.iov_base = bytes, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c};
    struct pollfd p = {.fd = socket, .events = POLLIN};
    *out_fd = -1;
    while (sh_poll(&p, 1, deadline) == 0) {
        if (sh_passed(deadline)) {
            errno = ETIMEDOUT;
            return false;
        }
    }
    ssize_t n;
    do {
        n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    struct cmsghdr *head = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (head != NULL && head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN(sizeof *out_fd)) {
        memcpy(out_fd, CMSG_DATA(head), sizeof *out_fd);
        *out_fd = sh_fd_keep(*out_fd);
    }
    errno = n == (ssize_t)size ? 0 : EPIPE;
    return n == (ssize_t)size;
}
