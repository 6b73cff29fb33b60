#include "testing/runner.h"
static Suite *suite(void) { return suite_create("fedavg"); }
SH_TEST_MAIN(suite)
