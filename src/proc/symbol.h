/* Looks up the name of a function in the symbol table of an ELF file. dladdr knows exported functions only, and most
 * functions of a program are not exported; the file has them all, unless it was stripped. */
#ifndef SH_PROC_SYMBOL_H
#define SH_PROC_SYMBOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Finds the function that begins at the offset and writes its name, truncated to the buffer. Returns false and leaves
 * the buffer unchanged if there is none or the file cannot be read. Trusts nothing in the file. Records no error. */
bool sh_symbol_find(const char *path, uint64_t offset, char *buffer, size_t capacity);

#endif
