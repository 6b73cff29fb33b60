/* The tests of which process is dead, for the suite of kill_recovery.c. */
#ifndef SH_TESTS_KILL_JUDGEMENT_H
#define SH_TESTS_KILL_JUDGEMENT_H

#include <check.h>

TCase *kill_judgement_case(void);

#endif
