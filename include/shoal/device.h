/* Where the bytes of a tensor are. */
#ifndef SHOAL_DEVICE_H
#define SHOAL_DEVICE_H

/* The CPU, or a CUDA card. */
typedef enum shoal_device {
    SHOAL_CPU,
    SHOAL_CUDA,
} shoal_device;

#endif
