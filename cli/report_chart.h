/* Draws a chart as SVG in a page: axes with round ticks, curves with their names at their ends, marks on the time axis.
 * The page's script only adds what is shown under the pointer. */
#ifndef CLI_REPORT_CHART_H
#define CLI_REPORT_CHART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef enum cli_unit {
    CLI_UNIT_PLAIN,
    CLI_UNIT_SECONDS,
    CLI_UNIT_COUNT,   /* 250 k */
    CLI_UNIT_PERCENT, /* of fractions: 0.98 is 98 % */
} cli_unit;

typedef enum cli_scale {
    CLI_SCALE_ZERO,  /* from 0 */
    CLI_SCALE_RANGE, /* around the values */
    CLI_SCALE_LOG,   /* logarithmic if the values range over more than a decade, else around the values */
} cli_scale;

/* A curve. A point whose y is NaN is a gap. One whose y is infinite is marked above the plot as a value that is NaN or
 * infinite. */
typedef struct cli_curve {
    const char *name;
    const char *x_key, *y_key; /* the names of the same numbers in the page's data, for the script */
    const double *x, *y;
    const double *low; /* if not NULL, the area between low and y is filled instead of drawing a line */
    size_t count;
    int color;   /* 1 to 8 */
    bool points; /* draw a dot at each point */
} cli_curve;

typedef enum cli_mark_kind {
    CLI_MARK_DEATH,
    CLI_MARK_SAVE,
    CLI_MARK_STOP,
    CLI_MARK_KINDS,
} cli_mark_kind;

typedef struct cli_chart_mark {
    cli_mark_kind kind;
    double x;
    const char *text;
} cli_chart_mark;

typedef struct cli_chart {
    const char *id, *title, *description;
    const char *x_name;
    cli_unit x_unit, y_unit;
    cli_scale y_scale;
    double x_most;
    const cli_curve *curves;
    size_t curves_count;
    const cli_chart_mark *marks;
    size_t marks_count;
} cli_chart;

void cli_chart_write(FILE *file, const cli_chart *chart);

/* The sign for a value that is NaN or infinite, as a path around its middle. */
#define CLI_CHART_NAN "m-4 -4l8 8m0 -8l-8 8"

#endif
