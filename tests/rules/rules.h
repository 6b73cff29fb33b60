/* The table of the rules test: what generate.py writes, arguments.c makes and rules.c walks over. */
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

/* What a call takes away from its caller. */
typedef enum rules_takes {
    RULES_NEVER,
    RULES_ON_SUCCESS,
    RULES_ALWAYS,
} rules_takes;

/* What NULL does in a place. */
typedef enum rules_null {
    RULES_REFUSED, /* SHOAL_EINVAL; from a call that returns NULL, for what another call makes, the first error is kept */
    RULES_ALLOWED,    /* the call works */
    RULES_GIVES_NULL, /* the call does nothing, and records nothing */
} rules_null;

/* What a row has to answer in a state: a shoal_err (returned, or recorded with NULL), or one of these. */
enum {
    RULES_WORKS = -1, /* what it answers when all is well */
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
    void (*drop)(void *thing); /* NULL: there is nothing to drop */
} rules_maker;

typedef struct rules_row {
    const char *name;
    const char *skipped; /* the reason; NULL: not skipped */
    rules_returns returns;
    bool expression; /* returns an object of the library, or NULL when it fails */
    bool heavy;      /* table.py, HEAVY */
    bool starts;     /* table.py, STARTS */
    bool writes_and_fails;
    void (*call)(void **a, rules_result *out);
    void (*drop_result)(void *result); /* NULL: the result is not the caller's */
    int works;
    int answer[RULES_STATES];
    int pointers;
    struct {
        const char *name;
        rules_null null;
        bool made; /* by a call of the library: its NULL may come from an earlier failure */
        rules_takes takes;
        const rules_maker *maker;       /* NULL: an output */
        void (*drop_out)(void *output); /* of an output that is a handle: of *output */
    } pointer[RULES_POINTERS];
} rules_row;

extern const rules_row rules_table[];
extern const size_t rules_count;

/* arguments.c: writes the files that the makers of paths name into the current folder. */
bool rules_write_files(void);

void rules_drop_module(void *thing);
void rules_drop_sparse(void *thing);
void rules_drop_tensor(void *thing);

/* Ends the pool and the process that calls share. */
void rules_drop_kept(void);

/* Ends what was made beside an argument (the other end of a pipe). Its drop does so, too. */
void rules_drop_companions(const void *thing);

/* memory.c: allocations that fail, and those that are still there. */
void rules_fail_at(int n);     /* the n-th allocation of this thread from now; 0: none */
bool rules_has_failed(void);   /* since the last rules_fail_at */
int64_t rules_allocated(void); /* what the library, and the test, have allocated and not freed */

#endif
