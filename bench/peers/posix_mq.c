/* Round trips of 64 bytes through two POSIX message queues. */
#include "bench/peers/peer.h"

#include <fcntl.h>
#include <mqueue.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 50

static mqd_t there, back;

/* Opens a queue and unlinks it at once, so that it has no name. */
static mqd_t make_queue(const char *which)
{
    char name[64];
    struct mq_attr attributes = {.mq_maxmsg = 8, .mq_msgsize = PEER_SIZE};
    snprintf(name, sizeof name, "/shoal-bench-%d-%s", (int)getpid(), which);
    mqd_t queue = mq_open(name, O_RDWR | O_CREAT | O_EXCL, 0600, &attributes);
    if (queue == (mqd_t)-1) {
        peer_fail("mq_open");
    }
    mq_unlink(name);
    return queue;
}

static void send_message(mqd_t queue, uint64_t number)
{
    peer_message message;
    peer_fill(&message, number);
    if (mq_send(queue, (const char *)&message, sizeof message, 0) != 0) {
        peer_fail("mq_send");
    }
}

static uint64_t receive_message(mqd_t queue)
{
    peer_message message;
    if (mq_receive(queue, (char *)&message, sizeof message, NULL) != sizeof message) {
        peer_fail("mq_receive");
    }
    if (!peer_is(&message, message.words[0])) {
        peer_fail("a wrong message");
    }
    return message.words[0];
}

static void ask(uint64_t number)
{
    send_message(there, number);
    if (receive_message(back) != number + 1) {
        peer_fail("a wrong answer");
    }
}

int main(void)
{
    there = make_queue("there");
    back = make_queue("back");
    pid_t child = fork();
    if (child < 0) {
        peer_fail("fork");
    }
    if (child == 0) {
        for (uint64_t i = 0; i < peer_answers(COUNT); i++) {
            send_message(back, receive_message(there) + 1);
        }
        return 0;
    }
    peer_measure("posix_mq_64b_round_trip", ask, COUNT);
    waitpid(child, NULL, 0);
    return 0;
}
