/* The table of the rules test: generate.py writes it, arguments.c makes the arguments, and rules.c runs it. */
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

/* Which arguments a call consumes. */
typedef enum rules_takes {
    RULES_NEVER,
    RULES_ON_SUCCESS,
    RULES_ALWAYS,
} rules_takes;

/* The effect of NULL for a pointer. */
typedef enum rules_null {
    RULES_REFUSED,    /* SHOAL_EINVAL; a call that returns NULL keeps the first error if calls make such pointers */
    RULES_ALLOWED,    /* the call works */
    RULES_GIVES_NULL, /* the call does nothing, and records nothing */
} rules_null;

/* The result that a row must give in a state: a shoal_err (returned, or recorded with NULL), or one of these. */
enum {
    RULES_WORKS = -1, /* the same result as when all is well */
    RULES_NULL = -2,  /* NULL or zero, and the last error stays */
};

typedef enum rules_state {
    RULES_LEFT,
    RULES_ENDED,
    RULES_FORKED,
    RULES_STATES,
} rules_state;

typedef struct rules_result {
    shoal_err err;
    const void *pointer;
    bool nonzero;
} rules_result;

typedef struct rules_maker {
    void *(*make)(void);
    void (*drop)(void *thing); /* NULL if there is nothing to drop */
} rules_maker;

typedef struct rules_row {
    const char *name;
    const char *skipped; /* the reason; NULL if not skipped */
    rules_returns returns;
    bool expression; /* returns an object of the library, or NULL if it fails */
    bool heavy;      /* table.py, HEAVY */
    bool starts;     /* table.py, STARTS */
    bool writes_and_fails;
    void (*call)(void **a, rules_result *out);
    void (*drop_result)(void *result); /* NULL if the caller does not own the result */
    int works;
    int answer[RULES_STATES];
    int pointers;
    struct {
        const char *name;
        rules_null null;
        bool made; /* by a call of the library, so NULL may be the result of an earlier failure */
        rules_takes takes;
        const rules_maker *maker;       /* NULL for an output */
        void (*drop_out)(void *output); /* for an output that is a handle: drops *output */
    } pointer[RULES_POINTERS];
} rules_row;

extern const rules_row rules_table[];
extern const size_t rules_count;

/* arguments.c: writes the files that the makers of paths name into the current directory. */
bool rules_write_files(void);

void rules_drop_module(void *thing);
void rules_drop_sparse(void *thing);
void rules_drop_tensor(void *thing);

/* Ends the pool and the process that calls share. */
void rules_drop_kept(void);

/* Destroys what was made together with an argument (the other end of a pipe). Its drop does so, too. */
void rules_drop_companions(const void *thing);

/* memory.c: failing allocations, and counting those that are not freed. */
void rules_fail_at(int n);     /* fails the n-th allocation of this thread from now on; 0 for none */
bool rules_has_failed(void);   /* since the last rules_fail_at */
int64_t rules_allocated(void); /* how many allocations the library and the test have not freed */

#endif
