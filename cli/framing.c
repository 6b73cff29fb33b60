#include "cli/framing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEVELS 256
#define CONTRAST_LEAST 20 /* of 255: with less contrast, everything is ground */
#define DUST 0.002        /* the fraction of the ink that may be outside of the box at each side */
#define SIZE_OFF 1.5      /* tolerance in pixels for the longer side of an image that has the frame already, */
#define CENTRE_OFF 0.75   /* and for its centre: half a pixel in MNIST's files, and rounding */

/* As the authors describe it: NIST's digits fit into 20 x 20 pixels, and their centre of mass is in the middle of 28 x
 * 28 (LeCun, Cortes and Burges); in the files that is the middle of the fifteenth pixel. The photos of fashion were
 * trimmed, scaled to 28 pixels at their longer side, and centred (Xiao, Rasul and Vollgraf, 2017). */
static const cli_framing digits = {.longest = 20, .middle = 14.5, .by_mass = true, .stretch = true};
static const cli_framing fashion = {.longest = CLI_FRAME, .middle = 14};

const cli_framing *cli_framing_of(const char *data)
{
    return strcmp(data, "fashion-mnist") == 0 ? &fashion : &digits;
}

/* ---- ground and ink ---- */

/* Returns the level that the fraction `share` of the counted pixels does not exceed. */
static int quantile(const uint64_t counts[LEVELS], double share)
{
    uint64_t all = 0, seen = 0;
    int level = 0;
    for (int i = 0; i < LEVELS; i++) {
        all += counts[i];
    }
    for (; level < LEVELS - 1; level++) {
        seen += counts[level];
        if ((double)seen >= share * (double)all) {
            break;
        }
    }
    return level;
}

static void count_edge(const cli_image *image, uint64_t counts[LEVELS])
{
    memset(counts, 0, LEVELS * sizeof *counts);
    for (uint32_t y = 0; y < image->height; y++) {
        bool edge = y == 0 || y + 1 == image->height;
        uint32_t step = edge || image->width < 2 ? 1 : image->width - 1;
        for (uint32_t x = 0; x < image->width; x += step) {
            counts[image->grey[(size_t)y * image->width + x]]++;
        }
    }
}

static void count_all(const cli_image *image, uint64_t counts[LEVELS])
{
    memset(counts, 0, LEVELS * sizeof *counts);
    for (size_t i = 0; i < (size_t)image->width * image->height; i++) {
        counts[image->grey[i]]++;
    }
}

/* Returns the largest difference of pixels to the ground, darker or lighter, without a few that may be noise. */
static int reach(const uint64_t counts[LEVELS], int ground, bool dark)
{
    uint64_t all = 0, seen = 0;
    for (int i = 0; i < LEVELS; i++) {
        all += counts[i];
    }
    for (int d = dark ? ground : LEVELS - 1 - ground; d > 0; d--) {
        seen += counts[dark ? ground - d : ground + d];
        if (seen > all / 10000) {
            return d;
        }
    }
    return 0;
}

bool cli_framing_is_dark_on_light(const cli_image *image)
{
    uint64_t counts[LEVELS];
    count_edge(image, counts);
    int ground = quantile(counts, 0.5);
    count_all(image, counts);
    int dark = reach(counts, ground, true), light = reach(counts, ground, false);
    return dark != light ? dark > light : 2 * ground >= LEVELS;
}

/* The amount of ink of each level of grey, from 0 to 1. */
typedef struct ink_levels {
    double of[LEVELS];
} ink_levels;

/* Finds the ink of each level. d is the difference of a level to the ground: up to `floor` it is uneven ground, from
 * `full` on it is all ink.
 * Returns false if nothing differs enough. */
static bool find_ink(const cli_framing *framing, const cli_image *image, bool dark, ink_levels *out)
{
    uint64_t edge[LEVELS], all[LEVELS], strong[LEVELS] = {0}, uneven[LEVELS] = {0};
    count_edge(image, edge);
    count_all(image, all);
    int ground = quantile(edge, 0.5), most = reach(all, ground, dark);
    if (most < CONTRAST_LEAST) {
        return false;
    }
    for (int level = 0; level < LEVELS; level++) {
        int d = dark ? ground - level : level - ground;
        strong[d > 0 ? d : 0] += d > most / 2 ? all[level] : 0;
        uneven[d > 0 ? d : 0] += d <= most / 2 ? edge[level] : 0;
    }
    double full = framing->stretch ? quantile(strong, 0.9) : LEVELS - 1;
    double floor = fmin(fmax(3.0 * quantile(uneven, 0.8), 0.1 * most), 0.4 * most);
    for (int level = 0; level < LEVELS; level++) {
        int d = dark ? ground - level : level - ground;
        out->of[level] = d > floor ? fmin(d / full, 1) : 0;
    }
    return true;
}

/* ---- where it is ---- */

/* The lines that contain the ink, without DUST at each end, and its centre, in lines from the first line of the
 * image. */
typedef struct span {
    uint32_t first, end;
    double centre;
} span;

static span span_of(const double *lines, uint32_t count)
{
    double all = 0, moment = 0, seen = 0;
    span s = {.first = 0, .end = count};
    for (uint32_t i = 0; i < count; i++) {
        all += lines[i];
    }
    for (seen = lines[0]; seen <= DUST * all && s.first + 1 < count; seen += lines[++s.first]) {
    }
    for (seen = lines[count - 1]; seen <= DUST * all && s.end > s.first + 1; seen += lines[--s.end - 1]) {
    }
    all = 0;
    for (uint32_t i = s.first; i < s.end; i++) {
        all += lines[i];
        moment += lines[i] * (i + 0.5);
    }
    s.centre = moment / all;
    return s;
}

/* Finds the columns and rows of the ink. Returns false if there is no memory. */
static bool find_spans(const cli_image *image, const ink_levels *ink, span *out_x, span *out_y)
{
    double *columns = calloc((size_t)image->width + image->height, sizeof *columns), *rows = columns + image->width;
    if (columns == NULL) {
        return false;
    }
    for (uint32_t y = 0; y < image->height; y++) {
        for (uint32_t x = 0; x < image->width; x++) {
            double v = ink->of[image->grey[(size_t)y * image->width + x]];
            columns[x] += v;
            rows[y] += v;
        }
    }
    *out_x = span_of(columns, image->width);
    *out_y = span_of(rows, image->height);
    free(columns);
    return true;
}

/* ---- into the frame ---- */

static double centre_of(const cli_framing *framing, const span *s)
{
    return framing->by_mass ? s->centre : (s->first + s->end) / 2.0;
}

/* Checks whether the whole image, scaled to the frame, already has the framing of the set. */
static bool is_framed(const cli_framing *framing, const cli_image *image, const span *x, const span *y)
{
    double square = fmax(image->width, image->height), scale = CLI_FRAME / square;
    double longest = fmax(x->end - x->first, y->end - y->first) * scale;
    double off_x = (centre_of(framing, x) - image->width / 2.0) * scale + CLI_FRAME / 2.0 - framing->middle;
    double off_y = (centre_of(framing, y) - image->height / 2.0) * scale + CLI_FRAME / 2.0 - framing->middle;
    return fabs(longest - framing->longest) <= SIZE_OFF && fmax(fabs(off_x), fabs(off_y)) <= CENTRE_OFF;
}

/* Returns the position of the span's first pixel in the frame. It is a whole pixel, as in the data sets, so that edges
 * stay sharp. */
static double place(const cli_framing *framing, const span *s, double scale)
{
    double length = (s->end - s->first) * scale, centre = (centre_of(framing, s) - s->first) * scale;
    return fmax(0, fmin(round(framing->middle - centre), CLI_FRAME - ceil(length)));
}

bool cli_framing_apply(const cli_framing *framing, const cli_image *image, bool invert, float *out, cli_box *out_box)
{
    ink_levels ink;
    span x, y;
    *out_box = (cli_box){.width = 0};
    if (!find_ink(framing, image, invert, &ink) || !find_spans(image, &ink, &x, &y)) {
        return false;
    }
    if (is_framed(framing, image, &x, &y)) {
        cli_image_scale(image, invert, CLI_FRAME, out);
        return true;
    }
    *out_box = (cli_box){.x = x.first, .y = y.first, .width = x.end - x.first, .height = y.end - y.first};
    double scale = framing->longest / fmax(out_box->width, out_box->height), step = 1 / scale;
    float levels[LEVELS];
    for (int i = 0; i < LEVELS; i++) {
        levels[i] = (float)(255 * ink.of[i]);
    }
    cli_image_draw(image, levels, *out_box, x.first - place(framing, &x, scale) * step,
                   y.first - place(framing, &y, scale) * step, step, CLI_FRAME, out);
    return true;
}
