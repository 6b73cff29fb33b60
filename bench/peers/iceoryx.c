/* Round trips of 64 bytes through iceoryx: a chunk is loaned, written and published each way, and both sides spin, each
 * on a separate CPU. The daemon iox-roudi must be running. */
#include "bench/peers/peer.h"

#include <iceoryx_binding_c/api.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 500
#define PATIENCE 20.0 /* seconds */

static iox_pub_storage_t publisher_storage;
static iox_sub_storage_t subscriber_storage;
static iox_pub_t publisher;
static iox_sub_t subscriber;

static void connect_to_roudi(const char *own_name, const char *sends, const char *takes)
{
    iox_pub_options_t to;
    iox_sub_options_t from;
    iox_runtime_init(own_name);
    iox_pub_options_init(&to);
    publisher = iox_pub_init(&publisher_storage, "shoal-bench", "trip", sends, &to);
    iox_sub_options_init(&from);
    from.queueCapacity = 8;
    subscriber = iox_sub_init(&subscriber_storage, "shoal-bench", "trip", takes, &from);
    for (double begun = peer_now(); iox_sub_get_subscription_state(subscriber) != SubscribeState_SUBSCRIBED ||
                                    !iox_pub_has_subscribers(publisher);) {
        if (peer_now() - begun > PATIENCE) {
            fprintf(stderr, "iceoryx: the other side does not connect\n");
            exit(1);
        }
        usleep(1000);
    }
}

static void send_message(uint64_t number)
{
    void *chunk;
    if (iox_pub_loan_chunk(publisher, &chunk, PEER_SIZE) != AllocationResult_SUCCESS) {
        peer_fail("iox_pub_loan_chunk");
    }
    peer_fill(chunk, number);
    iox_pub_publish_chunk(publisher, chunk);
}

static uint64_t receive_message(void)
{
    const void *chunk = NULL;
    double begun = 0;
    for (unsigned looks = 1; iox_sub_take_chunk(subscriber, &chunk) != ChunkReceiveResult_SUCCESS; looks++) {
        if (looks % 1000000 == 0) {
            begun = begun == 0 ? peer_now() : begun;
            if (peer_now() - begun > PATIENCE) {
                fprintf(stderr, "iceoryx: the other side does not answer\n");
                exit(1);
            }
        }
    }
    const peer_message *message = chunk;
    uint64_t number = message->words[0];
    if (!peer_is(message, number)) {
        peer_fail("a wrong message");
    }
    iox_sub_release_chunk(subscriber, chunk);
    return number;
}

static void ask(uint64_t number)
{
    send_message(number);
    if (receive_message() != number + 1) {
        peer_fail("a wrong answer");
    }
}

/* Limit and round trips alternate, on both sides. */
static void measure(_Atomic uint64_t *word, bool asks)
{
    double limit[PEER_ROUNDS], trip[PEER_ROUNDS];
    uint64_t now = 0, number = 0;
    for (int round = -1; round < PEER_ROUNDS; round++) {
        double begun = peer_now();
        peer_ping_pong(word, asks, COUNT, &now);
        double between = peer_now();
        for (uint64_t i = 0; i < COUNT; i++) {
            if (asks) {
                ask(number++);
            } else {
                send_message(receive_message() + 1);
            }
        }
        if (round >= 0) {
            limit[round] = (between - begun) / COUNT;
            trip[round] = (peer_now() - between) / COUNT;
        }
    }
    if (asks) {
        peer_print("iceoryx_cache_line_ping_pong", peer_median(limit));
        peer_print("iceoryx_64b_round_trip", peer_median(trip));
    }
}

int main(void)
{
    char name[64];
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = page != MAP_FAILED ? fork() : -1;
    if (child < 0) {
        peer_fail("cannot start two processes");
    }
    bool asks = child != 0;
    snprintf(name, sizeof name, "shoal-bench-%d", (int)getpid());
    connect_to_roudi(name, asks ? "there" : "back", asks ? "back" : "there");
    peer_stay_on(asks ? 0 : 1);
    measure(page, asks);
    iox_sub_deinit(subscriber);
    iox_pub_deinit(publisher);
    if (asks) {
        waitpid(child, NULL, 0);
    }
    return 0;
}
