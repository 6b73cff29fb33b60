/* Values inside: a tree of nodes, private to its process.
 *
 * A node is one allocation of 24 bytes; a string and bytes have their content behind it in the same allocation. The
 * nodes of a finished value never change, nor does reading build anything, so any number of threads may read one
 * value at a time. What a container owns can neither grow nor go into another container: so depths stay true, and no
 * value can come to hold itself.
 */
#ifndef SH_IPC_VALUE_H
#define SH_IPC_VALUE_H

#include "sync/atomic.h"

#include <shoal/value.h>

typedef struct sh_map sh_map;

/* What this process made of an object in a value: a tensor, a module; and how to let go of it. */
typedef struct sh_made_of {
    void (*drop)(void *made);
    void *made;
} sh_made_of;

/* Who ends a value. */
typedef enum sh_value_owner {
    SH_OWNER_CALLER,    /* the next call that takes it */
    SH_OWNER_CONTAINER, /* the list or map that it is a member of */
    SH_OWNER_KEEPER,    /* whoever called shoal_value_keep, with shoal_value_destroy */
} sh_value_owner;

struct shoal_value {
    uint8_t type;  /* a shoal_type */
    uint8_t depth; /* 0 for what is no container, else at least the containers on the longest way down with this one */
    uint8_t owner; /* a sh_value_owner */
    uint8_t kind;  /* of an object: its shoal_kind */
    uint32_t capacity; /* of a list or map: how many members there is room for */
    union {
        size_t size; /* of a string or bytes: without the closing NUL; of a list or map: its members */

        /* Of an object: a sh_made_of, or 0. Set once, by whoever reads the object first, and gone with the value; so it
         * may be set while others read. */
        sh_a64 attached;
    };
    union {
        bool boolean;
        int64_t integer;
        uint64_t natural; /* of a SHOAL_UINT: over INT64_MAX; of a SHOAL_FOREIGN: its tag */
        double number;
        shoal_block *object; /* one reference is ours */
        shoal_value **items; /* of a list */
        sh_map *map;         /* of a map; NULL while it has no room */
        size_t position;     /* of a string that is a key: which member it names */
    } as;
    char text[]; /* of a string or bytes, with a NUL behind */
};

typedef struct sh_value_pair {
    shoal_value *key; /* a string */
    shoal_value *value;
} sh_value_pair;

/* A search among many keys goes through the index: a tree, as <search.h> keeps it, over the texts of all keys. */
struct sh_map {
    void *index;
    sh_a64 attached; /* as that of an object, below: what a map stands for, a data set */
    sh_value_pair pairs[];
};

/* What was made of an object, or of a map that is not empty, or NULL; and keeping it there. Two may be quick to make it: the first
 * stays, the other's is dropped; returns what stays. Takes over `made`, also when it fails. NULL: made was NULL, or SHOAL_ENOMEM. Whoever
 * attaches to a map must not change the map. */
void *sh_value_attached(const shoal_value *value);
void *sh_value_attach(const shoal_value *value, void *made, void (*drop)(void *made));

/* SHOAL_ETYPE "wanted queue, the value is int"; for NULL as sh_null_in, in a call of that name. Always returns NULL. */
void *sh_value_wrong(const shoal_value *value, const char *wanted, const char *call);

/* The member of that key for a call of that name, shoal_arg_TYPE; NULL: the error names the key. And the words of what failed then,
 * with the key in front. */
const shoal_value *sh_arg_find(const shoal_value *args, const char *key, const char *call);
shoal_err sh_arg_failed(const char *key);

/* Words for messages. */
const char *sh_type_name(uint8_t type);

/* The number of leading bytes that are UTF-8 without a NUL: size, when all are. */
size_t sh_value_text_valid(const char *text, size_t size);

/* A shared object of any kind that can be sent, retained. */
shoal_value *sh_value_object(shoal_block *block);

/* A string or bytes with that content, which is not checked. NULL: SHOAL_ENOMEM. */
shoal_value *sh_value_text(shoal_type type, const void *bytes, size_t size);

/* Whether a call may read the value in order to consume it: SHOAL_EINVAL when a container owns it. NULL is allowed. */
SHOAL_MUST_USE shoal_err sh_value_check_free(const shoal_value *value);

/* What every call that takes a value does at its end, whether or not it succeeded: destroys the value, unless it is kept or
 * a member. NULL is allowed. Never changes the last error. */
void sh_value_consume(shoal_value *value);

/* SH_NEED in a call that consumes a value: it does so when it refuses another argument, too. */
#define SH_NEED_OR_CONSUME(argument, value)                                                                            \
    do {                                                                                                               \
        if (__builtin_expect(!(argument), 0)) {                                                                        \
            sh_value_consume(value);                                                                                   \
            return sh_null_error(__func__, #argument);                                                                 \
        }                                                                                                              \
    } while (0)

/* Makes room for count members in all. Errors: SHOAL_ENOMEM. */
SHOAL_MUST_USE shoal_err sh_value_reserve(shoal_value *container, uint32_t count);

/* Adds a member that no container owns; key is a string, not owned either. Both are taken over whether or not it
 * succeeds; the container stays the caller's and, after a failure, is good only for shoal_value_destroy.
 * Errors: SHOAL_EINVAL for the depth, SHOAL_ENOMEM, SHOAL_ELIMIT. */
SHOAL_MUST_USE shoal_err sh_list_append(shoal_value *list, shoal_value *member);
SHOAL_MUST_USE shoal_err sh_map_put(shoal_value *map, shoal_value *key, shoal_value *member);

/* The member with that key, or NULL; records no error. key ends with a NUL behind its size bytes. */
sh_value_pair *sh_map_find(const shoal_value *map, const char *key, size_t size);

#endif
