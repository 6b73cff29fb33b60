/* What a loader and its workers share.
 *
 * A worker has places for batches; place p belongs to worker p / places_each. The loader writes the numbers of samples into a
 * place and puts a task on the worker's queue; the worker fetches them into the place's tensors and puts an answer on the common
 * queue. Both are one word, so they travel inside the rings. The tensors of a place stay the same until the caller has
 * retained one: then new ones go to the worker as a value. */
#ifndef SH_DATA_FETCHERS_H
#define SH_DATA_FETCHERS_H

#include <shoal/process.h>

#define SH_PLACE_TEXT 256

/* Synchronisation: a place belongs to the loader, until its task is put on the worker's queue; then to the worker, until its
 * answer is put on the common queue; then to the loader again. The queues order what both write.
 *
 * death: the loader waits for a dead worker's places to be answered, learns of the death from the process handle, and then owns
 *        them again, whatever is written in them: it gives them to the next worker. */
typedef struct sh_place_shm {
    char text[SH_PLACE_TEXT]; /* worker: words for an answer that is an error */
    int64_t count;            /* loader */
    int64_t numbers[];        /* loader: count of them */
} sh_place_shm;

/* A task, or an answer to it. The sequence tells an answer from one that is too late. */
typedef union sh_fetchers_word {
    struct {
        uint32_t sequence;
        uint16_t place;
        uint16_t err; /* of an answer: shoal_err */
    };
    uint64_t word;
} sh_fetchers_word;

/* Keys of the map that a worker is started with; of a place in its list, and of a message that renews one. */
#define SH_CREW_SET "set"
#define SH_CREW_TASKS "tasks"
#define SH_CREW_ANSWERS "answers"
#define SH_CREW_PLACES "places"
#define SH_CREW_FIRST "first"
#define SH_PLACE "place"
#define SH_PLACE_BLOCK "block"
#define SH_PLACE_X "x"
#define SH_PLACE_Y "y"

/* What runs in a worker: fetches until the queue of tasks is closed. */
shoal_err sh_fetchers_work(int rank, const shoal_value *args);

#endif
