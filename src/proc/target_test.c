#include "proc/target.h"

#include "proc/process_test.h"
#include "proc/symbol.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

static void here(void)
{
}

/* Whether the library's functions belong to the program depends on how the test is linked. */
static bool is_of_program(sh_function function)
{
    Dl_info program, one;
    ck_assert_int_ne(dladdr((void *)(uintptr_t)here, &program), 0);
    ck_assert_int_ne(dladdr((void *)(uintptr_t)function, &one), 0);
    return one.dli_fbase == program.dli_fbase;
}

START_TEST(functions_are_found_again)
{
    const sh_function functions[] = {here, (sh_function)sh_target_name, (sh_function)insque, (sh_function)shoal_spawn};
    ck_assert(is_of_program(here) && !is_of_program((sh_function)insque));
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        sh_target target;
        sh_function found = NULL;
        ck_assert_ok(sh_target_name(functions[i], &target));
        ck_assert_ok(sh_target_find(&target, sh_target_size(&target), &found));
        ck_assert(found == functions[i]);
        ck_assert_int_eq(target.path[0] == 0, is_of_program(functions[i]));
    }
}
END_TEST

START_TEST(an_address_outside_functions_is_refused)
{
    sh_target target;
    int data = 0;
    ck_assert_err(sh_target_name(NULL, &target), SHOAL_EINVAL);
    ck_assert_err(sh_target_name((sh_function)(uintptr_t)&data, &target), SHOAL_EINVAL);
    ck_assert_err(sh_target_name((sh_function)(uintptr_t)16, &target), SHOAL_EINVAL);
}
END_TEST

START_TEST(another_build_is_refused)
{
    sh_target target, other;
    sh_function found = NULL;
    ck_assert_ok(sh_target_name(here, &target));
    other = target;
    other.id[0] ^= 1;
    ck_assert_err(sh_target_find(&other, sh_target_size(&other), &found), SHOAL_ENOENT);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "another build"));
    other = target;
    other.offset = UINT64_C(1) << 40; /* no code there */
    ck_assert_err(sh_target_find(&other, sh_target_size(&other), &found), SHOAL_ENOENT);
    other = target;
    strcpy(other.path, "/nowhere/lib.so");
    ck_assert_err(sh_target_find(&other, sh_target_size(&other), &found), SHOAL_ENOENT);
    ck_assert_ptr_nonnull(strstr(shoal_last_error_text(), "/nowhere/lib.so"));
    ck_assert_err(sh_target_find(&target, offsetof(sh_target, path), &found), SHOAL_ECORRUPT);
    other = target;
    other.id_size = 1000;
    ck_assert_err(sh_target_find(&other, sh_target_size(&other), &found), SHOAL_ECORRUPT);
    ck_assert(found == NULL);
}
END_TEST

START_TEST(readable_names)
{
    char label[64], small[8];
    sh_target_label((sh_function)insque, label, sizeof label);
    ck_assert_str_eq(label, "insque");
    for (int i = 0; i < 2; i++) {                   /* the second time from the cache */
        sh_target_label(here, label, sizeof label); /* a static function */
        ck_assert_str_eq(label, "here");
        sh_target_label((sh_function)is_of_program, small, sizeof small);
        ck_assert_str_eq(small, "is_of_p");
    }
    sh_target_label((sh_function)((uintptr_t)is_of_program + 1), label,
                    sizeof label); /* no function begins here, as in a stripped program */
    ck_assert_msg(strncmp(label, "proc_target_test+0x", 19) == 0, "%s", label);
}
END_TEST

/* The search trusts nothing in the file. */
START_TEST(symbols_of_damaged_files)
{
    static char file[1 << 16];
    char path[] = "/tmp/shoal-symbols-XXXXXX", name[32] = "as it was";
    int in = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), fd = mkostemp(path, O_CLOEXEC);
    struct stat s;
    ck_assert(in >= 0 && fd >= 0 && fstat(in, &s) == 0);
    ck_assert(!sh_symbol_find("/nowhere", 1, name, sizeof name));
    ck_assert(!sh_symbol_find(path, 1, name, sizeof name)); /* empty */
    ck_assert_int_eq(sendfile(fd, in, NULL, (size_t)s.st_size), s.st_size);
    ElfW(Ehdr) head;
    ck_assert_int_eq(pread(fd, &head, sizeof head, 0), sizeof head);
    ssize_t size = pread(fd, file, sizeof file, (off_t)head.e_shoff);
    ck_assert_int_ge(size, (ssize_t)sizeof(ElfW(Shdr)) * head.e_shnum);
    srand(1);
    for (int i = 0; i < 300; i++) { /* replaces random words of the section headers */
        ElfW(Shdr) *sections = (ElfW(Shdr) *)file;
        ElfW(Shdr) before = sections[i % head.e_shnum];
        uint64_t *words = (uint64_t *)&sections[i % head.e_shnum];
        words[rand() % (int)(sizeof before / 8)] = (uint64_t)rand() << (rand() % 40);
        ck_assert_int_eq(pwrite(fd, file, (size_t)size, (off_t)head.e_shoff), size);
        (void)sh_symbol_find(path, (uint64_t)rand() % 65536, name, sizeof name);
        sections[i % head.e_shnum] = before;
    }
    ck_assert_int_eq(ftruncate(fd, (off_t)head.e_shoff), 0); /* no sections: as stripped */
    snprintf(name, sizeof name, "as it was");
    ck_assert(!sh_symbol_find(path, 1, name, sizeof name));
    ck_assert_str_eq(name, "as it was");
    close(in);
    close(fd);
    unlink(path);
}
END_TEST

/* Copies the module, so that its file can be removed. */
static void copy_module(char *out_path, size_t size)
{
    char from[512];
    struct stat s;
    const char *build = getenv("SHOAL_BUILD_DIR");
    ck_assert_msg(build != NULL, "SHOAL_BUILD_DIR is not set");
    snprintf(from, sizeof from, "%s/tests/proc_target_module.so", build);
    snprintf(out_path, size, "/tmp/shoal-module-XXXXXX");
    int in = open(from, O_RDONLY | O_CLOEXEC), out = mkostemp(out_path, O_CLOEXEC);
    ck_assert_msg(in >= 0 && out >= 0 && fstat(in, &s) == 0, "%s", from);
    ck_assert_int_eq(sendfile(out, in, NULL, (size_t)s.st_size), s.st_size);
    close(in);
    close(out);
}

START_TEST(a_library_that_was_loaded_later)
{
    char path[64];
    copy_module(path, sizeof path);
    void *module = dlopen(path, RTLD_NOW);
    ck_assert_msg(module != NULL, "%s", dlerror());
    shoal_target (*get)(void) = (shoal_target(*)(void))dlsym(module, "sh_test_target");
    ck_assert(get != NULL);
    for (int rank = 6; rank <= 8; rank++) {
        shoal_process *p;
        if (rank == 8) {
            unlink(path);
        }
        ck_assert_ok(shoal_process_start(get(), shoal_value_null(),
                                         &(shoal_process_options){.start = (shoal_start)_i, .rank = rank}, &p));
        shoal_status status = finish(p);
        if (rank == 7) {
            ck_assert_str_eq(status.text, "rank 7 returned");
        } else if (rank == 6 || _i == SHOAL_START_FORK) { /* a fork has it in memory */
            ck_assert_int_eq(status.err, SHOAL_EINVAL);
        } else {
            ck_assert_msg(strstr(status.text, "rank 8 failed: SHOAL_ENOENT") != NULL, "%s", status.text);
            ck_assert_msg(strstr(status.text, path) != NULL, "%s", status.text);
        }
        shoal_process_destroy(p);
    }
    dlclose(module);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("target");
    TCase *tc = methods_case("target");
    tcase_add_test(tc, functions_are_found_again);
    tcase_add_test(tc, an_address_outside_functions_is_refused);
    tcase_add_test(tc, another_build_is_refused);
    tcase_add_test(tc, readable_names);
    tcase_add_test(tc, symbols_of_damaged_files);
    add_for_methods(tc, a_library_that_was_loaded_later);
    suite_add_tcase(s, tc);
    return s;
}

SH_TEST_MAIN(suite)
