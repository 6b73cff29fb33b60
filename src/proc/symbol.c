#include "proc/symbol.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* Reads from the file. A mapping would raise SIGBUS if the file became shorter meanwhile. */
static bool read_at(int fd, void *bytes, size_t size, uint64_t at)
{
    return at <= INT64_MAX && pread(fd, bytes, size, (off_t)at) == (ssize_t)size;
}

static bool section_at(int fd, const ElfW(Ehdr) * head, uint32_t number, ElfW(Shdr) * out_section)
{
    return number < head->e_shnum && head->e_shentsize == sizeof *out_section &&
           read_at(fd, out_section, sizeof *out_section, head->e_shoff + (uint64_t)number * sizeof *out_section);
}

static bool read_name(int fd, const ElfW(Shdr) * strings, uint32_t at, char *buffer, size_t capacity)
{
    char name[256];
    if (at >= strings->sh_size || strings->sh_offset > INT64_MAX) {
        return false;
    }
    uint64_t left = strings->sh_size - at;
    ssize_t n = pread(fd, name, left < sizeof name ? (size_t)left : sizeof name, (off_t)(strings->sh_offset + at));
    size_t length = n > 0 ? strnlen(name, (size_t)n) : 0;
    if (length == 0 || capacity == 0) {
        return false;
    }
    length = length < capacity ? length : capacity - 1;
    memcpy(buffer, name, length);
    buffer[length] = 0;
    return true;
}

static bool find_in(int fd, const ElfW(Shdr) * table, const ElfW(Shdr) * strings, uint64_t offset, char *buffer,
                    size_t capacity)
{
    enum { AT_ONCE = 128 };
    ElfW(Sym) symbols[AT_ONCE];
    uint64_t count = table->sh_size / sizeof symbols[0];
    for (uint64_t i = 0; i < count; i += AT_ONCE) {
        size_t n = count - i < AT_ONCE ? (size_t)(count - i) : AT_ONCE;
        if (!read_at(fd, symbols, n * sizeof symbols[0], table->sh_offset + i * sizeof symbols[0])) {
            return false;
        }
        for (size_t k = 0; k < n; k++) {
            if (symbols[k].st_value == offset && ELF64_ST_TYPE(symbols[k].st_info) == STT_FUNC &&
                symbols[k].st_shndx != SHN_UNDEF && read_name(fd, strings, symbols[k].st_name, buffer, capacity)) {
                return true;
            }
        }
    }
    return false;
}

bool sh_symbol_find(const char *path, uint64_t offset, char *buffer, size_t capacity)
{
    ElfW(Ehdr) head;
    ElfW(Shdr) table, strings;
    bool found = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    if (read_at(fd, &head, sizeof head, 0) && memcmp(head.e_ident, ELFMAG, SELFMAG) == 0) {
        for (uint32_t i = 0; !found && section_at(fd, &head, i, &table); i++) {
            found = table.sh_type == SHT_SYMTAB && table.sh_entsize == sizeof(ElfW(Sym)) &&
                    section_at(fd, &head, table.sh_link, &strings) &&
                    find_in(fd, &table, &strings, offset, buffer, capacity);
        }
    }
    close(fd);
    return found;
}
