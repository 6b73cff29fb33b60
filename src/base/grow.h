/* Arrays that double when they are full. */
#ifndef SH_BASE_GROW_H
#define SH_BASE_GROW_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SH_GROW_FIRST 16 /* the room of an array that had none */

/* Makes room for one more item of that size. array is the address of the pointer to the first of count items, and room
 * is how many fit. Returns false if there is no memory: nothing has changed then. Sets no error. */
static inline bool sh_grow(void *array, size_t count, size_t *room, size_t size)
{
    if (count < *room) {
        return true;
    }
    void *items;
    memcpy(&items, array, sizeof items); /* a pointer of any type */
    size_t more = *room > 0 ? *room * 2 : SH_GROW_FIRST;
    items = more > SIZE_MAX / size ? NULL : realloc(items, more * size);
    if (items == NULL) {
        return false;
    }
    memcpy(array, &items, sizeof items);
    *room = more;
    return true;
}

#endif
