#include "device/cuda_closings.h"

#include <stdlib.h>

typedef struct closing {
    struct closing *next;
    shoal_block *owner_block;
    uint64_t number; /* of the mark after which it can be released; 0: not marked yet */
} closing;

static closing *first, **end = &first;
static closing **unmarked = &first; /* the first without a mark, or end */
static unsigned unmarked_count;

bool sh_cuda_closings_add(shoal_block *owner_block)
{
    closing *c = malloc(sizeof *c);
    if (c) {
        *c = (closing){.owner_block = owner_block};
        *end = c;
        end = &c->next;
        unmarked_count++;
    }
    return c != NULL;
}

void sh_cuda_closings_mark(uint64_t number)
{
    for (; *unmarked; unmarked = &(*unmarked)->next) {
        (*unmarked)->number = number;
    }
    unmarked_count = 0;
}

void sh_cuda_closings_release(bool (*is_over)(uint64_t number))
{
    while (first && (!is_over || (first->number != 0 && is_over(first->number)))) {
        closing *c = first;
        first = c->next;
        if (unmarked == &c->next) {
            unmarked = &first;
        }
        if (end == &c->next) {
            end = &first;
        }
        sh_block_release(c->owner_block);
        free(c);
    }
    unmarked_count = first ? unmarked_count : 0;
}

bool sh_cuda_closings_exist(void)
{
    return first != NULL;
}

unsigned sh_cuda_closings_unmarked(void)
{
    return unmarked_count;
}
