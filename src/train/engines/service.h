/* What a job does for its workers' engines: it finds out whether there is a device, and keeps running what they share,
 * such as NVIDIA's MPS. The job never opens the device itself. */
#ifndef SH_TRAIN_SERVICE_H
#define SH_TRAIN_SERVICE_H

#include <shoal/train.h>

typedef struct sh_service sh_service;
typedef struct sh_service_type sh_service_type;

/* What it tells the workers' engines. */
typedef struct sh_service_settings {
    char folder[64]; /* of MPS: for sh_mps_join */
    int share;       /* percent of the GPU that a worker may use; 0: all */
    bool restarts;   /* the device may be gone for a moment, and come back */
} sh_service_settings;

struct sh_service_type {
    /* Checks the options of the job. Opens nothing, and does not block. */
    shoal_err (*check)(const shoal_train_options *o);

    /* open begins to look for the device, and returns; find waits for the answer. Errors of find: those of
     * sh_device_get. */
    shoal_err (*open)(const shoal_train_options *o, sh_service **out_service);
    shoal_err (*find)(sh_service *s);
    void (*close)(sh_service *s);

    /* start makes the device ready for workers, before the first one starts; stop is called when all have ended, and
     * accepts a service that was not started. */
    shoal_err (*start)(sh_service *s);
    void (*stop)(sh_service *s);

    /* Fills in what workers that start from now on are told. */
    void (*settings)(const sh_service *s, sh_service_settings *out_settings);

    /* A worker has lost the device, and will start again. */
    void (*lost)(sh_service *s);

    /* No worker goes on after a death. may_replace returns whether replace can help, which starts again what the
     * workers share: they have been killed. */
    bool (*may_replace)(const sh_service *s);
    void (*replace)(sh_service *s);

    /* Returns one line for people that was not returned before; "": none. */
    const char *(*note)(sh_service *s);
};

/* The own struct of a service begins with it. */
struct sh_service {
    const sh_service_type *type;
};

extern const sh_service_type sh_service_cuda;

#endif
