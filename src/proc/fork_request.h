/* The messages between a fork server and its requester. A socket carries them, one request at a time; a reply may bring
 * an fd. */
#ifndef SH_PROC_FORK_REQUEST_H
#define SH_PROC_FORK_REQUEST_H

#include "proc/process.h"

typedef enum sh_ask {
    SH_ASK_FORK = 1, /* slot, death_signal; the reply carries pid and pidfd */
    SH_ASK_FATE,     /* pid; the reply carries its fate. It can be repeated, because the reply may come too late */
    SH_ASK_DROP,     /* pid; no reply. The server reaps the child, now or when it ends */
} sh_ask;

typedef struct sh_request {
    uint64_t number; /* the reply has the same */
    uint32_t ask;
    uint32_t slot;
    int32_t pid;
    int32_t death_signal; /* 0: the child may outlive the requester */
} sh_request;

typedef struct sh_reply {
    uint64_t number;
    int32_t error; /* an errno; 0: done */
    int32_t pid;
    uint32_t by_pipe; /* which sort of sentinel comes with it */
    sh_fate fate;
} sh_reply;

/* Sends a message, with an fd unless it is -1. Does not block: if the socket is full, the other side has not read for
 * long. Returns false with errno on failure. */
bool sh_request_send(int socket, const void *bytes, size_t size, int fd);

/* Receives a message. Returns false if the socket is closed (EPIPE) or the deadline passed (ETIMEDOUT). *out_fd is -1
 * if no fd came. */
bool sh_request_receive(int socket, void *bytes, size_t size, int *out_fd, int64_t deadline);

#endif
