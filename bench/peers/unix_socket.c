/* Round trips of 64 bytes through a Unix socket. */
#include "bench/peers/peer.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 50

static int ends[2];

static void ask(uint64_t number)
{
    peer_message message;
    peer_fill(&message, number);
    if (write(ends[0], &message, sizeof message) != sizeof message ||
        read(ends[0], &message, sizeof message) != sizeof message) {
        peer_fail("socket");
    }
    if (!peer_is(&message, number + 1)) {
        peer_fail("a wrong answer");
    }
}

static void answer(void)
{
    peer_message message;
    for (uint64_t i = 0; i < peer_answers(COUNT); i++) {
        if (read(ends[1], &message, sizeof message) != sizeof message) {
            peer_fail("socket");
        }
        peer_fill(&message, message.words[0] + 1);
        if (write(ends[1], &message, sizeof message) != sizeof message) {
            peer_fail("socket");
        }
    }
}

int main(void)
{
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) {
        peer_fail("socketpair");
    }
    pid_t child = fork();
    if (child < 0) {
        peer_fail("fork");
    }
    if (child == 0) {
        close(ends[0]);
        answer();
        return 0;
    }
    close(ends[1]);
    peer_measure("unix_socket_64b_round_trip", ask, COUNT);
    waitpid(child, NULL, 0);
    return 0;
}
