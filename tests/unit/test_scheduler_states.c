/* The scheduler over a cache with recurrent states. The executor computes nothing but remembers
 * what each KV slot and each state slot would hold, and an answer depends on both: any wrong state,
 * wrong page or missing copy changes it. */
#include "unit/scheduler_setup.h"

enum {
    MAX_PAGES = 400,
    MAX_STATES = 200,
    WINDOW = 10 /* of the second group */
};

/* --- the executor ----------------------------------------------------------------------------- */

struct fake {
    uint64_t kv[2][MAX_PAGES * PAGE]; /* the hash of a slot's token and all before it */
    uint64_t states[MAX_STATES];      /* the same of all tokens so far, another hash */
    bool fails;                       /* half way: the states are written and nothing else is */
};

static uint64_t mix_state(uint64_t hash, int32_t token)
{
    hash = (hash + (uint64_t)(uint32_t)token + 1) * 0xD6E8FEB86659FD93u;
    return hash ^ hash >> 32;
}

/* The first position that a token at `position` sees in a group. */
static int32_t first_seen(int32_t g, int32_t position)
{
    return g == 0 || position < WINDOW ? 0 : position - WINDOW + 1;
}

static int32_t next_token(uint64_t seen, uint64_t state)
{
    return (int32_t)((seen ^ seen >> 31 ^ state * 3) % VOCAB);
}

/* A slot that is written is no other sequence's, and no snapshot's but its own. */
static void check_slots(const struct batch *b)
{
    bool is_written[MAX_STATES] = {false};
    for (int32_t i = 0; i < b->n_sequences; i++) {
        assert_false(is_written[b->state_out[i]]);
        is_written[b->state_out[i]] = true;
    }
    for (int32_t i = 0; i < b->n_snapshots; i++) {
        assert_false(is_written[b->snapshots[2 * i + 1]]);
        is_written[b->snapshots[2 * i + 1]] = true;
        if (i > 0)
            assert_true(b->snapshots[2 * i] > b->snapshots[2 * i - 2]);
    }
    for (int32_t i = 0; i < b->n_sequences; i++)
        if (b->state_in[i] >= 0 && b->state_in[i] != b->state_out[i])
            assert_false(is_written[b->state_in[i]]);
}

static void copy_pages(struct fake *fake, const struct batch *b)
{
    for (int32_t g = 0; g < b->n_groups; g++)
        for (int32_t i = 0; i < b->n_copies; i++)
            memmove(fake->kv[g] + b->copies[g][2 * i + 1] * PAGE,
                    fake->kv[g] + b->copies[g][2 * i] * PAGE, PAGE * sizeof *fake->kv[g]);
}

/* What all the slots that a token of sequence i sees hold, in all groups. */
static uint64_t look_back(const struct fake *fake, const struct batch *b, int32_t i,
                          int32_t position)
{
    uint64_t sum = 0;
    for (int32_t g = 0; g < b->n_groups; g++) {
        const int32_t *pages = b->page_table[g] + (size_t)i * (size_t)b->max_pages;
        for (int32_t p = first_seen(g, position); p <= position; p++)
            sum = sum * 3 + fake->kv[g][pages[p / PAGE] * PAGE + p % PAGE];
    }
    return sum;
}

static enum status fake_run(void *context, const struct batch *b, const struct drawing *draws,
                            struct sample *out, struct error *error)
{
    struct fake *fake = context;
    int32_t n_wanted = 0, n_snapshots = 0;
    (void)draws;
    check_slots(b);
    for (int32_t i = 0; fake->fails && i < b->n_sequences; i++)
        fake->states[b->state_out[i]] = 0;
    if (fake->fails)
        return error_set(error, ERROR_IO, "the device is gone");
    copy_pages(fake, b);
    for (int32_t i = 0; i < b->n_sequences; i++) {
        const int32_t *pages = b->page_table[0] + (size_t)i * (size_t)b->max_pages;
        uint64_t state = b->state_in[i] >= 0 ? fake->states[b->state_in[i]] : 1;
        for (int32_t t = b->q_start[i]; t < b->q_start[i + 1]; t++) {
            int32_t position = b->positions[t], before = position - 1;
            uint64_t hash = 1;
            if (position > 0)
                hash = fake->kv[0][pages[before / PAGE] * PAGE + before % PAGE];
            for (int32_t g = 0; g < b->n_groups; g++)
                fake->kv[g][b->slots[g][t]] = mix(hash, b->tokens[t]);
            state = mix_state(state, b->tokens[t]);
            if (n_snapshots < b->n_snapshots && b->snapshots[2 * n_snapshots] == t)
                fake->states[b->snapshots[2 * n_snapshots++ + 1]] = state;
            if (n_wanted < b->n_want && b->want[n_wanted] == t)
                out[n_wanted++] =
                    (struct sample){.token = next_token(look_back(fake, b, i, position), state)};
        }
        fake->states[b->state_out[i]] = state;
    }
    assert_int_equal(n_wanted, b->n_want);
    assert_int_equal(n_snapshots, b->n_snapshots);
    return OK;
}

/* --- requests and what should come of them ---------------------------------------------------- */

struct live {
    uint64_t uid;
    int32_t tokens[CONTEXT + 1]; /* the prompt, and the answer that should come */
    int32_t n_prompt, n_tokens, n_seen, n_cached;
    bool is_done;
};

struct world {
    struct fake fake;
    struct stub stub;
    struct kv_cache cache;
    struct scheduler *scheduler;
    struct live live[MAX_LIVE];
    uint64_t n_finished;
};

static struct live *find_live(struct world *w, uint64_t uid)
{
    for (int i = 0; i < MAX_LIVE; i++)
        if (w->live[i].uid == uid)
            return &w->live[i];
    return NULL;
}

/* The answer by definition, from the tokens alone. */
static void expect_answer(struct live *l, int32_t max_tokens, int32_t n_groups)
{
    uint64_t kv[CONTEXT], state = 1;
    int32_t end = l->n_prompt + max_tokens;
    l->n_tokens = l->n_prompt;
    for (int32_t i = 0; i < (end < CONTEXT ? end : CONTEXT); i++) {
        uint64_t sum = 0;
        for (int32_t g = 0; g < n_groups && i >= l->n_prompt; g++)
            for (int32_t p = first_seen(g, i - 1); p < i; p++)
                sum = sum * 3 + kv[p];
        if (i >= l->n_prompt) {
            l->tokens[l->n_tokens++] = next_token(sum, state);
            if (l->tokens[i] == EOS)
                return;
        }
        kv[i] = mix(i > 0 ? kv[i - 1] : 1, l->tokens[i]);
        state = mix_state(state, l->tokens[i]);
    }
}

static void on_event(void *context, const struct token_event *event)
{
    struct world *w = context;
    struct live *l = find_live(w, event->uid);
    assert_non_null(l);
    if (event->sample) {
        assert_true(l->n_prompt + l->n_seen < l->n_tokens);
        assert_int_equal(event->sample->token, l->tokens[l->n_prompt + l->n_seen]);
        l->n_seen++;
    }
    if (event->finish == FINISH_NONE)
        return;
    if (event->finish != FINISH_CANCELLED && event->finish != FINISH_ERROR)
        assert_int_equal(l->n_prompt + l->n_seen, l->n_tokens);
    l->n_cached = event->n_cached;
    l->is_done = true;
    l->uid = 0;
    w->n_finished++;
}

static struct world *new_world(bool has_queue, enum scheduler_policy policy, int32_t n_groups,
                               int32_t n_pages, int32_t n_states, int32_t max_prefill)
{
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    assert_true(n_pages <= MAX_PAGES && n_states <= MAX_STATES);
    w->stub = (struct stub){
        .run = fake_run, .context = &w->fake, .cache = &w->cache, .has_queue = has_queue};
    w->scheduler = open_scheduler(
        &w->cache,
        (struct kv_cache_spec){.n_groups = n_groups,
                               .windows = {0, WINDOW},
                               .n_pages = {n_pages, n_pages / 2},
                               .n_states = n_states},
        (struct scheduler_options){.policy = policy, .max_prefill_length = max_prefill},
        stub_executor(&w->stub), on_event, w);
    return w;
}

static void end_world(struct world *w)
{
    scheduler_free(w->scheduler);
    stub_done(&w->stub);
    kv_cache_done(&w->cache);
    free(w);
}

static void submit(struct world *w, struct live *l, uint64_t uid, int32_t max_tokens,
                   const int32_t *marks, int32_t n_marks)
{
    l->uid = uid;
    l->is_done = false;
    l->n_seen = 0;
    expect_answer(l, max_tokens, w->cache.n_groups);
    struct request_options o = {.uid = uid,
                                .ids = l->tokens,
                                .n_ids = l->n_prompt,
                                .marks = marks,
                                .n_marks = n_marks,
                                .params = sampling_params_default(),
                                .max_tokens = max_tokens,
                                .submitted = 1e18}; /* smaller ones may always pass it */
    assert_int_equal(scheduler_submit(w->scheduler, &o, NULL), OK);
}

/* Appends n tokens that `seed` tells apart from other seeds' and that end no answer. */
static void add_tokens(struct live *l, int32_t n, int32_t seed)
{
    for (int32_t i = 0; i < n; i++)
        l->tokens[l->n_prompt++] = 10 + (seed * 97 + i * 31) % 900;
}

static uint64_t n_prefilled(const struct world *w)
{
    return scheduler_figures(w->scheduler).prefill_tokens;
}

/* Each test runs without and with a queue. */
static bool has_queue(void **state)
{
    return *(const bool *)*state;
}

/* Runs one request alone; returns the prompt tokens that were computed. */
static uint64_t run_one(struct world *w, struct live *l, const int32_t *marks, int32_t n_marks)
{
    uint64_t before = n_prefilled(w);
    struct live *slot = find_live(w, 0);
    *slot = *l;
    submit(w, slot, 1, 20, marks, n_marks);
    run_scheduler(w->scheduler);
    *l = *slot;
    return n_prefilled(w) - before;
}

/* --- tests ------------------------------------------------------------------------------------ */

/* Requests over a few trunks, with marks here and there; some go on with what an earlier one had.
 */
static void submit_random(struct world *w, uint64_t uid, struct live *history)
{
    struct live *l = find_live(w, 0);
    int32_t marks[3], n_marks = rand() % 4;
    if (!l)
        return;
    *l = (struct live){0};
    if (rand() % 3 == 0 && history->n_tokens > 0 && history->n_tokens < CONTEXT / 2) {
        *l = *history;
        l->n_prompt = rand() % 4 ? l->n_tokens : 1 + rand() % l->n_tokens;
    } else if (rand() % 3) {
        add_tokens(l, (1 + rand() % 5) * 19, rand() % 2);
    }
    add_tokens(l, 1 + rand() % 40, rand() % 10000);
    for (int32_t i = 0; i < n_marks; i++)
        marks[i] = 1 + rand() % l->n_prompt;
    submit(w, l, uid, 1 + rand() % 150, marks, n_marks);
    *history = *l;
}

static void any_order_of_events_gives_every_request_its_answer(void **state)
{
    for (int round = 0; round < 24; round++) {
        int variant = round % 8;
        int32_t n_states = variant < 2 ? 2 : variant < 4 ? MAX_RUNNING + 4 : MAX_STATES;
        struct world *w =
            new_world(has_queue(state), variant & 1 ? POLICY_MIXED : POLICY_PREFILL_FIRST,
                      variant < 6 ? 1 : 2, CONTEXT / PAGE + (variant < 2 ? 1 : 20), n_states,
                      variant & 1 ? 24 : 64);
        struct live history = {0};
        uint64_t uid = 0;
        srand(29 + (unsigned)round);
        for (int i = 0; i < 5000; i++) {
            if (rand() % 4 == 0)
                submit_random(w, ++uid, &history);
            if (rand() % 20 == 0 && uid > 0)
                scheduler_cancel(w->scheduler, 1 + (uint64_t)rand() % uid);
            if (rand() % 500 == 0)
                kv_cache_flush(&w->cache);
            step_scheduler(w->scheduler);
        }
        run_scheduler(w->scheduler);
        struct scheduler_figures f = scheduler_figures(w->scheduler);
        struct kv_statistics k = w->cache.statistics;
        printf("%d groups, %d slots: %llu requests, %llu steps, %llu preemptions, %llu cached "
               "tokens, %llu "
               "snapshots, %llu evicted, %llu copied pages\n",
               w->cache.n_groups, n_states, (unsigned long long)w->n_finished,
               (unsigned long long)f.steps, (unsigned long long)f.preemptions,
               (unsigned long long)f.cached_tokens, (unsigned long long)k.snapshots,
               (unsigned long long)k.evicted_snapshots, (unsigned long long)k.copied_pages);
        /* With two slots there is one row at a time, and one snapshot. */
        assert_true(k.evicted_snapshots > 100);
        assert_true(has_queue(state) ? w->stub.n_ahead > 1000 : w->stub.n_ahead == 0);
        if (variant >= 2)
            assert_true(f.cached_tokens > 1000 && k.copied_pages > 100 && f.preemptions > 10);
        kv_cache_flush(&w->cache);
        assert_int_equal(kv_cache_counts(&w->cache, 0).n_free, w->cache.groups[0].pool.n_pages);
        assert_int_equal(w->cache.states.n_free, n_states);
        end_world(w);
    }
}

static void questions_behind_one_system_prompt_hit_whatever_follows_it(void **state)
{
    struct world *w = new_world(has_queue(state), POLICY_PREFILL_FIRST, 1, MAX_PAGES, 40, 64);
    const int32_t header = 150; /* no multiple of the page */
    for (int32_t i = 0; i < 3; i++) {
        struct live l = {0};
        add_tokens(&l, header, 1);
        add_tokens(&l, 30, 10 + i);
        uint64_t n = run_one(w, &l, &header, 1);
        assert_int_equal(n, i == 0 ? 180 : 30);
    }
    end_world(w);
}

static void a_chat_computes_what_is_new_and_at_most_a_page(void **state)
{
    struct world *w = new_world(has_queue(state), POLICY_PREFILL_FIRST, 1, MAX_PAGES, 40, 64);
    struct live l = {0};
    add_tokens(&l, 60, 1);
    for (int32_t turn = 0; turn < 6; turn++) {
        int32_t known = l.n_tokens; /* the last token of an answer is never computed */
        uint64_t n = run_one(w, &l, NULL, 0);
        if (turn > 0)
            assert_true(n <= (uint64_t)(l.n_prompt - known + 1));
        l.n_prompt = l.n_tokens;
        add_tokens(&l, 17, 20 + turn);
    }
    end_world(w);
}

static void an_answer_that_the_next_turn_leaves_out_costs_nothing(void **state)
{
    struct world *w = new_world(has_queue(state), POLICY_PREFILL_FIRST, 1, MAX_PAGES, 40, 64);
    struct live l = {0};
    add_tokens(&l, 90, 1);
    int32_t marks[] = {87}; /* the messages end here, the generation prompt follows */
    run_one(w, &l, marks, 1);
    l.n_prompt = 87;
    add_tokens(&l, 25, 2);
    assert_int_equal(run_one(w, &l, NULL, 0), 25);
    end_world(w);
}

static void where_two_prompts_parted_the_third_continues(void **state)
{
    struct world *w = new_world(has_queue(state), POLICY_PREFILL_FIRST, 1, MAX_PAGES, 40, 64);
    uint64_t computed[3];
    for (int32_t i = 0; i < 3; i++) {
        struct live l = {0};
        add_tokens(&l, 130, 1);
        add_tokens(&l, 20, 10 + i);
        computed[i] = run_one(w, &l, NULL, 0);
    }
    assert_int_equal(computed[0], 150);
    assert_int_equal(computed[1], 150);
    assert_true(computed[2] <= 20 + PAGE);
    end_world(w);
}

static void a_prefix_in_flight_is_computed_once(void **state)
{
    for (int32_t n_own = 0; n_own <= 10; n_own += 10) {
        struct world *w = new_world(has_queue(state), POLICY_PREFILL_FIRST, 1, MAX_PAGES, 60, 32);
        for (uint64_t uid = 1; uid <= 6; uid++) {
            struct live *l = find_live(w, 0);
            *l = (struct live){0};
            add_tokens(l, 201, 1);
            add_tokens(l, n_own, (int32_t)uid + 10);
            submit(w, l, uid, 3, NULL, 0);
        }
        run_scheduler(w->scheduler);
        assert_int_equal(w->n_finished, 6);
        assert_true(n_prefilled(w) <= (uint64_t)(201 + 6 * (n_own + PAGE)));
        end_world(w);
    }
}

static void a_cancelled_answer_is_continued(void **state)
{
    struct world *w = new_world(has_queue(state), POLICY_PREFILL_FIRST, 1, MAX_PAGES, 20, 64);
    struct live *l = find_live(w, 0), next;
    add_tokens(l, 50, 1);
    submit(w, l, 1, 100, NULL, 0);
    for (int i = 0; i < 20; i++)
        step_scheduler(w->scheduler);
    scheduler_cancel(w->scheduler, 1);
    next = *l;
    next.n_prompt += next.n_seen;
    add_tokens(&next, 9, 2);
    /* The last token that was seen has been fed to the step in flight, if there is one. */
    assert_int_equal(run_one(w, &next, NULL, 0), has_queue(state) ? 9 : 10);
    end_world(w);
}

static void a_failed_step_leaves_no_state_behind(void **state)
{
    struct world *w = new_world(has_queue(state), POLICY_PREFILL_FIRST, 1, MAX_PAGES, 20, 64);
    struct live *l = find_live(w, 0);
    add_tokens(l, 50, 1);
    submit(w, l, 1, 100, NULL, 0);
    for (int i = 0; i < 20; i++)
        step_scheduler(w->scheduler);
    assert_true(w->cache.states.n_snapshots > 0);
    w->fake.fails = true;
    assert_int_equal(scheduler_step(w->scheduler, NULL), ERROR_IO);
    assert_true(l->is_done && scheduler_check(w->scheduler));
    assert_int_equal(w->cache.states.n_snapshots, 0);
    w->fake.fails = false;
    struct live again = *l;
    again.n_prompt += again.n_seen;
    run_one(w, &again, NULL, 0);
    end_world(w);
}

/* The second request waits for the first to end while the third, younger and smaller, passes it;
 * then its prompt needs the pages of the third, which is in each step before it. */
static void a_prompt_never_takes_the_row_of_a_younger_one_in_its_step(void **state)
{
    struct world *w = new_world(has_queue(state), POLICY_MIXED, 1, CONTEXT / PAGE + 1, 40, 16);
    const int32_t lengths[] = {40, 380, 3}, answers[] = {3, 10, 100};
    for (int32_t i = 0; i < 3; i++) {
        struct live *l = find_live(w, 0);
        *l = (struct live){0};
        add_tokens(l, lengths[i], 50 + i);
        submit(w, l, (uint64_t)i + 1, answers[i], NULL, 0);
    }
    run_scheduler(w->scheduler);
    assert_int_equal(w->n_finished, 3);
    assert_true(scheduler_figures(w->scheduler).preemptions > 0);
    end_world(w);
}

#define BOTH(test) cmocka_unit_test_prestate(test, &without), cmocka_unit_test_prestate(test, &with)

int main(void)
{
    static bool without = false, with = true;
    const struct CMUnitTest tests[] = {
        BOTH(any_order_of_events_gives_every_request_its_answer),
        BOTH(questions_behind_one_system_prompt_hit_whatever_follows_it),
        BOTH(a_chat_computes_what_is_new_and_at_most_a_page),
        BOTH(an_answer_that_the_next_turn_leaves_out_costs_nothing),
        BOTH(where_two_prompts_parted_the_third_continues),
        BOTH(a_prefix_in_flight_is_computed_once),
        BOTH(a_cancelled_answer_is_continued),
        BOTH(a_failed_step_leaves_no_state_behind),
        BOTH(a_prompt_never_takes_the_row_of_a_younger_one_in_its_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
