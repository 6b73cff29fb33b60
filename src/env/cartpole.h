/* The state of CartPole, which tests set. */
#ifndef SH_ENV_CARTPOLE_H
#define SH_ENV_CARTPOLE_H

typedef struct sh_cartpole {
    double x, speed;    /* of the cart: m, m/s */
    double angle, spin; /* of the pole: radians from upright, radians/s */
} sh_cartpole;

#endif
