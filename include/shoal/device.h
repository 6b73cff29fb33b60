/* Devices: where the elements of a tensor are. */
#ifndef SHOAL_DEVICE_H
#define SHOAL_DEVICE_H

/* The device of a tensor: the CPU or a CUDA GPU. */
typedef enum shoal_device {
    SHOAL_CPU,
    SHOAL_CUDA,
} shoal_device;

#endif
