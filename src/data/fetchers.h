/* What a loader and its worker processes share.
 *
 * Each worker has places for batches; place p belongs to worker p / places_each. The loader writes the numbers of
 * samples into a place and puts a task on the worker's queue. The worker fetches the samples into the place's tensors
 * and puts an answer on the common queue. Task and answer are one word each, so they are stored inside the rings. A
 * place keeps its tensors until the caller retains one of them: then the loader sends new ones to the worker as a
 * value. */
#ifndef SH_DATA_FETCHERS_H
#define SH_DATA_FETCHERS_H

#include <shoal/process.h>

#define SH_PLACE_TEXT 256

/* Synchronisation: a place belongs to the loader until its task is put on the worker's queue, then to the worker until
 * its answer is put on the common queue, then to the loader again. The queues order the writes of both.
 *
 * death: of a worker: the loader waits for the answers to its places, learns of the death from the process handle, and
 * then owns the places again, whatever is written in them. It gives them to the next worker. */
typedef struct sh_place_shm {
    char text[SH_PLACE_TEXT]; /* worker: the error text, if the answer is an error */
    int64_t count;            /* loader */
    int64_t numbers[];        /* loader: `count` numbers */
} sh_place_shm;

/* A task, or an answer to it. The sequence distinguishes an answer from a late answer to an earlier task. */
typedef union sh_fetchers_word {
    struct {
        uint32_t sequence;
        uint16_t place;
        uint16_t err; /* of an answer: shoal_err */
    };
    uint64_t word;
} sh_fetchers_word;

/* Keys of the map that a worker gets as its argument, of a place in its list, and of a message that renews a place. */
#define SH_FETCHERS_SET "set"
#define SH_FETCHERS_TASKS "tasks"
#define SH_FETCHERS_ANSWERS "answers"
#define SH_FETCHERS_PLACES "places"
#define SH_FETCHERS_FIRST "first"
#define SH_PLACE "place"
#define SH_PLACE_BLOCK "block"
#define SH_PLACE_X "x"
#define SH_PLACE_Y "y"

/* Runs in a worker: fetches batches until the task queue is closed. */
shoal_err sh_fetchers_work(int rank, const shoal_value *args);

#endif
