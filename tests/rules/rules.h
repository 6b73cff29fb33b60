/* The table of the rules test: what generate.py writes and rules.c walks over. */
#ifndef SH_TESTS_RULES_H
#define SH_TESTS_RULES_H

#include <shoal/binding.h>
#include <shoal/shoal.h>

#define RULES_POINTERS 12

typedef enum rules_returns {
    RULES_VOID,
    RULES_PLAIN, /* a number, a bool, an enum or a struct: cannot fail */
    RULES_ERR,
    RULES_POINTER,
} rules_returns;

typedef struct rules_result {
    shoal_err err;
    const void *pointer;
} rules_result;

typedef struct rules_row {
    const char *name;
    const char *skipped; /* the reason; NULL: not skipped */
    rules_returns returns;
    bool expression;                           /* returns an object of the library, or NULL when it fails */
    void (*call)(int null, rules_result *out); /* null: the parameter that is NULL; -1: none */
    int pointers;
    struct {
        int at;
        const char *name;
        bool optional; /* NULL is allowed */
    } pointer[RULES_POINTERS];
} rules_row;

extern const rules_row rules_table[];
extern const size_t rules_count;

/* Arguments. Those of handles are made once and used again. */
void *rules_out(void);        /* room for any output, filled with a pattern */
void *rules_numbers(void);    /* zeros: shapes, options, types */
void *rules_text(void);       /* "x" */
void *rules_function(void);   /* returns 0 and touches nothing */
void *rules_make_value(void); /* a fresh one, for calls that consume it */

/* clang-format off */
#define RULES_TYPES(X)                                                                                                 \
    X(barrier) X(block) X(condition) X(dataset) X(dlpack) X(env) X(event) X(future) X(iterator) X(loader) X(lock)      \
    X(message) X(module) X(optimizer) X(pipe) X(pool) X(process) X(queue) X(rlock) X(semaphore) X(sparse) X(tensor)    \
    X(tensors) X(value)
/* clang-format on */
#define RULES_MAKER(type) void *rules_make_shoal_##type(void);
RULES_TYPES(RULES_MAKER)
#undef RULES_MAKER

#endif
