/* Every choice of one part for each honest client, as `product.py` does it, with sets as bits.
 *
 * Parts that differ only in which peers were shown are one `part` here: `weight[need]` counts those
 * that were shown at least the peers in `need`, the ones that open a box of this client.
 *
 * Where rules are the same for every honest client up to their names, clients are sorted by `key`,
 * and each sorted choice counts as often as its keys can be handed out (n! / product of factorials).
 */
#include <stdint.h>
#include <string.h>

enum { MOST = 6, TWICE = 2 };

typedef struct {
    int32_t digest;
    uint32_t alive, seeds, keys;
    uint64_t enough; /* bit w: the signers w make the client reveal */
} reveal;

typedef struct {
    int32_t key, threshold, instruction, digest, is_drawn; /* digest < 0: no upload */
    uint32_t boxes, hired_boxes, holders, hired_holders;
    int32_t num_lists, num_reveals;
    int32_t list_digest[TWICE];
    uint32_t list[TWICE];
    reveal reveals[TWICE];
    uint32_t weight[1 << MOST];
} part;

typedef struct {
    uint64_t products;                    /* with multiplicities and weights */
    uint64_t looked_at;                   /* without */
    uint64_t both, small, mixed;          /* products that break the claims */
    uint64_t sums[MOST + 2][MOST + 1];    /* by threshold and honest clients in them */
    int32_t first[MOST];                  /* parts of the first breach */
    int32_t is_broken;
} result;

static const part *choice[MOST];
static const part *table[MOST];
static int num_parts[MOST], n, colluders, is_symmetric;
static result *out;

static int bits(uint32_t set) { return __builtin_popcount(set); }

static int has_signed(const part *p, int i, const reveal *r, int is_drawn) {
    for (int l = 0; l < p->num_lists; l++)
        if (p->list_digest[l] == r->digest &&
            (is_drawn ? p->list[l] >> i & 1 : p->list[l] == r->alive))
            return 1;
    return 0;
}

static void shares(uint32_t *seeds, uint32_t *keys) {
    for (int i = 0; i < n; i++) {
        const part *p = choice[i];
        for (int k = 0; k < p->num_reveals; k++) {
            const reveal *r = &p->reveals[k];
            uint32_t signers = p->hired_boxes;
            for (int j = 0; j < n; j++)
                if (p->boxes >> j & 1 && has_signed(choice[j], i, r, p->is_drawn)) signers |= 1u << j;
            if (!(r->enough >> signers & 1)) continue;
            for (int j = 0; j < n; j++) {
                if (!(choice[j]->holders >> i & 1)) continue;
                if (r->seeds >> j & 1) seeds[j] |= 1u << i;
                if (r->keys >> j & 1) keys[j] |= 1u << i;
            }
        }
    }
}

static int is_small(const part *p, uint32_t group, int own) {
    int size = bits(group);
    if (!p->is_drawn) return size < 2 || size < p->threshold - colluders;
    uint32_t drawn = p->holders & ~(1u << own);
    int draws = bits(drawn) + bits(p->hired_holders);
    return bits(drawn & group) + bits(p->hired_holders) < 2 * p->threshold - draws - 2;
}

static void look(uint64_t times) {
    uint32_t seeds[MOST] = {0}, keys[MOST] = {0}, open_seed = 0, open_key = 0;
    shares(seeds, keys);
    for (int i = 0; i < n; i++) {
        const part *p = choice[i];
        int hired = bits(p->hired_holders);
        if (!p->threshold) continue;
        if (bits(seeds[i]) + hired >= p->threshold) open_seed |= 1u << i;
        if (bits(keys[i]) + hired >= p->threshold) open_key |= 1u << i;
    }
    uint32_t joined[MOST], dangling = 0;
    for (int i = 0; i < n; i++) {
        const part *p = choice[i];
        joined[i] = 1u << i;
        if (p->digest < 0 || !(open_seed >> i & 1)) dangling |= 1u << i;
        if (open_key >> i & 1) continue;
        for (int j = 0; j < n; j++) {
            if (!((p->boxes & ~open_key) >> j & 1)) continue;
            if (choice[j]->boxes >> i & 1 && choice[j]->digest == p->digest) joined[i] |= 1u << j;
            else dangling |= 1u << i;
        }
    }
    int broken = (open_seed & open_key) != 0;
    out->both += broken ? times : 0;
    int small = 0, mixed = 0;
    for (uint32_t left = (1u << n) - 1; left;) {
        uint32_t group = left & -left, before = 0;
        while (group != before) {
            before = group;
            for (int i = 0; i < n; i++)
                if (before >> i & 1) group |= joined[i];
        }
        left &= ~group;
        if (group & dangling) continue;
        int most = 0, one = __builtin_ctz(group);
        for (int i = 0; i < n; i++)
            if (group >> i & 1) {
                mixed |= choice[i]->instruction != choice[one]->instruction;
                mixed |= choice[i]->threshold != choice[one]->threshold;
                small |= is_small(choice[i], group, i);
                if (choice[i]->threshold > most) most = choice[i]->threshold;
            }
        out->sums[most][bits(group)] += times;
    }
    out->small += small ? times : 0;
    out->mixed += mixed ? times : 0;
    if ((broken || small || mixed) && !out->is_broken) {
        out->is_broken = 1;
        for (int i = 0; i < n; i++) out->first[i] = (int32_t)(choice[i] - table[i]);
    }
}

static void extend(int i, uint32_t *need, uint64_t orders, int run) {
    if (i == n) {
        uint64_t weight = 1;
        for (int j = 0; j < n; j++) weight *= choice[j]->weight[need[j]];
        out->looked_at++;
        out->products += orders * weight;
        look(orders * weight);
        return;
    }
    uint32_t asked = 0; /* those before it that open its box */
    for (int j = 0; j < i; j++)
        if (choice[j]->boxes >> i & 1) asked |= 1u << j;
    for (int k = 0; k < num_parts[i]; k++) {
        const part *p = &table[i][k];
        int same = i && p->key == choice[i - 1]->key;
        if (is_symmetric && i && p->key < choice[i - 1]->key) continue;
        uint32_t after[MOST];
        if (!p->weight[asked]) continue;
        memcpy(after, need, sizeof after);
        after[i] |= asked;
        int fits = 1;
        for (int j = 0; j < i && fits; j++)
            if (p->boxes >> j & 1) {
                after[j] |= 1u << i;
                fits = choice[j]->weight[after[j]] != 0;
            }
        if (!fits) continue;
        choice[i] = p;
        int length = same ? run + 1 : 1;
        /* n! / product of run lengths' factorials, one factor a step */
        uint64_t more = is_symmetric ? orders * (uint64_t)(i + 1) / (uint64_t)length : 1;
        extend(i + 1, after, more, length);
    }
}

void search(int honest, int hired, int symmetric, const part **parts, const int32_t *counts,
            result *found) {
    uint32_t need[MOST] = {0};
    n = honest, colluders = hired, is_symmetric = symmetric, out = found;
    memset(found, 0, sizeof *found);
    for (int i = 0; i < n; i++) table[i] = parts[i], num_parts[i] = counts[i];
    extend(0, need, 1, 0);
}

int sizes(int which) { return which ? (int)sizeof(result) : (int)sizeof(part); }
