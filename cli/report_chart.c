#include "cli/report_chart.h"

#include "cli/cli.h"

#include <math.h>
#include <string.h>

/* The size of the drawing, in units that are pixels at its natural width. */
#define WIDTH 600.0
#define HEIGHT 290.0
#define LEFT 52.0
#define RIGHT 96.0 /* room for the names of the curves */
#define TOP 16.0
#define BOTTOM 44.0
#define NAME_HEIGHT 18.0
#define MARK_DISTANCE 4.0
#define NAN_DISTANCE 12.0
#define NAN_ABOVE 9.0 /* above the plot, where no value can be */

enum { TICKS_MOST = 16, CURVES_MOST = 8, RULES_MOST = 24 };

typedef struct axis {
    double least, most;
    bool log;
    cli_unit unit;
    double ticks[TICKS_MOST];
    int ticks_count;
    double step; /* between two ticks */
} axis;

typedef struct plot {
    const cli_chart *chart;
    axis x, y;
} plot;

/* ---- round numbers ---- */

/* Returns the smallest of 1, 2, 5, 10, 20, ... that is at least x. */
static double round_up(double x)
{
    double power = pow(10, floor(log10(x)));
    double digit = x / power;
    return power * (digit <= 1.0001 ? 1 : digit <= 2.0001 ? 2 : digit <= 5.0001 ? 5 : 10);
}

static double step_of_seconds(double wanted)
{
    static const double steps[] = {1,   2,   5,    10,   15,   30,    60,    120,   300,
                                   600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400};
    if (wanted <= 1) {
        return round_up(wanted);
    }
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        if (steps[i] >= wanted) {
            return steps[i];
        }
    }
    return 86400 * round_up(wanted / 86400);
}

static void add_tick(axis *a, double x)
{
    if (a->ticks_count < TICKS_MOST) {
        a->ticks[a->ticks_count++] = x;
    }
}

static void add_even_ticks(axis *a)
{
    double slack = a->step * 1e-6;
    for (double i = ceil((a->least - slack) / a->step); i * a->step <= a->most + slack; i++) {
        add_tick(a, i == 0 ? 0 : i * a->step); /* never -0 */
    }
}

static axis axis_of_x(const cli_chart *chart)
{
    axis a = {.most = chart->x_most > 0 ? chart->x_most : 1, .unit = chart->x_unit};
    a.step = a.unit == CLI_UNIT_SECONDS ? step_of_seconds(a.most / 7) : round_up(a.most / 7);
    add_even_ticks(&a);
    return a;
}

/* Puts ticks at 1, 2 and 5 times powers of ten, or only at the powers if there are many decades. The axis ends slightly
 * beyond the values. */
static void make_log(axis *a)
{
    static const double digits[] = {1, 2, 5};
    double margin = pow(a->most / a->least, 0.04);
    a->log = true;
    a->least /= margin;
    a->most *= margin;
    int from = (int)floor(log10(a->least)), to = (int)floor(log10(a->most));
    for (int power = from; power <= to; power++) {
        for (int i = 0; i < (to - from > 3 ? 1 : 3); i++) {
            double x = digits[i] * pow(10, power);
            if (x >= a->least && x <= a->most) {
                add_tick(a, x);
            }
        }
    }
}

/* Finds the range of the values. Returns false if there is none; the axis is then from 0 to 1. */
static bool extent(const cli_chart *chart, double *least, double *most)
{
    *least = INFINITY;
    *most = -INFINITY;
    for (size_t c = 0; c < chart->curves_count; c++) {
        const cli_curve *curve = &chart->curves[c];
        for (size_t i = 0; i < curve->count; i++) {
            double high = curve->y[i], low = curve->low != NULL ? curve->low[i] : high;
            if (isfinite(high) && isfinite(low)) {
                *least = low < *least ? low : *least;
                *most = high > *most ? high : *most;
            }
        }
    }
    bool known = *least <= *most;
    *least = known ? *least : 0;
    *most = known ? *most : 1;
    return known;
}

static axis axis_of_y(const cli_chart *chart)
{
    axis a = {.unit = chart->y_unit};
    double least, most;
    if (!extent(chart, &least, &most)) {
        a.most = 1;
        return a; /* without ticks, which would mean nothing */
    }
    if (chart->y_scale == CLI_SCALE_LOG && least > 0 && most / least > 10) {
        a.least = least;
        a.most = most;
        make_log(&a);
        return a;
    }
    least = chart->y_scale == CLI_SCALE_ZERO && least > 0 ? 0 : least;
    double range = most - least;
    if (!(range > fabs(most) * 1e-3)) {
        range = most != 0 ? fabs(most) * 0.02 : 1;
        least -= least != 0 ? range / 2 : 0;
        most += range / 2;
    }
    a.step = round_up((most - least) / 5);
    a.least = floor(least / a.step + 1e-6) * a.step;
    a.most = ceil(most / a.step - 1e-6) * a.step;
    if (a.unit == CLI_UNIT_PERCENT && a.most > 1 && most <= 1) {
        a.most = 1;
    }
    add_even_ticks(&a);
    return a;
}

static double at_x(const plot *p, double x)
{
    return LEFT + (WIDTH - LEFT - RIGHT) * (x - p->x.least) / (p->x.most - p->x.least);
}

static double at_y(const plot *p, double y)
{
    const axis *a = &p->y;
    double share = a->log ? log(y / a->least) / log(a->most / a->least) : (y - a->least) / (a->most - a->least);
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share;
}

/* ---- text ---- */

/* Returns the number of digits after the point that makes the labels of ticks at this distance differ. */
static int digits_of(double step)
{
    int digits = step > 0 ? (int)-floor(log10(step) + 1e-6) : 0;
    return digits > 0 ? digits : 0;
}

static void put_seconds(FILE *f, const axis *a, double x)
{
    long s = lround(x);
    if (a->most < 120) {
        fprintf(f, "%.*f s", digits_of(a->step), x);
    } else if (a->most < 7200) {
        fprintf(f, a->step >= 60 ? "%ld min" : "%ld:%02ld min", s / 60, s % 60);
    } else if (a->most < 172800) {
        fprintf(f, a->step >= 3600 ? "%ld h" : "%ld:%02ld h", s / 3600, s / 60 % 60);
    } else {
        fprintf(f, "%g d", x / 86400);
    }
}

static void put_count(FILE *f, const axis *a, double x)
{
    static const struct {
        double from, unit;
        const char *name;
    } units[] = {{1e9, 1e9, " G"}, {1e6, 1e6, " M"}, {2e3, 1e3, " k"}, {0, 1, ""}};
    size_t i = 0;
    while (a->most < units[i].from) {
        i++;
    }
    int digits = x == 0 ? 0 : digits_of(a->step / units[i].unit);
    fprintf(f, "%.*f%s", digits, x / units[i].unit, x == 0 ? "" : units[i].name);
}

static void put_label(FILE *f, const axis *a, double x)
{
    switch (a->unit) {
    case CLI_UNIT_SECONDS: put_seconds(f, a, x); break;
    case CLI_UNIT_COUNT: put_count(f, a, x); break;
    case CLI_UNIT_PERCENT: fprintf(f, "%.*f %%", digits_of(a->step * 100), x * 100); break;
    case CLI_UNIT_PLAIN: a->log ? fprintf(f, "%g", x) : fprintf(f, "%.*f", digits_of(a->step), x); break;
    }
}

/* ---- drawing ---- */

static void put_axes(FILE *f, const plot *p)
{
    double low = HEIGHT - BOTTOM;
    fputs("<g class=\"grid\">\n", f);
    for (int i = 0; i < p->y.ticks_count; i++) {
        double y = at_y(p, p->y.ticks[i]);
        fprintf(f, "<path d=\"M%.1f %.1fH%.1f\"/><text x=\"%.1f\" y=\"%.1f\" class=\"y\">", LEFT, y, WIDTH - RIGHT,
                LEFT - 8, y + 4);
        put_label(f, &p->y, p->y.ticks[i]);
        fputs("</text>\n", f);
    }
    for (int i = 0; i < p->x.ticks_count; i++) {
        double x = at_x(p, p->x.ticks[i]);
        fprintf(f, "<path d=\"M%.1f %.1fv5\"/><text x=\"%.1f\" y=\"%.1f\" class=\"x%s\">", x, low, x, low + 18,
                i % 2 == 1 ? " even" : "");
        put_label(f, &p->x, p->x.ticks[i]);
        fputs("</text>\n", f);
    }
    fprintf(f, "</g>\n<path class=\"base\" d=\"M%.1f %.1fH%.1f\"/>", LEFT, low, WIDTH - RIGHT);
    fprintf(f, "<text class=\"name\" x=\"%.1f\" y=\"%.1f\">", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6);
    cli_html_text(f, p->chart->x_name);
    fputs("</text>\n", f);
    if (p->y.ticks_count == 0) {
        fprintf(f, "<text class=\"name\" x=\"%.1f\" y=\"%.1f\">no values to draw</text>\n", (LEFT + WIDTH - RIGHT) / 2,
                (TOP + low) / 2);
    }
}

static bool is_there(const cli_curve *c, size_t i)
{
    return isfinite(c->x[i]) && isfinite(c->y[i]) && (c->low == NULL || isfinite(c->low[i]));
}

static bool has_nan(const cli_curve *c)
{
    for (size_t i = 0; i < c->count; i++) {
        if (isinf(c->y[i])) {
            return true;
        }
    }
    return false;
}

static size_t last_of(const cli_curve *c)
{
    size_t i = c->count;
    while (i > 0 && !is_there(c, i - 1)) {
        i--;
    }
    return i;
}

/* Draws a point between two gaps, which has no line. */
static bool is_alone(const cli_curve *c, size_t i)
{
    return is_there(c, i) && (i == 0 || !is_there(c, i - 1)) && (i + 1 == c->count || !is_there(c, i + 1));
}

static void put_line(FILE *f, const plot *p, const cli_curve *c)
{
    bool pen = false;
    for (size_t i = 0; i < c->count; i++) {
        bool there = is_there(c, i);
        if (there) {
            fprintf(f, "%s%.1f %.2f", pen ? "L" : "M", at_x(p, c->x[i]), at_y(p, c->y[i]));
        }
        pen = there;
    }
}

/* Draws the area between two gaps: along the upper values, and back along the lower ones. A single point is as wide as
 * a line. */
static void put_area(FILE *f, const plot *p, const cli_curve *c)
{
    for (size_t i = 0, end; i < c->count; i = end + 1) {
        for (end = i; end < c->count && is_there(c, end); end++) {
        }
        double wide = is_alone(c, i) ? 2 : 0;
        for (size_t k = i; k < end; k++) {
            fprintf(f, "%s%.1f %.2f", k == i ? "M" : "L", at_x(p, c->x[k]) - wide, at_y(p, c->y[k]));
        }
        if (wide > 0) {
            fprintf(f, "h%.1f", 2 * wide);
        }
        for (size_t k = end; k > i; k--) {
            fprintf(f, "L%.1f %.2f", at_x(p, c->x[k - 1]) + wide, at_y(p, c->low[k - 1]));
        }
        fprintf(f, "%s", wide > 0 ? "h-4Z" : end > i ? "Z" : "");
    }
}

/* Marks the values that are NaN or infinite, far enough apart that each sign is visible. */
static void put_nans(FILE *f, const plot *p, const cli_curve *c)
{
    double before = -INFINITY;
    for (size_t i = 0; i < c->count; i++) {
        double x = isinf(c->y[i]) ? at_x(p, c->x[i]) : before;
        if (x - before >= NAN_DISTANCE) {
            fprintf(f, "<path class=\"nan c%d\" d=\"M%.1f %.1f" CLI_CHART_NAN "\"><title>", c->color, x,
                    TOP - NAN_ABOVE);
            cli_html_text(f, c->name);
            fputs(": not a number</title></path>\n", f);
            before = x;
        }
    }
}

static void put_curve(FILE *f, const plot *p, const cli_curve *c)
{
    size_t last = last_of(c), there = 0;
    for (size_t i = 0; i < c->count; i++) {
        there += is_there(c, i);
    }
    fprintf(f, "<path class=\"%s c%d\" data-name=\"", c->low != NULL ? "area" : "curve", c->color);
    cli_html_text(f, c->name);
    fprintf(f, "\" data-x=\"%s\" data-y=\"%s\" data-points=\"%zu\" data-last=\"%.9g\" d=\"", c->x_key, c->y_key, there,
            last > 0 ? c->y[last - 1] : 0);
    (c->low != NULL ? put_area : put_line)(f, p, c);
    fputs("\"/>\n", f);
    for (size_t i = 0; c->low == NULL && i < c->count; i++) {
        if (is_alone(c, i) || (c->points && there <= 60 && is_there(c, i))) {
            fprintf(f, "<circle class=\"dot c%d\" cx=\"%.1f\" cy=\"%.2f\" r=\"3.5\"/>\n", c->color, at_x(p, c->x[i]),
                    at_y(p, c->y[i]));
        }
    }
    put_nans(f, p, c);
}

/* Puts the names at the ends of their curves, moved apart where they would overlap. */
static void put_names(FILE *f, const plot *p)
{
    const cli_chart *chart = p->chart;
    const cli_curve *order[CURVES_MOST];
    double y[CURVES_MOST], low = HEIGHT - BOTTOM;
    int n = 0;
    for (size_t c = 0; c < chart->curves_count && n < CURVES_MOST; c++) {
        const cli_curve *curve = &chart->curves[c];
        size_t last = last_of(curve);
        if ((last == 0 && !has_nan(curve)) || curve->name[0] == 0) {
            continue;
        }
        double wanted = last == 0            ? TOP
                        : curve->low != NULL ? at_y(p, curve->low[last - 1])
                                             : at_y(p, curve->y[last - 1]);
        int place = n++;
        for (; place > 0 && y[place - 1] > wanted; place--) {
            y[place] = y[place - 1];
            order[place] = order[place - 1];
        }
        y[place] = wanted;
        order[place] = curve;
    }
    for (int i = n - 1; i >= 0; i--) {
        double most = i == n - 1 ? low : y[i + 1] - NAME_HEIGHT;
        y[i] = y[i] > most ? most : y[i];
    }
    for (int i = 0; i < n; i++) {
        double least = i == 0 ? TOP : y[i - 1] + NAME_HEIGHT;
        y[i] = y[i] < least ? least : y[i];
        fprintf(f, "<path class=\"key c%d\" d=\"M%.1f %.1fh12\"/><text class=\"label\" x=\"%.1f\" y=\"%.1f\">",
                order[i]->color, WIDTH - RIGHT + 6, y[i], WIDTH - RIGHT + 22, y[i] + 4);
        cli_html_text(f, order[i]->name);
        fputs("</text>\n", f);
    }
}

static void put_mark(FILE *f, const plot *p, const cli_chart_mark *m, bool rule)
{
    static const char *const classes[] = {
        [CLI_MARK_DEATH] = "death", [CLI_MARK_SAVE] = "save", [CLI_MARK_STOP] = "stop"};
    static const char *const shapes[] = {[CLI_MARK_DEATH] = "m-5 -9h10l-5 9z",
                                         [CLI_MARK_SAVE] = "m0 -4.5l4.5 4.5l-4.5 4.5l-4.5 -4.5z",
                                         [CLI_MARK_STOP] = "m-4 -8h8v8h-8z"};
    double x = at_x(p, m->x), low = HEIGHT - BOTTOM;
    fprintf(f, "<g class=\"mark %s\"><title>", classes[m->kind]);
    cli_html_text(f, m->text);
    fputs("</title>", f);
    if (rule) {
        fprintf(f, "<path class=\"rule\" d=\"M%.1f %.1fV%.1f\"/>", x, TOP, low);
    }
    fprintf(f, "<path d=\"M%.1f %.1f%s\"/></g>\n", x, m->kind == CLI_MARK_SAVE ? low : TOP, shapes[m->kind]);
}

/* Draws the marks. Those of a kind are in the order of time. A mark that would cover the one before it is left out, and
 * many marks have no lines. */
static void put_marks(FILE *f, const plot *p)
{
    int counts[CLI_MARK_KINDS] = {0};
    double before[CLI_MARK_KINDS];
    for (size_t i = 0; i < p->chart->marks_count; i++) {
        counts[p->chart->marks[i].kind]++;
    }
    for (int i = 0; i < CLI_MARK_KINDS; i++) {
        before[i] = -INFINITY;
    }
    for (size_t i = 0; i < p->chart->marks_count; i++) {
        const cli_chart_mark *m = &p->chart->marks[i];
        double x = at_x(p, m->x);
        if (x - before[m->kind] >= MARK_DISTANCE) {
            put_mark(f, p, m, m->kind != CLI_MARK_SAVE && counts[m->kind] <= RULES_MOST);
            before[m->kind] = x;
        }
    }
}

void cli_chart_write(FILE *file, const cli_chart *chart)
{
    plot p = {.chart = chart, .x = axis_of_x(chart), .y = axis_of_y(chart)};
    fprintf(file, "<figure class=\"chart\" id=\"%s\"><figcaption>", chart->id);
    cli_html_text(file, chart->title);
    fprintf(file, "%s</figcaption>\n<div class=\"plot\">", p.y.log ? " <small>logarithmic scale</small>" : "");
    fprintf(file, "<svg viewBox=\"0 0 %g %g\" role=\"img\" tabindex=\"0\" aria-labelledby=\"%s-t %s-d\"", WIDTH, HEIGHT,
            chart->id, chart->id);
    fprintf(file, " data-left=\"%g\" data-right=\"%g\" data-top=\"%g\" data-bottom=\"%g\"", LEFT, WIDTH - RIGHT, TOP,
            HEIGHT - BOTTOM);
    fprintf(file, " data-x-most=\"%.9g\" data-y-least=\"%.9g\" data-y-most=\"%.9g\" data-log=\"%d\"", p.x.most,
            p.y.least, p.y.most, p.y.log);
    static const char *const units[] = {"plain", "seconds", "count", "percent"};
    fprintf(file, " data-x-unit=\"%s\" data-y-unit=\"%s\">\n<title id=\"%s-t\">", units[chart->x_unit],
            units[chart->y_unit], chart->id);
    cli_html_text(file, chart->title);
    fprintf(file, "</title><desc id=\"%s-d\">", chart->id);
    cli_html_text(file, chart->description);
    fputs("</desc>\n", file);
    put_axes(file, &p);
    for (size_t i = 0; i < chart->curves_count; i++) {
        put_curve(file, &p, &chart->curves[i]);
    }
    put_marks(file, &p);
    put_names(file, &p);
    fputs("</svg></div></figure>\n", file);
}
