/* The name of a function in the symbol table of an ELF file. dladdr knows the exported functions only, and the functions of a program
 * are mostly not exported; the file knows them all, unless it was stripped. */
#ifndef SH_PROC_SYMBOL_H
#define SH_PROC_SYMBOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The function that begins at the offset; its name is cut where the buffer ends. False, and the buffer as it was, when there is none
 * or the file cannot be read; nothing in the file is believed. Records no error. */
bool sh_symbol_find(const char *path, uint64_t offset, char *buffer, size_t capacity);

#endif
