/* Feeds any bytes to the value decoder. A decoded value must encode, decode again to an equal value, copy and print. */
#include "ipc/value_codec.h"
#include "tests/fuzz/fuzz.h"

/* The shared objects that the bytes may refer to: two blocks, made once. */
static shoal_block *objects[2];

static size_t make_objects(void)
{
    for (size_t i = 0; i < 2; i++) {
        if (objects[i] == NULL && shoal_block_create(64, &objects[i]) != SHOAL_OK) {
            return i;
        }
    }
    return 2;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    size_t object_count = make_objects();
    shoal_value *value = NULL;
    shoal_err err = sh_value_decode(bytes, size, objects, object_count, &value);
    if (err != SHOAL_OK) {
        require(value == NULL && (err == SHOAL_ECORRUPT || err == SHOAL_ENOMEM));
        return 0;
    }

    sh_encoding e;
    shoal_value *again = NULL;
    require(sh_encoding_init(&e, value) == SHOAL_OK);
    require(e.object_count <= object_count);
    require(sh_value_decode(e.bytes, e.size, e.objects, e.object_count, &again) == SHOAL_OK);
    require(shoal_value_equal(value, again));
    sh_encoding_fini(&e);

    shoal_value *copy = shoal_value_copy(value);
    require(shoal_value_equal(copy, value));

    char small[32];
    size_t length = shoal_value_format(value, small, sizeof small);
    char *text = malloc(length + 1);
    require(text != NULL && shoal_value_format(again, text, length + 1) == length);
    free(text);

    shoal_value_destroy(copy);
    shoal_value_destroy(again);
    shoal_value_destroy(value);
    return 0;
}
