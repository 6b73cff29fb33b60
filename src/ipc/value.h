/* Values inside the library: trees of nodes, private to their process.
 *
 * A node is one allocation of 24 bytes; a string and bytes have their content behind it in the same allocation. The
 * nodes of a finished value never change, and reading builds nothing, so any number of threads may read one value at
 * the same time. A value that a container owns can neither grow nor go into another container. So depths stay correct,
 * and no value can contain itself.
 */
#ifndef SH_IPC_VALUE_H
#define SH_IPC_VALUE_H

#include "shm/block.h"

#include <shoal/value.h>

typedef struct sh_map sh_map;

/* The calls of a kind of object whose handle is not its block: a layer above defines it. The layer stores its row when
 * it is loaded; after that nobody writes the table. A row of zeros: the block is the handle. */
typedef struct sh_value_calls {
    /* Shares what the handle names and returns its block, which the caller owns. `call` is for error texts. */
    shoal_err (*describe)(void *handle, const char *call, shoal_block **out_block);

    void *(*open)(shoal_block *object); /* makes what this process uses; NULL and the error if that fails */
    void (*drop)(void *made);           /* releases it */

    shoal_err (*before_put)(const shoal_block *object); /* called before a value with the object is sent; may be NULL */
} sh_value_calls;

/* By shoal_kind. SH_VALUE_MAP has only drop: for what was made of a map, such as a data set. */
#define SH_VALUE_MAP SHOAL_KIND_NONE
extern sh_value_calls sh_value_kinds[SHOAL_KIND_MODULE + 1];

/* The kinds that values can contain: the noun of their calls, the shoal_kind, the sh_kind. */
#define SH_VALUE_OBJECTS(X)                                                                                            \
    SH_HANDLE_KINDS(X) X(tensor, TENSOR, TENSOR) X(sparse, SPARSE, SPARSE) X(module, MODULE, MODULE)

/* Who destroys a value. */
typedef enum sh_value_owner {
    SH_OWNER_CALLER,    /* the next call that takes it */
    SH_OWNER_CONTAINER, /* the list or map that it is a member of */
    SH_OWNER_PROGRAM,   /* the caller of shoal_value_keep, with shoal_value_destroy */
} sh_value_owner;

struct shoal_value {
    uint8_t type;  /* a shoal_type */
    uint8_t depth; /* 0 for a value that is not a container, otherwise an upper bound for its levels of containers */
    uint8_t owner; /* a sh_value_owner */
    uint8_t kind;  /* of an object: its shoal_kind; of a foreign value: SH_PACKED or 0 */
    uint32_t capacity; /* of a list or map: for how many members there is room */
    union {
        size_t size; /* of a string or bytes: without the closing NUL; of a list or map: its number of members */

        /* Of an object: what this process made of it (sh_value_calls.open), or 0. The first thread that reads the
         * object sets it once, and it goes with the value. So it may be set while others read. */
        sh_a64 attached;
    };
    union {
        bool boolean;
        int64_t integer;
        uint64_t natural; /* of a SHOAL_TYPE_UINT: above INT64_MAX; of a SHOAL_TYPE_FOREIGN: its tag */
        double number;
        shoal_block *object; /* the value owns one reference */
        shoal_value **items; /* of a list */
        sh_map *map;         /* of a map; NULL while it has no room */
        size_t position;     /* of a string that is a key: which member it names */
    } as;
    char text[]; /* of a string or bytes, followed by a NUL */
};

/* The kind of a foreign value that is MessagePack already (shoal/value.h). It has no tag. */
#define SH_PACKED 1

typedef struct sh_value_pair {
    shoal_value *key; /* a string */
    shoal_value *value;
} sh_value_pair;

/* With many keys a search goes through the index: a tree from <search.h> over the texts of all keys. */
struct sh_map {
    void *index;
    sh_a64 attached; /* as that of an object, above: what this process made of the map, such as a data set */
    sh_value_pair pairs[];
};

/* sh_value_attached returns what was made of an object, or of a map that is not empty, or NULL. sh_value_attach keeps
 * `made` there and returns what stays: if two threads attach at the same time, the first stays and the other's is
 * dropped. NULL gives NULL. A caller that attaches to a map must not change the map. */
void *sh_value_attached(const shoal_value *value);
void *sh_value_attach(const shoal_value *value, void *made);

/* Returns the handle of the value's object for the public call of that name: the block, or what was opened; the value
 * owns it. Returns NULL and sets SHOAL_ETYPE if the value is not an object of that kind, SHOAL_ESTATE if this process
 * has left its world, or the error of open. */
void *sh_value_read_object(const shoal_value *value, shoal_kind kind, const char *call);

/* Sets SHOAL_ETYPE "expected queue, but the value is int"; for NULL acts as sh_null_in does, in a call of that name.
 * Returns NULL. */
void *sh_value_wrong(const shoal_value *value, const char *wanted, const char *call);

/* sh_arg_find returns the member with that key for the call of that name, shoal_arg_TYPE; if there is none, it returns
 * NULL and the error names the key. sh_arg_failed puts the key in front of the last error's text and returns its
 * code. */
const shoal_value *sh_arg_find(const shoal_value *args, const char *key, const char *call);
shoal_err sh_arg_failed(const char *key);

/* Returns the name of a type, for error texts. */
const char *sh_type_name(uint8_t type);

/* Returns how many leading bytes are UTF-8 without a NUL: size if all are. */
size_t sh_value_text_valid(const char *text, size_t size);

/* Make a value of a shared object of any kind that can be sent. sh_value_take_object takes the caller's reference if it
 * succeeds; sh_value_object does not. */
shoal_value *sh_value_object(shoal_block *block);
shoal_value *sh_value_take_object(shoal_block *block);

/* Does what the object's kind wants before a value with it is sent. A value may have been made long before. */
static inline shoal_err sh_value_before_put(const shoal_value *value)
{
    const sh_value_calls *calls = &sh_value_kinds[value->kind];
    return calls->before_put != NULL ? calls->before_put(value->as.object) : SHOAL_OK;
}

/* Makes a string or bytes with that content, which it does not check. Returns NULL and sets SHOAL_ENOMEM if there is no
 * memory. */
shoal_value *sh_value_text(shoal_type type, const void *bytes, size_t size);

/* Checks that a call may consume the value. Returns SHOAL_EINVAL if a container owns it. NULL is allowed. */
SHOAL_MUST_USE shoal_err sh_value_check_free(const shoal_value *value);

/* Destroys the value, unless it is kept or is a member. Every call that takes a value does this at its end, whether or
 * not it succeeded. NULL is allowed. Never changes the last error. */
void sh_value_consume(shoal_value *value);

/* SH_NEED for a call that consumes a value: it consumes the value when it rejects another argument, too. */
#define SH_NEED_OR_CONSUME(argument, value)                                                                            \
    do {                                                                                                               \
        if (__builtin_expect(!(argument), 0)) {                                                                        \
            sh_value_consume(value);                                                                                   \
            return sh_null_error(__func__, #argument);                                                                 \
        }                                                                                                              \
    } while (0)

/* Makes room for count members in all. Errors: SHOAL_ENOMEM. */
SHOAL_MUST_USE shoal_err sh_value_reserve(shoal_value *container, uint32_t count);

/* Adds a member that no container owns; key is a string that no container owns either. Takes both whether or not it
 * succeeds. The caller still owns the container; after a failure it is good only for shoal_value_destroy.
 * Errors: SHOAL_EINVAL if it would be nested too deep, SHOAL_ENOMEM, SHOAL_ELIMIT. */
SHOAL_MUST_USE shoal_err sh_list_append(shoal_value *list, shoal_value *member);
SHOAL_MUST_USE shoal_err sh_map_put(shoal_value *map, shoal_value *key, shoal_value *member);

/* Returns the member with that key, or NULL without setting an error. key has a NUL after its size bytes. */
sh_value_pair *sh_map_find(const shoal_value *map, const char *key, size_t size);

#endif
