/* Wrote the checkpoints beside it, with the library of version 0.2:
 *
 *     cc -I include tests/train/v0.2/make.c -L build/lib -lshoal -o make && SHOAL_CPU=plain ./make tests/train/v0.2
 *
 * NAME.begun is a job that was stopped in the middle of an epoch, NAME.done the same job at its end, without a stop. */
#include "jobs.h"

#include <stdio.h>
#include <unistd.h>

typedef struct stop {
    bool at_once; /* at the first tick: the workers go on during a tick */
    int ticks;    /* in the fourth epoch; else */
} stop;

/* Stops the job. From the fourth epoch on each look at the workers is a tick, because the ticks are slow. */
static bool see(const shoal_train_event *event, void *context)
{
    stop *s = context;
    if (event->so_far.epochs >= 3 && !s->at_once) {
        usleep(60000);
    }
    s->ticks -= event->kind == SHOAL_TRAIN_TICK && (event->so_far.epochs >= 3 || s->at_once);
    return s->ticks > 0;
}

int main(int argc, char **argv)
{
    if (shoal_init(&argc, &argv) != SHOAL_OK) {
        return 1;
    }
    shoal_dataset *train = samples_of(SAMPLES, 1), *test = samples_of(TESTS, 2);
    for (size_t i = 0; i < COUNT(jobs); i++) {
        for (int whole = 0; whole < (jobs[i].differs ? 1 : 2); whole++) {
            char path[300];
            shoal_module *model = small_model(jobs[i].o.method, 3);
            shoal_train_options o = job_of(i, model, train, test);
            snprintf(path, sizeof path, "%s/%s.%s", argc > 1 ? argv[1] : ".", jobs[i].name, whole ? "done" : "begun");
            o.save = path;
            bool few = jobs[i].differs || o.method == SHOAL_METHOD_FEDAVG; /* a round is an epoch */
            stop s = {.at_once = jobs[i].differs, .ticks = few ? 1 : o.workers == 1 ? 2 : 4};
            o.call = whole ? NULL : see;
            o.context = &s;
            shoal_train_result r;
            if (shoal_train_run(&o, &r) != SHOAL_OK) {
                fprintf(stderr, "%s: %s\n", path, shoal_last_error_text());
                return 1;
            }
            printf("%s: %lld epochs, %lld images\n", path, (long long)r.epochs, (long long)r.images);
            shoal_module_destroy(model);
        }
    }
    shoal_dataset_release(train);
    shoal_dataset_release(test);
    return 0;
}
